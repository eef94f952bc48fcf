"""From facts to a problem, and from its answer to a target, if the answer is worth the move."""

from collections import Counter

from schemas.allocation import AllocationPolicy
from schemas.base import digest
from schemas.events import Solved
from schemas.plans import Target
from schemas.policy import CorePolicy
from schemas.problems import Answer, Chosen, Problem, Running, Service, ServiceDemand, Stock
from streams.core import binding, refusals, startups
from streams.core.binding import stands
from streams.core.state import PendingSolve, State, Wish, stock_key
from streams.core.triggers import CALM, FORCED, NEEDS

Allocation = dict[tuple[str, str], int]
"""(template id, pool key) -> instances."""


def ask(
    state: State, policy: CorePolicy, wanted: dict[Service, float], stocks: list[Stock], reason: str
) -> PendingSolve:
    """Put the question: demand, stock and prices as of now, and what runs."""
    offset, unfit = state.offset + 1, refusals.unfit(state)
    problem = Problem(
        id=f"p{state.lineage}-{offset}",
        library=state.library,
        demands=tuple(
            ServiceDemand(service=s, rate=rate) for s, rate in sorted(wanted.items(), key=lambda i: i[0].key)
        ),
        stocks=tuple(stocks),
        running=_running(state, policy),
        startup_ratio={
            s.model: startups.expected_s(state, s) * 1000 / policy.adjust_interval_ms for s in policy.served
        },
        unfit=tuple(unfit.values()),
        excluded_configurations=policy.excluded_configurations,
        policy=_asked(state, policy, reason),
    )
    state.last_solve_ms = state.now_ms
    state.needs.clear()
    state.solved_with = {
        stock_key(s.pool, s.configuration): (s.usd_per_hour, s.nodes) for s in problem.stocks
    }
    state.solved_without = {key: place.tries for key, place in unfit.items()}
    return PendingSolve(problem=problem, reason=reason, cause_offset=offset, asked_ms=state.now_ms)


def _asked(state: State, policy: CorePolicy, reason: str) -> AllocationPolicy:
    """What a plan is asked for beyond demand; where the move must pay, that too, since the solver then weighs
    it with all that is asked."""
    asked = policy.allocation
    if asked == AllocationPolicy() or _must_move(state, reason):
        return asked
    least = max(asked.minimum_saving, policy.minimum_saving)
    return asked.model_copy(update={"minimum_saving": least})


def _must_move(state: State, reason: str) -> bool:
    """Whether an answer is taken even if it saves nothing."""
    return state.target is None or reason in FORCED


def _running(state: State, policy: CorePolicy) -> tuple[Running, ...]:
    kinds = {(i.template_id, i.pool.key): i for i in state.instances.values()}
    return tuple(
        Running(
            template=state.templates[kind.template_id],
            rating=kind.rating,
            pool=kind.pool,
            count=count,
            pinned=min(count, policy.pinned_of(kind.template_id, kind.pool)),
        )
        for kind, count in ((kinds[key], count) for key, count in sorted(_bound(state).items()))
    )


def is_asked_for(state: State, event: Solved) -> bool:
    """Whether an answer is to the question that is open; one of an older epoch is not."""
    pending = state.pending_solve
    return pending is not None and (event.epoch, event.problem) == (state.epoch, pending.problem.id)


def accept(state: State, policy: CorePolicy, event: Solved) -> bool:
    """Take an answer as the new target and bind it, if it is the one asked for and worth the move.

    Returns:
        Whether the target changed. An answer of an older epoch, or to another question, is dropped
        (a later leader asked again); one that only confirms what is there changes nothing.
    """
    pending = state.pending_solve
    if pending is None or not is_asked_for(state, event):
        return False
    state.pending_solve = None
    answer = event.answer
    if answer.stopped:
        ask_again(state, pending)
    else:
        # Also when the move is not worth it: the question is answered, and not to be put again.
        state.planned_for = {d.service.key: d.rate for d in pending.problem.demands}
    if not _is_worth_it(state, policy, pending, answer):
        return False
    if state.target is not None and answer.unmet == state.target.unmet and _same(state, answer):
        state.failed_solves = state.failed_solves if answer.stopped else 0
        return False
    if pending.reason in CALM and _interrupts(state, answer):
        return False
    _adopt(state, pending, answer)
    if binding.bind(state):
        # Stock that the core counted and cannot bind: ask again, less and less often.
        state.failed_solves += 1
        state.need("claim_refused")
    elif not answer.stopped:
        state.failed_solves = 0
    return True


def ask_again(state: State, pending: PendingSolve) -> None:
    """A solve that did not end as it should: demand still asks for it, or what broke; less and less often."""
    state.pending_solve = None
    state.failed_solves += 1
    if pending.reason in NEEDS:
        state.need(pending.reason)


def _adopt(state: State, pending: PendingSolve, answer: Answer) -> None:
    state.target = _target(state, pending, answer)
    _wish_for(state, answer)


def _interrupts(state: State, answer: Answer) -> bool:
    """Whether the move would take nodes from what serves before its replacement is there."""
    trial = state.model_copy(deep=True)
    _wish_for(trial, answer)
    binding.bind(trial)
    return binding.needs_serving_nodes(trial)


def _is_worth_it(state: State, policy: CorePolicy, pending: PendingSolve, answer: Answer) -> bool:
    """An answer that demand does not force must save a minimum share of what the fleet costs.

    Where more is asked of a plan than demand met at least cost, the solver has weighed that, with all of it
    (`_asked`): what runs may be cheaper, and not keep to a floor or a budget.
    """
    if state.target is None or _must_move(state, pending.reason):
        return True
    if policy.allocation != AllocationPolicy() and not answer.stopped:
        return not answer.kept
    unmet, before = (
        sum(policy.allocation.weight(u.service.model) * u.share for u in found)
        for found in (answer.unmet, state.target.unmet)
    )
    if unmet != before:
        return unmet < before  # never serve less to save
    return answer.usd_per_hour <= _cost_now(state, pending.problem) * (1 - policy.minimum_saving)


def _cost_now(state: State, problem: Problem) -> float:
    """What the accepted allocation costs at the prices the answer was found with, USD per hour."""
    prices = {stock_key(s.pool, s.configuration): s.usd_per_hour for s in problem.stocks}
    return sum(
        wish.count * prices.get(stock_key(wish.pool, node), 0.0)
        for wish in state.wishes
        for node in state.templates[wish.template_id].nodes
    )


def _same(state: State, answer: Answer) -> bool:
    """Whether an answer is what was wished for and still stands."""
    asked = {(c.template.id, c.pool.key): c.count for c in answer.chosen}
    hoped = {(wish.template_id, wish.pool.key): wish.count for wish in state.wishes}
    return asked == hoped == _bound(state)


def _bound(state: State) -> Allocation:
    """The instances of the target that stand, running or on their way."""
    return dict(
        Counter(
            (i.template_id, i.pool.key) for i in state.instances.values() if i.wanted and stands(state, i)
        )
    )


def _wish_for(state: State, answer: Answer) -> None:
    state.wishes = [_wish(chosen) for chosen in answer.chosen]
    state.templates |= {chosen.template.id: chosen.template for chosen in answer.chosen}


def _wish(chosen: Chosen) -> Wish:
    return Wish(
        template_id=chosen.template.id,
        rating=chosen.rating,
        service=chosen.service,
        pool=chosen.pool,
        count=chosen.count,
    )


def _target(state: State, pending: PendingSolve, answer: Answer) -> Target:
    return Target(
        id=f"t{state.lineage}-{state.offset + 1}",
        reason=pending.reason,
        cause_offset=pending.cause_offset,
        problem=pending.problem.id,
        inputs=digest(pending.problem),
        method=answer.method,
        usd_per_hour=answer.usd_per_hour,
        bound_usd_per_hour=answer.bound_usd_per_hour,
        gap=answer.gap,
        demand={d.service.key: d.rate for d in pending.problem.demands},
        unmet=answer.unmet,
        breaches=answer.breaches,
        stopped=answer.stopped,
    )
