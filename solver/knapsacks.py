"""What is left of the allocation once its rows have prices: one covering knapsack for each service.

With a price on every row services no longer compete, and each covers its share at its own least cost. A
dynamic program over the share covered, on a grid, bounds that cost from below: shares are rounded *up* to
steps, and a plan may break the stock. It also bounds what any part of a plan can come to, so the plans that
are not too dear can be listed (`solver.plans`).

Instances that run already are columns that can be used once. They come first, and the table has a row for
each: row k knows of those from the k-th on, and of all columns that may be repeated.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solver.compiled import compiled
from solver.program import Floats, Ints

GRID = 2000
"""Steps that a whole demand is cut into."""
ONCE = 48
"""Rows of the table at most; further columns that can be used once count there as if they could be
repeated."""
EVEN, ROUNDING = 1e-9, 1e-7
"""Shares, and steps, that differ by less are the same."""
Shorts = NDArray[np.int16]
Flags = NDArray[np.bool_]


class Items(NamedTuple):
    """Columns by service, in each those first that can be used once; m of them, w nodes at most, R rows."""

    cost: Floats
    use: Shorts
    """[m, w]: the row of each node, R beyond the last."""
    step: Ints
    """Share covered, in steps, rounded up."""
    cover: Floats
    most: Ints
    """Instances; `FREE` where only rows limit them."""
    begin: Ints
    """[S + 1]: where each service's columns begin."""
    once: Ints
    """[S]: how many of them can be used once."""


class Ask(NamedTuple):
    """What each service is to be given."""

    share: Floats
    """[S]: of its demand."""
    spare: Floats
    """[S]: shares of that which may be left unmet,"""
    dear: Floats
    """[S]: at so much a share."""


class Want(NamedTuple):
    """The same of one service, and in steps."""

    share: float
    spare: float
    dear: float
    need: int
    """`share`."""
    left: int
    """`spare`, rounded up."""


@compiled
def want(ask: Ask, s: int) -> Want:
    """Of a service."""
    need = int(np.ceil(ask.share[s] * GRID - ROUNDING))
    left = min(need, int(np.ceil(ask.spare[s] * GRID - ROUNDING)))
    return Want(ask.share[s], ask.spare[s], ask.dear[s], need, left)


class Table(NamedTuple):
    """Scratch paper for one service after the other."""

    red: Floats
    """[m]: reduced costs."""
    least: Floats
    """[ONCE + 1, GRID + 1]: least reduced cost of so many steps."""
    open: Floats
    """The same, with what may be left unmet."""
    pick: Ints
    """The column that `least` takes first; -1 for none of this row's."""
    cheapest: Floats
    """By step, with its column."""
    which: Ints
    steps: Ints
    """Of the undominated columns, falling; with their reduced costs."""
    costs: Floats
    columns: Ints


def table(columns: int) -> Table:
    """Scratch paper for so many columns."""
    wide, long = (ONCE + 1, GRID + 1), GRID + 1
    return Table(
        red=np.empty(columns),
        least=np.empty(wide),
        open=np.empty(wide),
        pick=np.empty(wide, np.int64),
        cheapest=np.empty(long),
        which=np.empty(long, np.int64),
        steps=np.empty(long, np.int64),
        costs=np.empty(long),
        columns=np.empty(long, np.int64),
    )


@compiled
def fill(items: Items, s: int, price: Floats, wanted: Want, paper: Table) -> int:
    """A service's table at these prices of rows ([R + 1], 0 last); returns how many rows it has before the
    last."""
    low, high = items.begin[s], items.begin[s + 1]
    for j in range(low, high):
        total = items.cost[j]
        for at in range(items.use.shape[1]):
            total += price[items.use[j, at]]
        paper.red[j] = total
    rows = min(items.once[s], ONCE)
    _repeat(items, low + rows, high, wanted.need, rows, paper)
    for k in range(rows - 1, -1, -1):
        _once(paper.red[low + k], items.step[low + k], low + k, wanted.need, k, paper)
    for k in range(rows + 1):
        leave(paper.least[k], paper.open[k], wanted, paper.steps)
    return int(rows)


@compiled
def _repeat(items: Items, low: int, high: int, need: int, row: int, paper: Table) -> None:
    """The last row: columns that can be repeated.

    So many steps are covered by one column that covers as many or more, the cheapest, or by one that covers
    fewer and by what is best for the rest. Only columns that nothing betters for what they cover themselves
    are worth trying there: few dozens of a thousand.
    """
    cheapest, which = paper.cheapest, paper.which
    cheapest[:], which[:] = np.inf, -1
    for j in range(low, high):
        step = min(items.step[j], need)
        if paper.red[j] < cheapest[step]:
            cheapest[step], which[step] = paper.red[j], j
    cover(need, row, paper)


@compiled
def cover(need: int, row: int, paper: Table) -> None:
    """A row of the table from the cheapest column of each step."""
    cheapest, which, least, pick = paper.cheapest, paper.which, paper.least[row], paper.pick[row]
    single, column = np.inf, -1
    for step in range(need, 0, -1):
        if cheapest[step] < single:
            single, column = cheapest[step], which[step]
        least[step], pick[step] = single, column
    least[0], pick[0] = 0.0, -1
    count = 0
    for t in range(1, need + 1):
        for q in range(count):
            cost = paper.costs[q] + least[t - paper.steps[q]]
            if cost < least[t]:
                least[t], pick[t] = cost, paper.columns[q]
        if which[t] >= 0 and cheapest[t] <= least[t]:
            paper.steps[count], paper.costs[count], paper.columns[count] = t, cheapest[t], which[t]
            count += 1


@compiled
def _once(red: float, step: int, column: int, need: int, row: int, paper: Table) -> None:
    """A row from the next: the same, or this column and then the next row."""
    least, pick, after = paper.least[row], paper.pick[row], paper.least[row + 1]
    for t in range(need + 1):
        least[t], pick[t] = after[t], -1
        if t > 0 and red + after[max(0, t - step)] < after[t]:
            least[t], pick[t] = red + after[max(0, t - step)], column


@compiled
def leave(least: Floats, open_: Floats, wanted: Want, queue: Ints) -> None:
    """open[t] = min over q up to what may be left of least[t - q] + dear q: the least of a sliding window of
    least[t] - dear t, whose candidates stand in a queue, rising."""
    need, dear = wanted.need, wanted.dear / GRID
    if wanted.left == 0:
        open_[: need + 1] = least[: need + 1]
        return
    head, tail = 0, 0
    for t in range(need + 1):
        while tail > head and least[queue[tail - 1]] - dear * queue[tail - 1] >= least[t] - dear * t:
            tail -= 1
        queue[tail] = t
        tail += 1
        if queue[head] < t - wanted.left:
            head += 1
        open_[t] = least[queue[head]] + dear * (t - queue[head])


@compiled
def trace(items: Items, rows: int, wanted: Want, paper: Table, plan: Ints) -> int:
    """The columns of the cheapest plan by the table into `plan`; how many."""
    t = wanted.need
    for q in range(wanted.left + 1):
        if paper.least[0, wanted.need - q] + wanted.dear / GRID * q <= paper.open[0, wanted.need] + EVEN:
            t = wanted.need - q
            break
    size, row = 0, 0
    while t > 0 and size < len(plan):
        column = paper.pick[row, t]
        if row < rows:
            row += 1
        elif column < 0:
            break
        if column >= 0:
            plan[size] = column
            size += 1
            t -= items.step[column]
    return size
