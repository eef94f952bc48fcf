"""What is left of the allocation once its rows have prices: one covering knapsack for each service.

With a price on every row, services no longer compete, and each covers its demand at its own least cost:
g(t), the least reduced cost of covering t of `GRID` steps, by dynamic programming. Shares are rounded *up* to
steps, so that a bound stays one. Three things make it cheap and tight:

- only undominated (step, cheapest column) pairs enter, a few dozen of a thousand columns;
- only the states that the whole demand can come down to are visited, where no more is asked;
- a plan that would break the stock by itself is not allowed: some column of a plan covers the most, and
  beside that one only what fits in the rest may follow (`_beside_one`).

Unmet demand is an item of its own, at a price per share, where it is allowed. All compiled; arrays of one
service are slices of those of all (`Items`), and a `Desk` holds what the loops scribble on.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from solver.program import Floats, Ints

GRID = 1000
"""Steps that a service's demand is cut into."""
LOOKAHEAD = 12
"""First columns tried before a plan that breaks the stock by itself is left as a bound."""
ONCE = 64
"""Columns of a service that are known to be used once at most; others count as if they could be repeated."""
Flags = NDArray[np.bool_]


class Items(NamedTuple):
    """Columns to search, by service; m of them, w the most nodes of one, R rows."""

    cost: Floats
    use: Ints
    """[m, w]: the row of each node, equal ones side by side; R (a row without a price) beyond the last."""
    run: Ints
    """[m, w]: how many nodes of that row so far."""
    step: Ints
    """Share covered, in steps, rounded up."""
    down: Ints
    """The same rounded down: plans made of it cover what they say."""
    cover: Floats
    service: Ints
    most: Ints
    """Instances; `FREE` where only rows limit them."""


class Desk(NamedTuple):
    """Scratch paper."""

    cheapest: Floats
    """[GRID + 1]: by step."""
    which: Ints
    steps: Ints
    """Of the undominated items, falling; with their reduced costs and columns."""
    costs: Floats
    columns: Ints
    least: Floats
    """g."""
    pick: Ints
    """The item that g takes first."""
    marked: Flags
    states: Ints
    drawn: Ints
    """[R + 1]."""
    left: Ints
    """[m]: columns."""
    sort: Floats
    once: Ints
    """[ONCE, GRID + 1]: for each column that may be used once, whether g takes it."""


def desk(columns: int, rows: int) -> Desk:
    """Paper for so many columns and rows."""
    ints, wide = np.int64, GRID + 2
    return Desk(
        np.empty(wide), np.empty(wide, ints), np.empty(wide, ints), np.empty(wide), np.empty(wide, ints),
        np.empty(wide), np.empty(wide, ints), np.zeros(wide, np.bool_), np.empty(wide, ints),
        np.zeros(rows + 1, ints), np.empty(columns, ints), np.empty(columns), np.full((ONCE, wide), -1, ints),
    )  # fmt: skip


@njit(cache=True)
def reduced(items: Items, columns: Ints, price: Floats, red: Floats) -> None:
    """red[j] = cost and what its nodes draw at the rows' prices ([R + 1], 0 last)."""
    for j in columns:
        total = items.cost[j]
        for at in range(items.use.shape[1]):
            total += price[items.use[j, at]]
        red[j] = total


@njit(cache=True)
def undominated(columns: Ints, red: Floats, step: Ints, desk: Desk) -> int:
    """Items that no larger step gives cheaper; onto the desk. How many."""
    for k in range(GRID + 1):
        desk.cheapest[k] = np.inf
    for j in columns:
        if red[j] < desk.cheapest[step[j]]:
            desk.cheapest[step[j]] = red[j]
            desk.which[step[j]] = j
    count, low = 0, np.inf
    for k in range(GRID, 0, -1):
        if desk.cheapest[k] < low:
            low = desk.cheapest[k]
            desk.steps[count], desk.costs[count], desk.columns[count] = k, low, desk.which[k]
            count += 1
    return count


@njit(cache=True)
def _state(t: int, count: int, desk: Desk) -> None:
    best, pick = np.inf, -1
    for q in range(count):
        rest = t - desk.steps[q]
        cost = desk.costs[q] + (desk.least[rest] if rest > 0 else 0.0)
        if cost < best:
            best, pick = cost, q
    desk.least[t], desk.pick[t] = best, pick


@njit(cache=True)
def cover_all(count: int, top: int, desk: Desk) -> None:
    """g up to `top`."""
    desk.least[0], desk.pick[0] = 0.0, -1
    for t in range(1, top + 1):
        _state(t, count, desk)


@njit(cache=True)
def cover_one(count: int, top: int, desk: Desk) -> None:
    """g at `top` and at what it comes down to; elsewhere g says nothing."""
    desk.states[0], size, at = top, 1, 0
    while at < size:
        t = desk.states[at]
        at += 1
        for q in range(count):
            rest = t - desk.steps[q]
            if rest > 0 and not desk.marked[rest]:
                desk.marked[rest] = True
                desk.states[size] = rest
                size += 1
    desk.least[0], desk.pick[0] = 0.0, -1
    for t in np.sort(desk.states[:size]):
        desk.marked[t] = False
        _state(t, count, desk)


@njit(cache=True)
def use_once(columns: Ints, red: Floats, step: Ints, top: int, desk: Desk) -> int:
    """Let g use each of these columns once as well. How many entered."""
    count = 0
    for j in columns:
        for t in range(top, 0, -1):
            rest = max(0, t - step[j])
            taken = desk.least[rest] + red[j] < desk.least[t]
            desk.once[count, t] = j if taken else -1
            if taken:
                desk.least[t] = desk.least[rest] + red[j]
        count += 1
    return count


@njit(cache=True)
def trace(top: int, once: int, step: Ints, desk: Desk, plan: Ints, size: int) -> int:
    """Append the columns of g[top] to a plan of `size`; its new size."""
    t = top
    for layer in range(once - 1, -1, -1):
        j = desk.once[layer, t] if t > 0 else -1
        if j >= 0:
            plan[size] = j
            size += 1
            t = max(0, t - step[j])
    while t > 0:
        q = desk.pick[t]
        plan[size] = desk.columns[q]
        size += 1
        t -= desk.steps[q]
    return size


@njit(cache=True)
def fits(items: Items, j: int, room: Ints) -> bool:
    """Whether one instance fits in this room ([R + 1])."""
    for at in range(items.use.shape[1]):  # noqa: SIM110  # Numba knows no generators
        if items.run[j, at] > room[items.use[j, at]]:
            return False
    return True


@njit(cache=True)
def draw(items: Items, j: int, sign: int, drawn: Ints) -> None:
    """Add what an instance draws to `drawn` [R + 1]."""
    for at in range(items.use.shape[1]):
        drawn[items.use[j, at]] += sign


@njit(cache=True)
def breaks(items: Items, plan: Ints, room: Ints, drawn: Ints) -> bool:
    """Whether the instances of a plan together exceed the room of its service."""
    broken, last = False, len(room) - 1
    for j in plan:
        draw(items, j, 1, drawn)
    for j in plan:
        for at in range(items.use.shape[1]):
            row = items.use[j, at]
            if row < last and drawn[row] > room[row]:
                broken = True
    for j in plan:
        draw(items, j, -1, drawn)
    return broken


@njit(cache=True)
def beside_one(
    items: Items, columns: Ints, red: Floats, room: Ints, top: int, desk: Desk, spare: Desk
) -> tuple[float, int]:
    """Least reduced cost of covering `top`, where what follows the first column must fit beside it.

    g must lie on the desk up to `top`. The bound, and its first column (-1: nothing covers it).
    """
    for x in range(len(columns)):
        rest = top - items.step[columns[x]]
        desk.sort[x] = red[columns[x]] + (desk.least[rest] if rest > 0 else 0.0)
    best, first, tries = np.inf, -1, 0
    for x in np.argsort(desk.sort[: len(columns)], kind="mergesort"):
        j, rest = columns[x], top - items.step[columns[x]]
        if desk.sort[x] >= best:
            break
        if rest <= 0 or tries >= LOOKAHEAD:
            best, first = desk.sort[x], j
            break
        tries += 1  # noqa: SIM113  # it counts those that get here
        draw(items, j, 1, desk.drawn)
        size = 0
        for other in columns:
            if items.step[other] <= items.step[j] and _fits_beside(items, other, room, desk.drawn):
                spare.left[size] = other
                size += 1
        draw(items, j, -1, desk.drawn)
        count = undominated(spare.left[:size], red, items.step, spare)
        if count:
            cover_one(count, rest, spare)
            if red[j] + spare.least[rest] < best:
                best, first = red[j] + spare.least[rest], j
    return best, first


@njit(cache=True)
def _fits_beside(items: Items, j: int, room: Ints, drawn: Ints) -> bool:
    last = len(room) - 1
    for at in range(items.use.shape[1]):
        row = items.use[j, at]
        if row < last and items.run[j, at] + drawn[row] > room[row]:
            return False
    return True
