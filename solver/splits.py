"""What a combination's parts give: the value that its own placement has to beat (lossless pruning)."""

import numpy as np

from solver.compiled import compiled
from solver.kept import Bytes
from solver.shapes import Floats
from solver.space import Longs


@compiled
def best_splits(rows: Bytes, best: Floats, starts: Longs, choose: Longs) -> Floats:
    """The most that each combination gives as two parts, each in its own best use.

    A template that gives no more is never needed: the parts take the same nodes of the same pool at the same
    price and start-up penalty, and each part's best is itself the best of its own splits.

    Args:
        rows: combinations of one size, shape (n, size).
        best: flat table of what smaller combinations give whole or split (`Space.starts`).
        starts, choose: of the space.
    """
    count, size = rows.shape
    whole = (1 << size) - 1
    most = np.zeros(count)
    for i in range(count):
        for part in range(1, 1 << (size - 1)):  # the last node is in the rest: every split once
            given = 0.0
            for mask in (part, whole ^ part):
                rank, taken = 0, 0
                for node in range(size):
                    if mask >> node & 1:
                        rank += choose[rows[i, node] + taken, taken + 1]
                        taken += 1
                given += best[starts[taken] + rank]
            most[i] = max(most[i], given)
    return most
