"""By how much kept templates beat their parts: whether a library is as large as it is for hardly anything.

A pruning that took near-ties for ties would lose up to that margin of a plan's cost with every split, so what
it would save has to be known first (docs/templates.md).
"""

import numpy as np

from solver.kept import Kept
from solver.shapes import Flags, Floats
from solver.space import Space
from solver.splits import best_splits


def margins(kept: Kept, configurations: int) -> Floats:
    """Throughput over what the best two parts give together, less 1; infinite where no part serves.

    Args:
        kept: of one variant that competes with no other: their parts would be missing.
        configurations: how many its rows refer to.
    """
    space = Space(configurations, kept.combination.shape[1])
    best, found = np.zeros(space.starts[-1]), np.full(len(kept), np.inf)
    sizes = (kept.combination >= 0).sum(axis=1)
    for size, rows in enumerate(space.by_size, start=1):
        parts = best_splits(rows, best, space.starts, space.choose)
        here = np.flatnonzero(sizes == size)
        ranks, own = space.ranks(kept.combination[here, :size]), kept.throughput[here]
        found[here] = np.divide(own, parts[ranks], out=np.full(len(here), np.inf), where=parts[ranks] > 0) - 1
        parts[ranks] = own
        best[space.starts[size] : space.starts[size + 1]] = parts
    return found


def in_need(kept: Kept) -> Flags:
    """Whether some node of a row cannot serve alone: parts may leave idle what the whole makes use of."""
    alone = kept.combination[(kept.combination >= 0).sum(axis=1) == 1, 0]
    nodes = kept.combination
    needy: Flags = (nodes >= 0) & ~np.isin(nodes, alone)
    found: Flags = np.any(needy, axis=1)
    return found
