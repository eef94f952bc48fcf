"""A small discrete-event simulation of what `solver.headroom` approximates: slots that requests queue for.

Capacity is a whole number of slots, so what is needed is known to one slot; `needed` says both sides.
"""

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from solver.shapes import Floats


class Needed(NamedTuple):
    """Capacity over offered load: the most that did not keep the promise, and the least that did."""

    too_little: float
    enough: float


def waits_s(arrivals_s: Floats, busy_s: Floats, slots: int) -> Floats:
    """What each request waits for a slot, first come first served."""
    free = [0.0] * slots
    waits = np.empty_like(arrivals_s)
    for i, (arrival, busy) in enumerate(zip(arrivals_s.tolist(), busy_s.tolist(), strict=True)):
        start = max(arrival, heapq.heappop(free))
        heapq.heappush(free, start + busy)
        waits[i] = start - arrival
    return waits


def for_ttft(arrivals_s: Floats, busy_s: Floats, wait_s: float, percentile: float) -> Needed:
    """Slots in which the percentile of requests waits no longer than this."""
    offered = float(busy_s.sum() / arrivals_s[-1])

    def kept(slots: int) -> bool:
        return bool((waits_s(arrivals_s, busy_s, slots) > wait_s).mean() <= 1 - percentile / 100)

    slots = _least(kept, max(1, int(offered)))
    return Needed((slots - 1) / offered, slots / offered)


def for_tpot(arrivals_s: Floats, busy_s: Floats, percentile: float) -> Needed:
    """Slots that the percentile of requests find taken at most, their own among them, where nobody queues."""
    ends = np.sort(arrivals_s + busy_s)
    taken = np.arange(1, len(arrivals_s) + 1) - np.searchsorted(ends, arrivals_s, side="right")
    slots = int(np.quantile(taken, percentile / 100, method="inverted_cdf"))
    offered = float(busy_s.sum() / arrivals_s[-1])
    return Needed((slots - 1) / offered, slots / offered)


def _least(kept: Callable[[int], bool], start: int) -> int:
    """The least number for which `kept` is true, if it stays true above."""
    low, high = 0, start
    while not kept(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if kept(middle) else (middle, high)
    return high


def poisson(rng: np.random.Generator, per_s: float, requests: int) -> Floats:
    return np.cumsum(rng.exponential(1 / per_s, requests))


def modulated(rng: np.random.Generator, per_s: float, requests: int, cv2: float, holds_s: float) -> Floats:
    """Poisson arrivals whose rate is drawn anew every `holds_s`, gamma distributed with this variation."""
    spans = int(requests / per_s / holds_s)
    rates = per_s * rng.gamma(1 / cv2, cv2, spans)
    counts = rng.poisson(rates * holds_s)
    inside = [np.sort(rng.uniform(i, i + 1, n)) * holds_s for i, n in enumerate(counts)]
    return np.concatenate(inside)
