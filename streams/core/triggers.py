"""When to solve again, and why: every solve has one named reason.

A need (something the target rests on broke) waits for `urgent_interval_ms` since the last solve, so
that a burst of them is solved once; every other reason waits for `solve_interval_ms`.
"""

from schemas.policy import CorePolicy
from schemas.problems import Service, Stock
from streams.core import demand, fleet, refusals
from streams.core.state import State, stock_key

NEEDS = frozenset({"node_lost", "claim_refused", "instance_failed", "notice", "operator", "policy"})
"""Something the target rests on broke, or is asked for otherwise; kept in `state.needs` until it was solved
for."""

CALM = frozenset({"price", "availability", "periodic"})
"""Reasons that are worth a saving, and no interruption of what serves."""

FORCED = NEEDS | {"demand_up"}
"""Reasons for which an answer is taken even if it saves nothing: the target cannot stand."""


def due_reason(
    state: State, policy: CorePolicy, wanted: dict[Service, float], stocks: list[Stock]
) -> str | None:
    """Why to solve now; None when there is no reason, or when it is too early for the one there is."""
    if state.pending_solve is not None or not stocks or not wanted:
        return None
    if state.now_ms < earliest_ms(state, policy):
        return None
    if fleet.is_blind(state, policy):
        return None  # What a blind listener sees is no ground to move on: hold.
    return _reason(state, policy, wanted, stocks)


def earliest_ms(state: State, policy: CorePolicy) -> int:
    """From when on the next solve may be asked for, in log time."""
    if state.last_solve_ms is None:
        return 0
    wait = policy.urgent_interval_ms if state.needs else policy.solve_interval_ms
    # A solver that keeps failing is not asked more and more often.
    return state.last_solve_ms + min(wait << state.failed_solves, policy.adjust_interval_ms)


def _reason(
    state: State, policy: CorePolicy, wanted: dict[Service, float], stocks: list[Stock]
) -> str | None:
    if state.needs:
        return state.needs[0]
    if state.last_solve_ms is None:
        return "first"
    return (
        _demand_reason(state, wanted)
        or _price_reason(state, policy, stocks)
        or _availability_reason(state, stocks)
        or _periodic_reason(state, policy)
    )


def _demand_reason(state: State, wanted: dict[Service, float]) -> str | None:
    moves = [rate - state.planned_for.get(service.key, 0.0) for service, rate in wanted.items()]
    if any(move > 0 for move in moves):
        return "demand_up"
    return "demand_down" if any(move < 0 for move in moves) else None


def _price_reason(state: State, policy: CorePolicy, stocks: list[Stock]) -> str | None:
    """A price moved of something that is held or could be had; what is out of stock has no price."""
    held = {stock_key(c.claim.pool, c.claim.configuration) for c in state.claims.values()}
    for stock in stocks:
        key = stock_key(stock.pool, stock.configuration)
        known = state.solved_with.get(key)
        if known is None or (stock.nodes == 0 and key not in held):
            continue
        moved = abs(stock.usd_per_hour - known[0])
        if moved > 0 and moved >= policy.price_change * known[0]:  # what is paid anyway stays at 0
            return "price"
    return None


def _availability_reason(state: State, stocks: list[Stock]) -> str | None:
    """Stock came or went where it matters: from or to nothing, or more of it while something is short.

    A place that refused a model and may be tried, or can run it after all, is more stock for that model.
    """
    short = state.target is not None and bool(state.target.unmet or state.target.breaches)
    unfit = refusals.unfit(state)
    if short and any(
        key not in unfit or unfit[key].tries > tries for key, tries in state.solved_without.items()
    ):
        return "availability"
    for stock in stocks:
        known = state.solved_with.get(stock_key(stock.pool, stock.configuration))
        before = known[1] if known is not None else 0
        if (stock.nodes > 0) != (before > 0) or (short and stock.nodes > before):
            return "availability"
    return None


def _periodic_reason(state: State, policy: CorePolicy) -> str | None:
    elapsed = state.now_ms - (state.last_solve_ms or 0)
    return "periodic" if elapsed >= policy.adjust_interval_ms else None


def standing_alerts(state: State, policy: CorePolicy) -> dict[str, str]:
    """Stale telemetry, unmet demand and policies kept in part, by alert name."""
    alerts = {f"TelemetryStale:{k}": f"no closed window of {k}" for k in demand.stale_keys(state, policy)}
    if state.target is not None:
        for unmet in state.target.unmet:
            key = unmet.service.key
            alerts[f"UnmetDemand:{key}"] = f"{unmet.share:.0%} of {key} unmet, bound by {unmet.binding}"
        for breach in state.target.breaches:
            short = f"{breach.got} of {breach.asked} for {breach.subject}"
            alerts[f"PolicyBreach:{breach.policy}:{breach.subject}"] = f"{breach.policy}: {short}"
    for pin in policy.pinned:
        here = (pin.template, pin.pool)
        if (runs := sum((i.template_id, i.pool) == here for i in state.instances.values())) < pin.count:
            where = f"{pin.template} in {pin.pool.key}"
            alerts[f"PolicyBreach:pinned:{where}"] = f"pinned: {runs} of {pin.count} for {where} run"
    return alerts
