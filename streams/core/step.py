"""The one entry point: `step(state, record) -> effects`, total and deterministic.

Live control, replay and simulation drive this same function. It changes its own state and nothing
else; what shall be done comes back as effects, and what they bring about comes in as records.

    absorb: the record becomes facts
    react:  facts -> fleet judged -> instances advanced -> solve? -> target bound -> plan? -> wake-up

Total means: a bug must not end control. A record that trips one is put aside like one that cannot be read; a
part of react that fails is told, and tried again at the next record, since each derives all it needs from the
state. What was changed before the failure stays. A replay fails at the same place, and goes on the same way.
"""

import hashlib
import traceback
from pathlib import Path
from typing import assert_never

from schemas.base import canonical
from schemas.events import (
    AvailabilityChanged,
    ClaimGranted,
    ClaimRefused,
    ClaimReleased,
    ControlEvent,
    DeadLettered,
    DemandClosed,
    FleetAlive,
    Leading,
    LineageStarted,
    NodeGone,
    NodeReported,
    NodeSilent,
    OperatorRequested,
    PriceChanged,
    Published,
    RollCall,
    Solved,
    SolveFailed,
    Tick,
)
from schemas.policy import CorePolicy
from schemas.problems import Answer
from streams.core import decide, demand, fleet, offers, plan, refusals, rollout, triggers, wakeups
from streams.core.effects import Alert, Effect, Publish, PutAside, Solve, WakeAt
from streams.core.record import LogRecord, Malformed
from streams.core.state import PendingPublish, State


def step(state: State, record: LogRecord) -> list[Effect]:
    """Take one record of the control log.

    Args:
        record: the next record; its offset must be above `state.offset`.

    Returns:
        What to do, in order. Every effect but `Alert` stays pending until its record comes.
    """
    if record.offset <= state.offset:
        raise ValueError(f"record {record.offset} after {state.offset}: the log has one order")
    state.now_ms = max(state.now_ms, record.timestamp_ms)
    try:
        effects = _absorb(state, record)
    except BUGS as error:
        effects = _put_aside(state, record.offset, f"cannot be absorbed: {_where(error)}")
    if state.policy is not None:
        effects += _react(state, state.policy, record)
    state.offset = record.offset
    state.history = _history(state.history, record, effects)
    return effects


def _history(before: str, record: LogRecord, effects: list[Effect]) -> str:
    said = [[type(effect).__name__, effect.model_dump(mode="json")] for effect in effects]
    head = f"{before}|{record.offset}|{record.timestamp_ms}|".encode()
    return hashlib.sha256(head + record.value + b"|" + canonical(said)).hexdigest()


BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What a mistake of ours raises, at the same place each time. Lack of memory, say, is not among them."""


def _where(error: Exception) -> str:
    """An error and the line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    said = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {said} ({Path(frame.filename).name}:{frame.lineno} in {frame.name})"


def _put_aside(state: State, offset: int, reason: str) -> list[Effect]:
    state.put_aside[offset] = reason
    return [PutAside(offset=offset, reason=reason)]


# --- absorb ----------------------------------------------------------------------------------------
def _absorb(state: State, record: LogRecord) -> list[Effect]:
    event = record.event
    if isinstance(event, Malformed):
        return _put_aside(state, record.offset, event.reason)
    if isinstance(event, Leading):
        return _lead(state, event, record.offset)
    return _absorb_event(state, event)


def _lead(state: State, event: Leading, offset: int) -> list[Effect]:
    """A new leader: everything that is not confirmed is to be done again, in its epoch."""
    state.leader, state.epoch = event.token, offset
    if state.policy is not None and state.policy.asks != event.policy.asks:
        state.need("policy")
    state.fleet, state.policy, state.library = event.fleet, event.policy, event.library
    state.wake_at_ms = None
    kept = demand.served_keys(event.policy)
    state.demand = {key: windows for key, windows in state.demand.items() if key in kept}
    effects: list[Effect] = [PutAside(offset=o, reason=r) for o, r in sorted(state.put_aside.items())]
    if state.pending_solve is not None:
        effects.append(Solve(epoch=state.epoch, problem=state.pending_solve.problem))
    return effects


def _absorb_event(state: State, event: ControlEvent) -> list[Effect]:  # noqa: C901  one flat table
    match event:
        case LineageStarted():
            state.lineage = event.lineage
        case DemandClosed():
            demand.absorb(state, event)
        case AvailabilityChanged() | PriceChanged():
            offers.absorb(state, event)
        case (
            NodeReported()
            | NodeSilent()
            | RollCall()
            | FleetAlive()
            | ClaimGranted()
            | ClaimReleased()
            | NodeGone()
        ):
            fleet.absorb(state, event)
        case ClaimRefused():
            _absorb_refusal(state, event)
        case Solved():
            return _absorb_answer(state, event)
        case SolveFailed():
            return _absorb_failure(state, event)
        case OperatorRequested():
            _absorb_request(state, event)
        case Published() | DeadLettered() | Tick():
            _confirm(state, event)
        case Leading():
            pass
        case _:
            assert_never(event)
    return []


def _absorb_refusal(state: State, event: ClaimRefused) -> None:
    if state.policy is not None:
        offers.absorb_refusal(state, event, state.policy)
        rollout.give_back(state, state.policy, event.claim)


def _absorb_answer(state: State, event: Solved) -> list[Effect]:
    if state.policy is None:
        return []
    if reason := _undeployable(event.answer):
        return _absorb_failure(state, SolveFailed(epoch=event.epoch, problem=event.problem, reason=reason))
    told = event.answer.stopped if decide.is_asked_for(state, event) else None
    taken = decide.accept(state, state.policy, event)
    if told is None:
        return []
    best = f"its best plan so far {'is taken' if taken else 'changes nothing'}"
    return [Alert(name="SolveStopped", text=f"{event.problem}: {told}; {best}")]


def _undeployable(answer: Answer) -> str | None:
    """Why node agents cannot run an answer: plans have other runtimes and shared nodes too, an instance here
    has its claims for itself (`binding`)."""
    alien = sorted({chosen.template.runtime for chosen in answer.chosen} - {"vllm"})
    if alien:
        return f"runtime {alien[0]} is not deployable"
    if answer.nodes:
        return f"a shared {answer.nodes[0].configuration} is not deployable"
    return None


def _absorb_failure(state: State, event: SolveFailed) -> list[Effect]:
    """A solve without an answer: the target stands; the reason still holds, or is kept as a need."""
    pending = state.pending_solve
    if pending is None or event.epoch != state.epoch or event.problem != pending.problem.id:
        return []
    decide.ask_again(state, pending)
    return [Alert(name="SolveFailed", text=f"{event.problem}: {event.reason}")]


def _confirm(state: State, event: Published | DeadLettered | Tick) -> None:
    """What was asked for has been done."""
    match event:
        case Published():
            if state.pending_publish is not None and state.pending_publish.plan.id == event.plan:
                state.pending_publish = None
        case DeadLettered():
            state.put_aside.pop(event.offset, None)
        case Tick():
            if state.wake_at_ms is not None and event.due_ms >= state.wake_at_ms:
                state.wake_at_ms = None


def _absorb_request(state: State, event: OperatorRequested) -> None:
    if event.node is None:
        state.need("operator")
    else:
        fleet.drain(state, event.node, event.by if event.kind == "drain" else None)


# --- react -----------------------------------------------------------------------------------------
def _react(state: State, policy: CorePolicy, record: LogRecord) -> list[Effect]:
    effects: list[Effect] = []
    broken: dict[str, str] = {}
    for part in (_advance, _solve, _publish, _wake):
        try:
            effects += part(state, policy, record)
        except BUGS as error:
            broken[f"StepFailed:{part.__name__[1:]}"] = _where(error)
    return effects + _alert(state, policy, broken)


def _advance(state: State, policy: CorePolicy, _record: LogRecord) -> list[Effect]:
    offers.forget_refusals(state)
    refusals.forget(state)
    fleet.judge(state, policy)
    rollout.advance(state, policy)
    return []


def _solve(state: State, policy: CorePolicy, _record: LogRecord) -> list[Effect]:
    wanted, stocks = demand.wanted_demand(state, policy), offers.stocks(state)
    reason = triggers.due_reason(state, policy, wanted, stocks)
    if reason is None:
        return []
    state.pending_solve = decide.ask(state, policy, wanted, stocks, reason)
    return [Solve(epoch=state.epoch, problem=state.pending_solve.problem)]


def _publish(state: State, policy: CorePolicy, record: LogRecord) -> list[Effect]:
    """Publish a plan that says more than the last; one all the same for a new leader and once a minute.

    Each has a number of its own, so that who counts the plans that lack something (the provisioner's reaper)
    gets on in a quiet fleet too.
    """
    if state.target is None:
        return []
    due = isinstance(record.event, Leading) or state.now_ms >= state.published_ms + policy.republish_ms
    news = state.now_ms >= wakeups.next_plan_ms(state, policy) and plan.says_more(state, policy)
    if not (due or news):
        return []
    state.plan = plan.current_plan(state, policy, state.target)
    state.sequence = state.plan.sequence
    state.published_ms = state.now_ms
    state.pending_publish = PendingPublish(plan=state.plan, cause_offset=record.offset)
    return [Publish(epoch=state.epoch, plan=state.plan, cause_offset=record.offset)]


def _wake(state: State, policy: CorePolicy, _record: LogRecord) -> list[Effect]:
    due = wakeups.earliest(state, policy)
    if due is None or due == state.wake_at_ms:
        return []
    state.wake_at_ms = due
    return [WakeAt(at_ms=due)]


def _alert(state: State, policy: CorePolicy, broken: dict[str, str]) -> list[Effect]:
    """Tell each standing alert once, until it clears."""
    standing = dict(broken)
    for room in (triggers, fleet, offers, refusals, rollout):
        standing |= room.standing_alerts(state, policy)
    told = [Alert(name=n, text=t) for n, t in sorted(standing.items()) if n not in state.alerts]
    state.alerts = standing
    return list(told)
