"""Column fixing over all columns: what using one at least once costs more than the bound says (solver.md)."""

import numpy as np
from numba import njit

from solver.knapsacks import GRID, Flags
from solver.program import Floats, Ints


def slacks(
    red: Floats, step: Ints, service: Ints, once: Ints, spare: Ints, dear: Floats
) -> tuple[float, Floats]:
    """The sum of the services' knapsacks, and how much more each column makes it at least.

    Args:
        red: [m], reduced costs.
        step: [m], shares covered, in steps of `GRID`, rounded up.
        service: [m].
        once: columns that may be used once only.
        spare: [S], steps that may stay unmet, at `dear` a share.
    """
    services = len(dear)
    cheapest = np.full((services, GRID + 1), np.inf)
    apart = np.zeros(len(red), np.bool_)
    apart[once] = True
    _cheapest(red, step, service, apart, cheapest)
    rest = np.zeros((services, GRID + 1))
    total = 0.0
    for s in range(services):
        least = np.empty(GRID + 1)
        _knapsack(cheapest[s], least)
        for j in once[service[once] == s]:
            _once_more(red[j], step[j], least)
        _leave(least, int(spare[s]), float(dear[s]), rest[s])
        total += rest[s, 0]
        if not np.isfinite(rest[s, 0]):
            return np.inf, np.full(len(red), np.inf)
        rest[s] -= rest[s, 0]
    return total, red + rest[service, step]


@njit(cache=True)
def _cheapest(red: Floats, step: Ints, service: Ints, apart: Flags, cheapest: Floats) -> None:
    for j in range(len(red)):
        if not apart[j] and red[j] < cheapest[service[j], step[j]]:
            cheapest[service[j], step[j]] = red[j]


@njit(cache=True)
def _knapsack(cheapest: Floats, least: Floats) -> None:
    """g over all steps, from the cheapest item of each."""
    steps, costs = np.empty(GRID, np.int64), np.empty(GRID)
    count, low = 0, np.inf
    for k in range(GRID, 0, -1):
        if cheapest[k] < low:
            low = cheapest[k]
            steps[count], costs[count] = k, low
            count += 1
    least[0] = 0.0
    for t in range(1, GRID + 1):
        best = np.inf
        for q in range(count):
            rest = t - steps[q]
            best = min(best, costs[q] + (least[rest] if rest > 0 else 0.0))
        least[t] = best


@njit(cache=True)
def _once_more(cost: float, step: int, least: Floats) -> None:
    for t in range(GRID, 0, -1):
        least[t] = min(least[t], cost + least[max(0, t - step)])


@njit(cache=True)
def _leave(least: Floats, spare: int, dear: float, rest: Floats) -> None:
    """rest[k]: least cost once k steps are covered, of the rest and of what stays unmet."""
    for k in range(GRID + 1):
        best = np.inf
        for t in range(GRID - spare, GRID + 1):
            best = min(best, least[max(0, t - k)] + dear * (GRID - t) / GRID)
        rest[k] = best
