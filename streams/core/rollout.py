"""From a target to the plan of right now: who starts, who serves, who drains.

Laws:

1. An instance enters the plan when all its nodes are there and free of others, all or none: on no
   prefix of a roll-out is a device given twice or more used than there is.
2. What is replaced keeps serving until its service's new instances are ready. Where they need its nodes, one
   new instance at a time gets them.
3. An instance is the restart unit: when a rank fails, all end; then the next attempt, with back-off,
   or, attempts used up, another place.
4. A claim stays in the plan until nothing of ours runs on its node.
"""

from schemas.events import StageReport
from schemas.plans import Instance, Plan, Role, Target
from schemas.policy import CorePolicy
from streams.core import offers
from streams.core.binding import is_whole, users
from streams.core.fleet import is_healthy, lose_claim
from streams.core.state import ENDED, InstanceState, State

STUCK_MS = 60_000
"""How long after its deadline a drain may still report its end; then its nodes are given back as they are."""

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
    occupied = {claim for i in state.instances.values() if i.role is not None for claim in i.claims}
    for instance in _all(state):
        if instance.role is None:
            _enter(state, instance, occupied)
        elif instance.wanted and instance.ready and instance.role == "starting":
            instance.take("serving", state.now_ms)
    for instance in _all(state):
        if not instance.wanted and instance.role in ("starting", "serving") and _may_drain(state, instance):
            instance.take("draining", state.now_ms)
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
        instance.failed = _failure(instance, said) or _too_slow(state, policy, instance)
    if instance.failed is not None and instance.role != "draining":
        instance.take("draining", state.now_ms)
        instance.retry_at_ms = state.now_ms + policy.backoff_ms * 2 ** (instance.attempt - 1)
    instance.seen = tuple(sorted({*instance.seen, *(k for k, r in said.items() if r is not None)}))


def _failure(instance: InstanceState, said: Reports) -> str | None:
    for rank, report in said.items():
        if report is None and rank in instance.seen:
            return f"{rank}: vanished"
        if report is not None and report.state in ENDED | {"draining"}:
            return f"{rank}: {report.state}: {report.reason or 'no reason given'}"
    return None


def _too_slow(state: State, policy: CorePolicy, instance: InstanceState) -> str | None:
    waited_ms = state.now_ms - instance.role_since_ms
    if instance.role == "starting" and not instance.ready and waited_ms >= policy.start_deadline_ms:
        return f"not ready after {waited_ms // 1000} s"
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
def _enter(state: State, instance: InstanceState, occupied: set[str]) -> None:
    """Law 1: all nodes there, healthy and free. `occupied` are the claims of all instances in the plan."""
    if not is_whole(state, instance):
        del state.instances[instance.id]
        state.need("claim_refused")
        return
    nodes = (state.claims[claim].claim.node for claim in instance.claims)
    if occupied.isdisjoint(instance.claims) and all(node and is_healthy(state, node) for node in nodes):
        instance.take("starting", state.now_ms)
        occupied |= instance.claims


def _may_drain(state: State, victim: InstanceState) -> bool:
    """Law 2; one that is not ready yet serves nobody, and is cancelled."""
    if not victim.ready:
        return True
    heirs = [i for i in state.instances.values() if i.wanted and i.service == victim.service]
    if all(heir.role == "serving" and heir.ready for heir in heirs):
        return True
    waiting = [i for i in state.instances.values() if i.wanted and i.role is None]
    # The first that waits for a victim's node; the next one's turn comes when it serves.
    first = next((i for i in waiting if any(_serves(state, claim) for claim in i.claims)), None)
    under_way = any(heir.role == "starting" for heir in heirs) or _makes_room(state, waiting)
    return first is not None and not victim.claims.isdisjoint(first.claims) and not under_way


def _serves(state: State, claim: str) -> bool:
    return any(i.role == "serving" and not i.wanted for i in users(state, claim))


def _makes_room(state: State, waiting: list[InstanceState]) -> bool:
    """Whether victims are draining already for one that waits for their nodes."""
    return any(
        i.role == "draining" and i.failed is None
        for w in waiting
        for claim in w.claims
        for i in users(state, claim)
    )


def _end(state: State, policy: CorePolicy, instance: InstanceState, said: Reports) -> None:
    """Law 3: once everything ended, the next attempt, another place, or nothing."""
    stuck_ms = state.now_ms - instance.role_since_ms - policy.drain_deadline_ms
    if not _has_ended(instance, said, planned=is_whole(state, instance)) and stuck_ms < STUCK_MS:
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
        instance.take(None, state.now_ms)
        instance.failed, instance.seen = None, ()


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
            lose_claim(state, key, "its node is nowhere to be seen")


def _release_claims(state: State) -> None:
    """Law 4."""
    used = {claim for instance in state.instances.values() for claim in instance.claims}
    state.claims = {key: held for key, held in state.claims.items() if key in used}


def standing_alerts(state: State, policy: CorePolicy) -> dict[str, str]:
    """Drains past their deadline, by alert name."""
    return {
        f"InstanceStuck:{i.id}": f"{i.id} drains for {(state.now_ms - i.role_since_ms) // 1000} s"
        for i in state.instances.values()
        if i.role == "draining" and state.now_ms - i.role_since_ms >= policy.drain_deadline_ms
    }


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
