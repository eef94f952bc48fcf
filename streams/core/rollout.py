"""From a target to the plan of right now: who starts, who serves, who drains.

Laws:

1. An instance enters the plan when all its nodes are there and free of others, all or none: on no
   prefix of a roll-out is a device given twice or more used than there is.
2. What is replaced keeps serving until its service's new instances are ready. Where they need its nodes, one
   new instance at a time gets them.
3. An instance is the restart unit: when a rank fails, all end; then the next attempt, with back-off,
   or, attempts used up, another place: the node that failed is set aside.
4. A claim stays in the plan until nothing of ours runs on its node.
5. An instance never mixes engine versions. Which it has is fixed when its attempt enters the plan; a node
   that is upgraded under it restarts nothing.
"""

from schemas.policy import CorePolicy
from streams.core import binding, offers, pulls, refusals
from streams.core.binding import is_whole, users
from streams.core.fleet import is_going, is_healthy, lose_claim
from streams.core.observing import Reports, has_ended, observe, reports, was_refused
from streams.core.state import ClaimState, InstanceState, State

STUCK_MS = 60_000
"""How long after its deadline a drain may still report its end; then its nodes are given back as they are."""


def advance(state: State, policy: CorePolicy) -> None:
    """Move every instance as far as what was reported allows.

    In this order one pass is enough: what ended makes room for what enters, what serves lets others drain.
    """
    _give_up_claims(state, policy)
    for instance in _all(state):
        observe(state, policy, instance)
    for instance in _all(state):
        if instance.role == "draining":
            _end(state, policy, instance, reports(state, instance))
    occupied = {claim for i in state.instances.values() if i.role is not None for claim in i.claims}
    for instance in _all(state):
        if instance.role is None:
            _enter(state, policy, instance, occupied)
        elif instance.wanted and instance.ready and instance.role == "starting":
            instance.take("serving", state.now_ms)
    _drain_victims(state)
    _release_claims(state)
    pulls.advance(state, policy)
    used = {i.template_id for i in state.instances.values()} | {w.template_id for w in state.wishes}
    state.templates = {key: t for key, t in state.templates.items() if key in used}


def _all(state: State) -> list[InstanceState]:
    return list(state.instances.values())


# --- what follows ----------------------------------------------------------------------------------
def _enter(state: State, policy: CorePolicy, instance: InstanceState, occupied: set[str]) -> None:
    """Law 1: all nodes there, healthy and free. `occupied` are the claims of all instances in the plan."""
    if not is_whole(state, instance):
        _drop(state, instance, "claim_refused")
    elif _is_barred(state, instance):
        _drop(state, instance, "instance_failed")
    elif occupied.isdisjoint(instance.claims) and all(_is_ready(state, c) for c in instance.claims):
        versions = {binding.version(state, claim) for claim in instance.claims}
        if len(versions) == 1:
            instance.engine, instance.spare = versions.pop() or None, ()
            instance.drain_deadline_ms = policy.drain_deadline_of(instance.service)
            instance.take("starting", state.now_ms)
            occupied |= instance.claims
        elif binding.rebind(state, instance):
            _enter(state, policy, state.instances[instance.id], occupied)
        else:
            _note_mixture(state, policy, instance)
            _drop(state, instance, "instance_failed")


def _note_mixture(state: State, policy: CorePolicy, instance: InstanceState) -> None:
    """Law 5, and no more nodes to choose from: its model is not tried there for a while."""
    template = state.templates[instance.template_id]
    for claim in sorted(instance.claims):
        refusals.note_unfit(state, policy, template, state.claims[claim].claim, "engine_version")


def _drop(state: State, instance: InstanceState, reason: str) -> None:
    """Give up an instance that is not in the plan."""
    del state.instances[instance.id]
    state.need(reason)


def _is_ready(state: State, claim: str) -> bool:
    node = state.claims[claim].claim.node
    return node is not None and is_healthy(state, node)


def _is_barred(state: State, instance: InstanceState) -> bool:
    """Whether it waits for nodes that would refuse it, or on which nothing new goes any more.

    What ran before may try again where it ran, whatever was refused beside it.
    """
    template = state.templates[instance.template_id]
    held = [state.claims[claim] for claim in instance.claims]
    unfit = any(refusals.is_unfit(state, template, h.claim.pool, h.claim.configuration) for h in held)
    return (unfit and instance.attempt == 1) or any(_is_closed(state, h) for h in held)


def _is_closed(state: State, held: ClaimState) -> bool:
    """Whether a claim's node is there, and takes nothing new."""
    node = state.nodes.get(held.claim.node or "")
    return node is not None and (is_going(node) or refusals.refuses(state, node.report.node))


def _drain_victims(state: State) -> None:
    """Law 2; a victim that is not ready yet serves nobody, and is cancelled."""
    victims = [i for i in _all(state) if not i.wanted and i.role in ("starting", "serving")]
    heirs = [i for i in state.instances.values() if i.wanted] if victims else []
    unfinished = {heir.service for heir in heirs if heir.role != "serving" or not heir.ready}
    starting = {heir.service for heir in heirs if heir.role == "starting"}
    left = []
    for victim in victims:
        if not victim.ready or victim.service not in unfinished:
            victim.take("draining", state.now_ms)
        elif victim.service not in starting:
            left.append(victim)
    makes_room = _in_the_way(state, left) if left else None
    if makes_room is not None:
        makes_room.take("draining", state.now_ms)


def _in_the_way(state: State, victims: list[InstanceState]) -> InstanceState | None:
    """The victim whose node the first new instance that waits for one needs, unless one drains already."""
    waiting = [i for i in state.instances.values() if i.wanted and i.role is None]
    ending = [i for i in state.instances.values() if i.role == "draining" and i.failed is None]
    if {claim for i in waiting for claim in i.claims} & {claim for i in ending for claim in i.claims}:
        return None
    serving = [i for i in state.instances.values() if i.role == "serving" and not i.wanted]
    served = {claim for i in serving for claim in i.claims}
    # The next one's turn comes when the first one serves.
    first = next((i for i in waiting if i.claims & served), None)
    return next((v for v in victims if first is not None and v.claims & first.claims), None)


def _end(state: State, policy: CorePolicy, instance: InstanceState, said: Reports) -> None:
    """Law 3: once everything ended, the next attempt, another place, or nothing."""
    stuck_ms = state.now_ms - instance.role_since_ms - instance.drain_deadline_ms
    if not has_ended(instance, said, planned=is_whole(state, instance)) and stuck_ms < STUCK_MS:
        return
    if instance.failed is None or not instance.wanted:
        del state.instances[instance.id]
    elif not is_whole(state, instance):
        _drop(state, instance, "node_lost")
    elif was_refused(said) or any(_is_closed(state, state.claims[c]) for c in instance.claims):
        _drop(state, instance, "instance_failed")
    elif instance.attempt >= policy.attempts:
        _set_aside(state, policy, instance)
        _drop(state, instance, "instance_failed")
    elif state.now_ms >= instance.retry_at_ms:
        instance.attempt += 1
        instance.take(None, state.now_ms)
        instance.failed, instance.blamed, instance.ready = None, (), False
        instance.seen, instance.refused = (), ()


def _set_aside(state: State, policy: CorePolicy, instance: InstanceState) -> None:
    """Where it failed last is no place for now: that static node, or nodes like one that is given back."""
    for claim in instance.blamed:
        held = state.claims[claim].claim
        node = state.nodes.get(held.node or "")
        if node is not None and node.report.claim is None:
            refusals.note_failures(state, policy, node.report, instance.failed or "no reason given")
        else:
            offers.refuse(state, held.pool, held.configuration, policy.refusal_memory_ms)


# --- claims ----------------------------------------------------------------------------------------
def give_back(state: State, policy: CorePolicy, claim: str) -> None:
    """A claim that will not be met: the instances that wait for it go, and with them their other claims."""
    for instance in users(state, claim):
        if instance.role is None:
            if instance.spare:
                _note_mixture(state, policy, instance)
            _drop(state, instance, "claim_refused")
    if not users(state, claim):
        state.claims.pop(claim, None)


def _give_up_claims(state: State, policy: CorePolicy) -> None:
    """Give up claims whose node did not register in time; the pool counts as out of stock for a while."""
    for key, held in list(state.claims.items()):
        node = held.claim.node
        missing = node is None or node not in state.nodes
        if missing and state.now_ms - held.asked_ms >= policy.grant_timeout_ms:
            offers.refuse(state, held.claim.pool, held.claim.configuration, policy.refusal_memory_ms)
            give_back(state, policy, key)
            lose_claim(state, key, "its node is nowhere to be seen")


def _release_claims(state: State) -> None:
    """Law 4; and a closed node that its provisioner would hand out again stays claimed until it opens."""
    used = {claim for i in state.instances.values() for claim in (*i.claims, *i.spare)}
    state.claims = {key: held for key, held in state.claims.items() if key in used or _is_parked(state, held)}


def _is_parked(state: State, held: ClaimState) -> bool:
    node = state.nodes.get(held.claim.node or "")
    is_static = node is not None and node.report.claim is None
    return is_static and _is_closed(state, held)


def standing_alerts(state: State, _policy: CorePolicy) -> dict[str, str]:
    """Drains past their deadline, by alert name."""
    return {
        f"InstanceStuck:{i.id}": f"{i.id} drains for {(state.now_ms - i.role_since_ms) // 1000} s"
        for i in state.instances.values()
        if i.role == "draining" and state.now_ms - i.role_since_ms >= i.drain_deadline_ms
    }
