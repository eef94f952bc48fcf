"""The combinations of a set-up: multisets of its configurations, by size, each with a rank.

A combination of k nodes is a row of k indices of configurations in rising order. c_1 <= ... <= c_k becomes a
set by adding 0 .. k-1, and a set has a rank by its binomials (the combinatorial number system):

    rank = sum over i of C(c_i + i - 1, i)

So a table of one figure a combination is an array, and a part of a combination finds its own by arithmetic.
Rows in the order of their ranks begin alike: those of the first v configurations come before all others.
"""

from dataclasses import dataclass, field
from functools import cached_property
from math import comb

import numpy as np
from numpy.typing import NDArray

from solver.kept import Bytes
from solver.shapes import Floats

Longs = NDArray[np.int64]

MOST_CONFIGURATIONS = 127
"""Indices are single bytes."""
MOST_NODES = 100
"""So many on one chain or stage are beyond all use, and their places, too, are single bytes."""
MOST_COMBINATIONS = 50_000_000
"""Some 20 bytes each, and as many again for each variant."""


@dataclass(frozen=True)
class Space:
    """All multisets of 1 to `n_max` out of `configurations`."""

    configurations: int
    n_max: int
    choose: Longs = field(init=False, repr=False)
    """[n, k]: binomials."""
    starts: Longs = field(init=False, repr=False)
    """[size]: where a size begins in a flat table over all combinations; starts[n_max + 1] is its length."""

    def __post_init__(self) -> None:
        if not 1 <= self.configurations <= MOST_CONFIGURATIONS:
            most = MOST_CONFIGURATIONS
            raise ValueError(f"configurations: {self.configurations} of them, expected 1 to {most}")
        if not 1 <= self.n_max <= MOST_NODES:
            raise ValueError(f"n_max: {self.n_max}, expected 1 to {MOST_NODES}")
        counts = [0, 0, *(comb(self.configurations + k - 1, k) for k in range(1, self.n_max + 1))]
        if sum(counts) > MOST_COMBINATIONS:
            raise ValueError(
                f"n_max: {self.n_max} of {self.configurations} configurations make {sum(counts):,} "
                f"combinations, expected at most {MOST_COMBINATIONS:,}"
            )
        top = self.configurations + self.n_max
        choose = [[comb(n, k) for k in range(self.n_max + 1)] for n in range(top)]
        object.__setattr__(self, "choose", np.array(choose, dtype=np.int64))
        object.__setattr__(self, "starts", np.cumsum(counts, dtype=np.int64))

    @cached_property
    def by_size(self) -> tuple[Bytes, ...]:
        """Rows of each size from 1 to n_max: row r of shape (count, size) is the combination of rank r."""
        names = np.arange(self.configurations, dtype=np.int8)
        sizes = [names[:, None]]
        for size in range(2, self.n_max + 1):
            shorter = sizes[-1]
            # Before a last node v stand all that are made of the first v + 1 configurations.
            before = [shorter[: comb(v + size - 1, size - 1)] for v in range(self.configurations)]
            last = np.repeat(names, [len(rows) for rows in before])
            sizes.append(np.column_stack([np.concatenate(before), last]))
        return tuple(sizes)

    def ranks(self, rows: Bytes) -> Longs:
        """Their ranks among the combinations of their size."""
        places = np.arange(rows.shape[1])
        ranks: Longs = self.choose[rows + places, places + 1].sum(axis=1)
        return ranks

    def within(self, size: int, memory: Floats, limit: float) -> Longs:
        """Ranks of the combinations of a size with no more memory than the limit.

        Args:
            memory: of each configuration.
        """
        return np.flatnonzero(memory[self.by_size[size - 1]].sum(axis=1) <= limit)
