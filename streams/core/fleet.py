"""Which nodes are there (house.md, law 9). The core alone decides that one is lost, on log time.

    registered -> silent -> suspect (10 s: nothing new goes there) -> lost (30 s: planned around)

A suspect is lost at once if an instance on it failed, as nodes say that are heard: their guards miss it, too.
Silence counts only on partitions that somebody listens to, and not while most of the fleet is silent
together: then it is the listener that is blind. What the provisioner reports gone is gone whatever the
heartbeats say.
"""

from typing import assert_never

from schemas.events import (
    ClaimGranted,
    ClaimReleased,
    FleetAlive,
    Heartbeat,
    NodeGone,
    NodeReported,
    NodeSilent,
    RollCall,
)
from schemas.policy import CorePolicy
from streams.core import refusals
from streams.core.state import ENDED, NodeState, State

FleetEvent = NodeReported | NodeSilent | RollCall | FleetAlive | ClaimGranted | ClaimReleased | NodeGone


def absorb(state: State, event: FleetEvent) -> None:
    match event:
        case NodeReported():
            _absorb_report(state, event)
        case NodeSilent():
            _silence(state, event.node, event.last_heard_ms)
        case RollCall():
            for name in [n for n, node in state.nodes.items() if node.partition == event.partition]:
                if name not in event.nodes:
                    _silence(state, name, state.now_ms)
        case FleetAlive():
            state.alive_ms[event.partition] = state.now_ms
        case ClaimGranted():
            _absorb_grant(state, event)
        case ClaimReleased():
            _absorb_release(state, event)
        case NodeGone():
            _absorb_gone(state, event)
        case _:
            assert_never(event)


def _absorb_report(state: State, event: NodeReported) -> None:
    """Take a node's report: it registers, or says something new."""
    report = event.report
    known = state.nodes.get(report.node)
    if known is not None and known.report.boot == report.boot and known.report.at_ms > report.at_ms:
        return
    node = NodeState(partition=event.partition, report=report, drained_by=state.drained.get(report.node))
    if is_going(node) and not (known is not None and is_going(known)):
        _need_if_used(state, report.node, "notice")
    refusals.hear(state, known.report if known is not None else None, report)
    state.nodes[report.node] = node
    if report.claim is not None:
        _absorb_grant(state, ClaimGranted(claim=report.claim, node=report.node))


def _silence(state: State, name: str, since_ms: int) -> None:
    node = state.nodes.get(name)
    if node is not None and node.silent_since_ms is None:
        node.silent_since_ms = since_ms


def _absorb_grant(state: State, event: ClaimGranted) -> None:
    """The first grant stands until its node is lost: a second node for a claim is somebody's mistake."""
    held = state.claims.get(event.claim)
    if held is not None and held.claim.node is None:
        held.claim = held.claim.model_copy(update={"node": event.node})


def _absorb_release(state: State, event: ClaimReleased) -> None:
    """A node started for a claim ends with it: nobody waits for its heartbeats. A static one stays.

    What the plan still held, and was given back all the same, is lost.
    """
    lose_claim(state, event.claim, "given back by its provisioner")
    node = state.nodes.get(event.node or "")
    if node is not None and node.report.claim == event.claim:
        del state.nodes[node.report.node]
        state.drained.pop(node.report.node, None)


def _absorb_gone(state: State, event: NodeGone) -> None:
    lose(state, event.node, event.reason)
    state.drained.pop(event.node, None)
    asked = state.claims.get(event.claim or "")
    if asked is not None and asked.claim.node is None:
        lose_claim(state, asked.claim.id, f"node {event.node}: {event.reason}")


def lose(state: State, name: str, reason: str) -> None:
    """A node is no more: its claims go, and every instance on it fails."""
    state.nodes.pop(name, None)
    for key in [key for key, c in state.claims.items() if c.claim.node == name]:
        lose_claim(state, key, f"node {name}: {reason}")


def lose_claim(state: State, claim: str, reason: str) -> None:
    """A claim is void: every instance on it fails, and the target cannot stand if it wants one of them."""
    if state.claims.pop(claim, None) is None:
        return
    for instance in state.instances.values():
        if claim in instance.claims:
            instance.failed = instance.failed or reason
            if instance.wanted:
                state.need("node_lost")


def drain(state: State, name: str, by: str | None) -> None:
    """An operator wants nothing to run on a node any more, or again (`by` is None).

    A reboot does not end it: that is what nodes are drained for.
    """
    state.drained.pop(name, None)
    node = state.nodes.get(name)
    if node is not None:
        node.drained_by = by
        if by is not None:
            state.drained[name] = by
        _need_if_used(state, name, "operator")


def _need_if_used(state: State, name: str, reason: str) -> None:
    claims = {key for key, c in state.claims.items() if c.claim.node == name}
    if any(i.wanted and claims & i.claims for i in state.instances.values()):
        state.need(reason)


def silence_ms(state: State, node: NodeState) -> int:
    """How long a node has been silent, in log time."""
    return 0 if node.silent_since_ms is None else max(0, state.now_ms - node.silent_since_ms)


def is_suspect(state: State, node: NodeState, policy: CorePolicy) -> bool:
    return node.silent_since_ms is not None and silence_ms(state, node) >= policy.suspect_after_ms


def is_blind(state: State, policy: CorePolicy) -> bool:
    """Whether most of the nodes that the plan holds went silent together."""
    silent = {name for name, node in state.nodes.items() if is_suspect(state, node, policy)}
    if len(silent) <= 1:
        return False
    held = _held(state) & state.nodes.keys()
    return len(silent & held) > max(1.0, policy.blind_share * len(held))


def _held(state: State) -> set[str]:
    return {c.claim.node for c in state.claims.values() if c.claim.node is not None}


def judge(state: State, policy: CorePolicy) -> None:
    """Lose the nodes that left, and those silent for too long on partitions that are listened to."""
    hold = _held(state) if is_blind(state, policy) else set()
    for name, node in sorted(state.nodes.items()):
        listened = state.now_ms - state.alive_ms.get(node.partition, 0) <= policy.alive_after_ms
        if _has_left(node):
            lose(state, name, "left")
        elif listened and name not in hold and is_suspect(state, node, policy):
            silent_ms = silence_ms(state, node)
            if silent_ms >= policy.lost_after_ms or _is_missed(state, node):
                lose(state, name, f"silent for {silent_ms // 1000} s")


def _is_missed(state: State, node: NodeState) -> bool:
    """Whether other ranks of an instance that a silent node has have failed, on nodes that are heard."""
    mine = {(s.instance, s.attempt) for s in node.report.stages if s.state not in ENDED}
    heard = (other for other in state.nodes.values() if other.silent_since_ms is None)
    return any(
        stage.state == "failed" and (stage.instance, stage.attempt) in mine
        for other in heard
        for stage in other.report.stages
    )


def _has_left(node: NodeState) -> bool:
    """Whether a node that said it would leave is empty, or not heard of any more."""
    report = node.report
    if not report.leaving and report.notice_deadline_ms is None:
        return False
    empty = all(stage.state in ENDED for stage in report.stages)
    return (report.leaving and empty) or node.silent_since_ms is not None


def is_healthy(state: State, name: str) -> bool:
    """Whether something new may go on a node."""
    node = state.nodes.get(name)
    if node is None or state.policy is None:
        return False
    return not (is_suspect(state, node, state.policy) or is_going(node) or refusals.refuses(state, name))


def is_going(node: NodeState) -> bool:
    """Whether a node will leave: it or its cloud said so, or an operator drains it."""
    report: Heartbeat = node.report
    return report.leaving or report.notice_deadline_ms is not None or node.drained_by is not None


def standing_alerts(state: State, policy: CorePolicy) -> dict[str, str]:
    """Suspects, nodes that will leave, and blindness, by alert name."""
    wait = policy.suspect_after_ms // 1000
    suspects = sorted(name for name, node in state.nodes.items() if is_suspect(state, node, policy))
    going = sorted(name for name, node in state.nodes.items() if is_going(node))
    alerts = {f"NodeSuspect:{n}": f"{n} is silent for {wait} s and more" for n in suspects}
    alerts |= {f"NodeGoing:{n}": f"{n} will leave" for n in going}
    if is_blind(state, policy):
        alerts["FleetBlind"] = (
            "most nodes went silent together: the listener may be at fault, none is given up"
        )
    return alerts
