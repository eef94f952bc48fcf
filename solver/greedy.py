"""Whole plans, made one service after the other at the rows' prices, which say what others would pay."""

import numpy as np
from numba import njit

from solver.knapsacks import GRID, Desk, Items, cover_all, draw, fits, undominated
from solver.lagrangian import Place
from solver.program import Floats, Ints

MET = 1e-9
"""A share left below this is rounding."""


@njit(cache=True)
def plan_all(
    items: Items,
    place: Place,
    order: Ints,
    red: Floats,
    left: Floats,
    spare: Floats,
    limit: float,
    taken: Ints,
    desk: Desk,
    plan: Ints,
) -> tuple[float, int]:
    """A plan within room and stock, for services in this order.

    Args:
        left: [S], shares to cover; becomes what stays unmet.
        spare: [S], shares of it that may stay unmet, at `place.dear`.
        limit: give up at this value.
        taken: [m], instances that are there already; becomes those with the plan's.

    Returns:
        Its value, infinite if there is none, and its number of columns in `plan`: below 0, -1 - s, where
        nothing was left that covers service s.
    """
    stock = np.append(place.right, 1e9)
    room = np.empty(len(stock), np.int64)
    value, size = 0.0, 0
    for s in order:
        columns = place.columns[place.begin[s] : place.begin[s + 1]]
        own = place.room[s].copy()
        while left[s] > MET:
            for row in range(len(stock)):
                room[row] = min(float(own[row]), stock[row] + MET)
            before = size
            size = _add(items, columns, red, left[s], spare[s], place.dear[s], room, taken, desk, plan, size)
            if size < 0:
                return np.inf, -1 - s
            if size == before:
                break
            for j in plan[before:size]:
                value += items.cost[j]
                left[s] -= items.cover[j]
                for at in range(items.use.shape[1]):
                    stock[items.use[j, at]] -= 1
                    own[items.use[j, at]] -= 1
        left[s] = max(0.0, left[s])
        value += place.dear[s] * left[s]
        if value >= limit:
            return np.inf, 0
    return value, size


@njit(cache=True)
def _add(
    items: Items,
    columns: Ints,
    red: Floats,
    left: float,
    spare: float,
    dear: float,
    room: Ints,
    taken: Ints,
    desk: Desk,
    plan: Ints,
    size: int,
) -> int:
    """Append those columns of the cheapest cover that fit, the largest first; -1 if nothing covers enough."""
    free = 0
    for j in columns:
        if taken[j] < items.most[j] and fits(items, j, room):
            desk.left[free] = j
            free += 1
    top = min(GRID, int(np.ceil(left * GRID - 1e-7)))
    count = undominated(desk.left[:free], red, items.down, desk)
    cover_all(count, top, desk)
    best, t = np.inf, top
    for to in range(top, max(0, int(np.ceil((left - spare) * GRID - 1e-7))) - 1, -1):
        cost = desk.least[to] + dear * max(0.0, left - to / GRID)
        if cost < best:
            best, t = cost, to
    if best == np.inf:
        return -1
    start = size
    while t > 0:
        plan[size] = desk.columns[desk.pick[t]]
        t -= desk.steps[desk.pick[t]]
        size += 1
    cover = items.cover[plan[start:size]]
    chosen = plan[start:size][np.argsort(-cover, kind="mergesort")]
    size = start
    for j in chosen:
        if left <= MET or taken[j] >= items.most[j] or not fits(items, j, room):
            break
        draw(items, j, -1, room)
        taken[j] += 1
        left -= items.cover[j]
        plan[size] = j
        size += 1
    return size
