"""From a target to the plan of right now: who starts, who serves, who drains.

Laws:

1. An instance enters the plan when all its nodes are there and free of others, all or none: on no
   prefix of a roll-out is a device given twice or more used than there is.
2. What is replaced keeps serving until its service's new instances are ready, unless they need its nodes.
3. An instance is the restart unit: when a rank fails, all end; then the next attempt, with back-off,
   or, attempts used up, another place.
4. A claim stays in the plan until nothing of ours runs on its node.
"""

from schemas.events import StageReport
from schemas.plans import Instance, Plan, Role, Target
from schemas.policy import CorePolicy
from streams.core import offers
from streams.core.binding import is_whole, users
from streams.core.fleet import is_healthy
from streams.core.state import ENDED, InstanceState, State

Reports = dict[str, StageReport | None]
"""Rank (`claim/stage`) -> what its node says of it in this attempt; None when it says nothing."""


def advance(state: State, policy: CorePolicy) -> None:
    """Move every instance as far as what was reported allows.

    In this order one pass is enough: what ended makes room for what enters, what serves lets others drain.
    """
    _give_up_claims(state, policy)
    for instance in _all(state):
        _observe(state, policy, instance)
    for instance in _all(state):
        if instance.role == "draining":
            _end(state, policy, instance, _reports(state, instance))
    for instance in _all(state):
        if instance.role is None:
            _enter(state, instance)
        elif instance.wanted and instance.ready and instance.role == "starting":
            instance.role = "serving"
    for instance in _all(state):
        if not instance.wanted and instance.role in ("starting", "serving") and _may_drain(state, instance):
            instance.role = "draining"
    _release_claims(state)
    used = {i.template_id for i in state.instances.values()} | {w.template_id for w in state.wishes}
    state.templates = {key: t for key, t in state.templates.items() if key in used}


def _all(state: State) -> list[InstanceState]:
    return list(state.instances.values())


# --- what was reported -----------------------------------------------------------------------------
def _reports(state: State, instance: InstanceState) -> Reports:
    """What the nodes say; ranks whose claim or node is gone are left out: nothing runs there any more."""
    said: Reports = {}
    for stage in instance.stages:
        for rank in stage.ranks:
            held = state.claims.get(rank.claim)
            node = state.nodes.get(held.claim.node or "") if held is not None else None
            if node is not None:
                said[f"{rank.claim}/{stage.index}"] = next(
                    (
                        report
                        for report in node.report.stages
                        if (report.instance, report.attempt, report.stage)
                        == (instance.id, instance.attempt, stage.index)
                    ),
                    None,
                )
    return said


def _observe(state: State, policy: CorePolicy, instance: InstanceState) -> None:
    """Note readiness and failure of the current attempt."""
    if instance.role is None:
        return
    said = _reports(state, instance)
    everywhere = len(said) == sum(len(stage.ranks) for stage in instance.stages)
    instance.ready = everywhere and all(r is not None and r.state == "ready" for r in said.values())
    if instance.role != "draining" and instance.failed is None:
        instance.failed = _failure(instance, said)
    if instance.failed is not None and instance.role != "draining":
        instance.role = "draining"
        instance.retry_at_ms = state.now_ms + policy.backoff_ms * 2 ** (instance.attempt - 1)
    instance.seen = tuple(sorted({*instance.seen, *(k for k, r in said.items() if r is not None)}))


def _failure(instance: InstanceState, said: Reports) -> str | None:
    for rank, report in said.items():
        if report is None and rank in instance.seen:
            return f"{rank}: vanished"
        if report is not None and report.state in ENDED | {"draining"}:
            return f"{rank}: {report.state}: {report.reason or 'no reason given'}"
    return None


def _has_ended(instance: InstanceState, said: Reports, *, planned: bool) -> bool:
    """Whether no rank runs any more.

    A rank that was never reported may still be on its way up, as long as the plan has the instance.
    """
    return all(
        (rank in instance.seen or not planned) if report is None else report.state in ENDED
        for rank, report in said.items()
    )


# --- what follows ----------------------------------------------------------------------------------
def _enter(state: State, instance: InstanceState) -> None:
    """Law 1: all nodes there, healthy and free."""
    if not is_whole(state, instance):
        del state.instances[instance.id]
        state.need("claim_refused")
        return
    for claim in instance.claims:
        node = state.claims[claim].claim.node
        if node is None or not is_healthy(state, node):
            return
        if any(other.role is not None for other in users(state, claim) if other is not instance):
            return
    instance.role = "starting"


def _may_drain(state: State, victim: InstanceState) -> bool:
    """Law 2; one that is not ready yet serves nobody, and is cancelled."""
    heirs = [i for i in state.instances.values() if i.wanted and i.service == victim.service]
    needed = any(
        claim in other.claims
        for other in state.instances.values()
        if other.wanted and other.role is None
        for claim in victim.claims
    )
    return not victim.ready or needed or all(heir.role == "serving" and heir.ready for heir in heirs)


def _end(state: State, policy: CorePolicy, instance: InstanceState, said: Reports) -> None:
    """Law 3: once everything ended, the next attempt, another place, or nothing."""
    if not _has_ended(instance, said, planned=is_whole(state, instance)):
        return
    if instance.failed is None or not instance.wanted:
        del state.instances[instance.id]
    elif not is_whole(state, instance):
        del state.instances[instance.id]
        state.need("node_lost")
    elif _is_hopeless(policy, instance, said):
        del state.instances[instance.id]
        for stage in instance.stages:
            for rank in stage.ranks:
                held = state.claims[rank.claim].claim
                offers.refuse(state, held.pool, held.configuration, policy.refusal_memory_ms)
        state.need("instance_failed")
    elif state.now_ms >= instance.retry_at_ms:
        instance.attempt += 1
        instance.role, instance.failed, instance.seen = None, None, ()


def _is_hopeless(policy: CorePolicy, instance: InstanceState, said: Reports) -> bool:
    refused = any(report is not None and report.state == "refused" for report in said.values())
    return refused or instance.attempt >= policy.attempts


# --- claims ----------------------------------------------------------------------------------------
def give_back(state: State, claim: str) -> None:
    """A claim that will not be met: the instances that wait for it go, and with them their other claims."""
    for instance in users(state, claim):
        if instance.role is None:
            del state.instances[instance.id]
            state.need("claim_refused")
    if not users(state, claim):
        state.claims.pop(claim, None)


def _give_up_claims(state: State, policy: CorePolicy) -> None:
    """Give up claims whose node did not register in time; the pool counts as out of stock for a while."""
    for key, held in list(state.claims.items()):
        node = held.claim.node
        missing = node is None or node not in state.nodes
        if missing and state.now_ms - held.asked_ms >= policy.grant_timeout_ms:
            offers.refuse(state, held.claim.pool, held.claim.configuration, policy.refusal_memory_ms)
            give_back(state, key)


def _release_claims(state: State) -> None:
    """Law 4."""
    used = {claim for instance in state.instances.values() for claim in instance.claims}
    state.claims = {key: held for key, held in state.claims.items() if key in used}


# --- the plan --------------------------------------------------------------------------------------
Outline = tuple[str, frozenset[tuple[str, int, Role]], frozenset[tuple[str, str | None]]]
"""Target, (instance, attempt, role), (claim, node): two plans with the same outline say the same."""


def says_more(state: State) -> bool:
    """Whether the plan of right now differs from the last one in more than its number and its time."""
    last = state.plan
    if last is None or state.target is None:
        return True
    told: Outline = (
        last.target.id,
        frozenset((i.id, i.attempt, i.role) for i in last.instances),
        frozenset((c.id, c.node) for c in last.claims),
    )
    now: Outline = (
        state.target.id,
        frozenset((i.id, i.attempt, i.role) for i in _in_plan(state) if i.role is not None),
        frozenset((h.claim.id, h.claim.node) for h in state.claims.values()),
    )
    return now != told


def _in_plan(state: State) -> list[InstanceState]:
    return [i for _, i in sorted(state.instances.items()) if i.role is not None and is_whole(state, i)]


def current_plan(state: State, target: Target) -> Plan:
    """The plan of right now, with the next sequence number."""
    instances = _in_plan(state)
    return Plan(
        fleet=state.fleet,
        lineage=state.lineage,
        epoch=state.epoch,
        sequence=state.sequence + 1,
        at_ms=state.now_ms,
        target=target,
        templates=tuple(state.templates[t] for t in sorted({i.template_id for i in instances})),
        claims=tuple(held.claim for _, held in sorted(state.claims.items())),
        instances=tuple(_planned(i) for i in instances),
    )


def _planned(instance: InstanceState) -> Instance:
    if instance.role is None:
        raise ValueError(f"{instance.id}: not in the plan")
    return Instance(
        id=instance.id,
        attempt=instance.attempt,
        role=instance.role,
        template_id=instance.template_id,
        rating=instance.rating,
        service=instance.service,
        pool=instance.pool,
        stages=instance.stages,
    )
