"""The core's own demand rule, fed with a trace: its capacity, and who got what was promised.

Solving is instant and every wish is granted; added capacity serves `START_S` later, and what is given back
stops at once. Capacity is what was planned for: nothing is rounded up to whole instances, which would help.
"""

import heapq
from bisect import bisect_right

import numpy as np

from schemas.events import DemandClosed
from schemas.policy import CorePolicy
from solver.headroom import Promise
from solver.shapes import Floats
from streams.core.demand import absorb, wanted_demand
from streams.core.state import State

WINDOW_S = 10.0
START_S = 320.0
"""A solve and a start-up, as head-room's horizon has them."""

Capacity = list[tuple[float, float]]
"""(from when in seconds, requests/s), in order of time."""


def capacity(arrivals_s: Floats, policy: CorePolicy) -> Capacity:
    """What serves over time, where the policy serves one class in phase `both`."""
    (served,) = policy.served
    state = State()
    state.policy = policy
    changes: Capacity = []
    bounds = np.arange(int(arrivals_s[-1] // WINDOW_S) + 1) * WINDOW_S
    for start_s, offered in zip(bounds, np.histogram(arrivals_s, bins=bounds)[0].tolist(), strict=False):
        window = _window(served.model, served.slo_class, int(start_s * 1000), offered)
        state.now_ms = window.end_ms
        absorb(state, window)
        ((service, rate),) = wanted_demand(state, policy).items()
        before = state.planned_for.get(service.key, 0.0)
        if rate != before:
            state.planned_for[service.key] = rate
            changes.append((window.end_ms / 1000 + (START_S if rate > before else 0.0), rate))
    return _in_force(changes)


def _in_force(changes: Capacity) -> Capacity:
    """By time; a start that a later change overtook comes to nothing, as the plan no longer has it."""
    last: Capacity = []
    for at_s, rate in changes:
        last = [change for change in last if change[0] < at_s] + [(at_s, rate)]
    return last


def _window(model: str, slo_class: str, start_ms: int, offered: int) -> DemandClosed:
    return DemandClosed(
        model=model,
        slo_class=slo_class,
        start_ms=start_ms,
        end_ms=start_ms + int(WINDOW_S * 1000),
        partition=0,
        sources=1,
        offered=offered,
        refused=0,
        finished=0,
        input_tokens=0,
        cached_input_tokens=0,
        output_tokens=0,
    )


def share_kept(arrivals_s: Floats, busy_s: Floats, promise: Promise, given: Capacity) -> float:
    """Of the requests that came once capacity was there, those that got a slot within the promise's wait."""
    since, rates = [at for at, _ in given], [rate for _, rate in given]
    running: list[float] = []
    turn, kept, counted = 0.0, 0, 0
    for arrival, busy in zip(arrivals_s.tolist(), busy_s.tolist(), strict=True):
        if arrival < since[0]:
            continue
        turn = max(turn, arrival)
        while True:
            while running and running[0] <= turn:
                heapq.heappop(running)
            if len(running) < max(1, rates[bisect_right(since, turn) - 1] * promise.busy_s):
                break
            turn = running[0]
        heapq.heappush(running, turn + busy)
        counted += 1
        kept += turn - arrival <= promise.wait_s + 1e-9
    return kept / counted
