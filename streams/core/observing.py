"""What the nodes say of an instance, and what that makes of it: ready, failed, refused, ended."""

from schemas.events import StageReport
from schemas.policy import CorePolicy
from streams.core import refusals, startups
from streams.core.state import ENDED, InstanceState, NodeState, State

Reports = dict[str, StageReport | None]
"""Rank (`claim/stage`) -> what its node says of it in this attempt; None when it says nothing."""


def reports(state: State, instance: InstanceState) -> Reports:
    """What the nodes say; ranks whose claim or node is gone are left out: nothing runs there any more."""
    said: Reports = {}
    for rank, claim, stage in instance.ranks:
        held = state.claims.get(claim)
        node = state.nodes.get(held.claim.node or "") if held is not None else None
        if node is not None:
            said[rank] = _report(node, instance, stage)
    return said


def _report(node: NodeState, instance: InstanceState, stage: int) -> StageReport | None:
    for report in node.report.stages:
        if (report.stage, report.attempt, report.instance) == (stage, instance.attempt, instance.id):
            return report
    return None


def observe(state: State, policy: CorePolicy, instance: InstanceState) -> None:
    """Note readiness, refusals and failure of the current attempt."""
    if instance.role is None:
        return
    said = reports(state, instance)
    there = [report for report in said.values() if report is not None]
    if len(there) > len(instance.seen):
        new = (rank for rank, report in said.items() if report is not None)
        instance.seen = tuple(sorted({*instance.seen, *new}))
    _note_readiness(state, instance, there)
    if instance.ready:
        return
    _note_refusals(state, policy, instance, said)
    if _waits_for_slots(state, instance, there):
        instance.starts_since_ms = state.now_ms  # Who waits for a pull slot is not late.
    if instance.role != "draining" and instance.failed is None:
        _note_failure(state, policy, instance, said)
    if instance.failed is not None and instance.role != "draining":
        instance.take("draining", state.now_ms)
        instance.retry_at_ms = state.now_ms + policy.backoff_ms * 2 ** (instance.attempt - 1)


def _note_readiness(state: State, instance: InstanceState, there: list[StageReport]) -> None:
    """Ready is who is ready everywhere; the first rank, the head, says where the door is."""
    ready = len(there) == len(instance.ranks) and all(report.state == "ready" for report in there)
    if ready and not instance.ready and instance.role == "starting":
        template = state.templates[instance.template_id]
        startups.note(state, template.model, there)
        refusals.clear(state, template, [state.claims[claim].claim for claim in instance.claims])
    door = (there[0].endpoint, there[0].verified) if ready and instance.role != "draining" else (None, None)
    if (ready, *door) != (instance.ready, instance.endpoint, instance.verified):
        instance.ready, (instance.endpoint, instance.verified) = ready, door


def _note_refusals(state: State, policy: CorePolicy, instance: InstanceState, said: Reports) -> None:
    for rank, claim, _ in instance.ranks:
        report = said.get(rank)
        if report is not None and report.state == "refused" and rank not in instance.refused:
            refusals.note(state, policy, instance, state.claims[claim].claim, report)
            instance.refused = (*instance.refused, rank)


def _note_failure(state: State, policy: CorePolicy, instance: InstanceState, said: Reports) -> None:
    """Who is heard first is to blame: its peers fail because it did, and say so a moment later."""
    failures = _failures(instance, said)
    slow = _too_slow(state, policy, instance)
    if failures:
        instance.failed = next(iter(failures.values()))
        instance.blamed = _claims(instance, set(failures))
    elif slow is not None:
        instance.failed = slow
        instance.blamed = _claims(instance, _late(state, instance, said))


def _claims(instance: InstanceState, ranks: set[str]) -> tuple[str, ...]:
    return tuple(sorted({claim for rank, claim, _ in instance.ranks if rank in ranks}))


def _failures(instance: InstanceState, said: Reports) -> dict[str, str]:
    """Rank -> how it failed."""
    failures: dict[str, str] = {}
    for rank, report in said.items():
        if report is None and rank in instance.seen:
            failures[rank] = f"{rank}: vanished"
        elif report is not None and report.state in ENDED | {"draining"}:
            failures[rank] = f"{rank}: {report.state}: {report.reason or 'no reason given'}"
    return failures


def _late(state: State, instance: InstanceState, said: Reports) -> set[str]:
    """Ranks that are not ready, but for those that wait for a pull slot of others."""
    late: set[str] = set()
    for rank, claim, _ in instance.ranks:
        report = said.get(rank)
        waits = report is not None and report.phase == "queued" and not _has_slot(state, claim)
        if not waits and (report is None or report.state != "ready"):
            late.add(rank)
    return late


def _waits_for_slots(state: State, instance: InstanceState, there: list[StageReport]) -> bool:
    """Whether others have the slots: where a rank of its own has one, its peers wait for that rank."""
    has_one = any(_has_slot(state, claim) for claim in instance.claims)
    return not has_one and any(report.phase == "queued" for report in there)


def _has_slot(state: State, claim: str) -> bool:
    return claim in state.pulls and state.pulls[claim].granted


def _too_slow(state: State, policy: CorePolicy, instance: InstanceState) -> str | None:
    waited_ms = state.now_ms - instance.starts_since_ms
    if instance.role == "starting" and not instance.ready and waited_ms >= policy.start_deadline_ms:
        return f"not ready after {waited_ms // 1000} s"
    return None


def has_ended(instance: InstanceState, said: Reports, *, planned: bool) -> bool:
    """Whether no rank runs any more.

    A rank that was never reported may still be on its way up, as long as the plan has the instance.
    """
    return all(
        (rank in instance.seen or not planned) if report is None else report.state in ENDED
        for rank, report in said.items()
    )


def was_refused(said: Reports) -> bool:
    """Whether some node cannot run the model: trying there again is of no use."""
    return any(
        report is not None and report.state == "refused" and report.refusal != "engine_version"
        for report in said.values()
    )
