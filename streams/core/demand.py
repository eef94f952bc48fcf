"""From closed windows to the demand of services (house.md, "Demand").

Missing is not zero: only windows that were really closed count, and a class whose telemetry stopped
keeps the demand it was planned for.
"""

from collections.abc import Callable

from schemas.events import DemandClosed
from schemas.policy import CorePolicy, ServedClass
from schemas.problems import Service
from streams.core.state import State


def absorb(state: State, window: DemandClosed) -> None:
    """Keep a window unless it, or a later one of its key, is there: the first record wins.

    What is not served is not kept: a name that a client made up must not fill the state.
    """
    if state.policy is not None and window.key not in served_keys(state.policy):
        return
    windows = state.demand.setdefault(window.key, [])
    if windows and window.start_ms < windows[-1].end_ms:
        return
    windows.append(window)
    if state.policy is not None:
        del windows[: max(0, len(windows) - _kept(state.policy, window))]


def served_keys(policy: CorePolicy) -> set[str]:
    return {f"{served.model}/{served.slo_class}" for served in policy.served}


def _kept(policy: CorePolicy, window: DemandClosed) -> int:
    lookback = -(-policy.scale_down_after_ms // max(1, window.end_ms - window.start_ms))
    return max(policy.length_windows, policy.rate_windows + lookback + 1)


def arrival_rate(windows: list[DemandClosed], last: int) -> float:
    """Requests offered per second over the last `last` windows."""
    recent = windows[-last:]
    seconds = sum(w.end_ms - w.start_ms for w in recent) / 1000
    return sum(w.offered for w in recent) / seconds if seconds > 0 else 0.0


def peak_rate(windows: list[DemandClosed], policy: CorePolicy) -> float | None:
    """The greatest arrival rate within the scale-down look-back.

    None unless closed windows cover the look-back: what was not seen is not known to be low.
    """
    if not windows:
        return None
    since = windows[-1].end_ms - policy.scale_down_after_ms
    inside = [i for i, w in enumerate(windows) if w.end_ms > since]
    covered = sum(windows[i].end_ms - max(since, windows[i].start_ms) for i in inside)
    if covered < policy.scale_down_after_ms:
        return None
    return max(arrival_rate(windows[: i + 1], policy.rate_windows) for i in inside)


def per_arrival(served: ServedClass, windows: list[DemandClosed], policy: CorePolicy) -> dict[Service, float]:
    """Demand of each of the class's services per request/s that arrives."""
    mean_input, mean_output = _mean_lengths(served, windows[-policy.length_windows :], policy)
    units = {
        "prefill": mean_input,
        "decode": mean_output,
        "both": max(mean_input / served.mean_input_tokens, mean_output / served.mean_output_tokens),
    }
    return {
        Service(model=served.model, slo_class=served.slo_class, phase=phase): units[phase]
        for phase in served.phases
    }


def _mean_lengths(
    served: ServedClass, windows: list[DemandClosed], policy: CorePolicy
) -> tuple[float, float]:
    """Mean uncached input and output tokens of a request: measured once there are enough."""
    finished = sum(w.finished for w in windows)
    offered = sum(w.offered for w in windows)
    if finished < policy.length_min_requests or offered == 0:
        return served.mean_input_tokens, served.mean_output_tokens
    uncached = sum(w.input_tokens - w.cached_input_tokens for w in windows)
    return uncached / offered, sum(w.output_tokens for w in windows) / finished


def headroom_of(policy: CorePolicy, service_key: str, arrivals: float) -> float:
    """The factor on the demand of a service at so many requests/s; 1 for one that is not served."""
    for served in policy.served:
        for phase in served.phases:
            if Service(model=served.model, slo_class=served.slo_class, phase=phase).key == service_key:
                return served.headroom_at(phase, arrivals)
    return 1.0


def wanted_demand(state: State, policy: CorePolicy) -> dict[Service, float]:
    """The rate each service should be planned for, head-room included: its own, and the policy's for growth.

    A service inside its band (not above what was planned for, its recent peak not far below) keeps
    what was planned for: that is the hysteresis that keeps plans still while demand wavers.
    """
    wanted: dict[Service, float] = {}
    for served in policy.served:
        windows = state.demand.get(f"{served.model}/{served.slo_class}", [])
        for service, unit in per_arrival(served, windows, policy).items():
            planned = state.planned_for.get(service.key)
            if windows and not is_stale(state, windows, policy):
                wanted[service] = _within_band(windows, _needed(served, service, unit), planned, policy)
            elif planned is not None:
                wanted[service] = planned
    return wanted


Needed = Callable[[float], float]
"""Requests/s that arrive -> the throughput that serves them within the promises, in the service's unit."""


def _needed(served: ServedClass, service: Service, unit: float) -> Needed:
    return lambda arrivals: arrivals * unit * served.headroom_at(service.phase, arrivals)


def _within_band(
    windows: list[DemandClosed], needed: Needed, planned: float | None, policy: CorePolicy
) -> float:
    now = needed(arrival_rate(windows, policy.rate_windows))
    if planned is None or now > planned * (1 + policy.scale_up_margin):
        return now * (1 + policy.headroom)
    peak = peak_rate(windows, policy)
    if peak is not None:
        lower = max(now, needed(peak)) * (1 + policy.headroom)
        if lower < planned * (1 - policy.scale_down_margin):
            return lower
    return planned


def is_stale(state: State, windows: list[DemandClosed], policy: CorePolicy) -> bool:
    """Whether telemetry stopped, by log time."""
    return state.now_ms - windows[-1].end_ms > policy.demand_stale_after_ms


def stale_keys(state: State, policy: CorePolicy) -> list[str]:
    """Served classes whose telemetry was there and stopped."""
    keys = sorted(served_keys(policy) & state.demand.keys())
    return [k for k in keys if state.demand[k] and is_stale(state, state.demand[k], policy)]
