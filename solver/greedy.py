"""A plan at once, by no search: the service that lacks most takes what covers most for its price and fits."""

import numpy as np

from solver.board import Board
from solver.compiled import compiled
from solver.knapsacks import EVEN, Items
from solver.plans import fits
from solver.program import Floats, Ints

MOST = 20_000
"""Instances at most."""


def greedy_plan(board: Board, weight: Floats) -> Ints:
    """Columns of `Existing`, one for each instance."""
    items, plan = board.items, np.empty(MOST, np.int64)
    service = np.repeat(np.arange(len(weight)), np.diff(items.begin))
    order = np.lexsort((items.cost / items.cover, service))
    return board.at[plan[: _fill(items, order, weight, board.right, plan)]]


@compiled
def _fill(items: Items, order: Ints, weight: Floats, right: Ints, plan: Ints) -> int:
    """How many instances there are."""
    lacks, at, runs, count = weight.copy(), items.begin[:-1].copy(), 0 * items.begin[:-1], 0
    drawn = np.zeros(len(right) + 1, np.int64)
    while count < len(plan):
        s = int(np.argmax(lacks))
        if lacks[s] <= EVEN:
            break
        if at[s] == items.begin[s + 1]:
            lacks[s] = 0.0  # nothing fits any more
            continue
        j = order[at[s]]
        if runs[s] < items.most[j] and fits(items, j, right, drawn):
            for row in items.use[j]:
                drawn[row] += 1
            lacks[s] -= weight[s] * items.cover[j]
            plan[count], count, runs[s] = j, count + 1, runs[s] + 1
        else:
            at[s], runs[s] = at[s] + 1, 0
    return count
