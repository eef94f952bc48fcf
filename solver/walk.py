"""One service's walk over a set-up's combinations, from small to large (solver.md, "Stage 1").

What the parts of a combination give together is what its own placement has to beat, or it is never needed
(`solver.splits`): so the search starts there, and mostly ends at once. Variants of one service serve the same
demand, so they compete: each has to beat those before it as well.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from schemas.catalog import Configuration
from solver.kept import REASONS, Bytes, Kept, Key, Placements, Reason, ServiceInputs
from solver.searches import search_of
from solver.shapes import Flags, Floats
from solver.space import Longs, Space
from solver.splits import best_splits

Whole = TypeVar("Whole", np.int8, np.int16)

BETTER = 1 + 1e-9
"""A placement has to give this many times what the parts give: less is rounding."""
CHUNK = 4096
"""Combinations that a thread takes at once: some 50 ms."""


class Share(NamedTuple):
    """What one variant has of a chunk."""

    rows: Bytes
    """Combinations where it is better than their parts and than the other variants."""
    placed: Placements
    """Of those."""
    considered: int
    refused: dict[Reason, int]


class Chunk(NamedTuple):
    """What came of some combinations of one size."""

    combinations: int
    """How many."""
    shares: tuple[Share, ...]
    """By variant."""


class Walk:
    """All combinations of one service."""

    def __init__(
        self,
        space: Space,
        configurations: Sequence[Configuration],
        variants: Sequence[ServiceInputs],
        rho: float,
    ) -> None:
        gpus = variants[0].roofline.gpus
        memory = np.array([node.gpus * gpus[node.gpu].memory_gb * 1e9 for node in configurations])
        self._space = space
        self._variants = [_Variant(space, configurations, memory, inputs, rho) for inputs in variants]
        limit = max(variant.limit_bytes for variant in self._variants)
        self._ranks = [space.within(size, memory, limit) for size in range(1, space.n_max + 1)]
        self._best = np.zeros(space.starts[-1])
        """What each gives, whole or in parts. Threads read smaller sizes and write their own rows."""

    def __len__(self) -> int:
        """Combinations to walk."""
        return sum(map(len, self._ranks))

    def chunks(self, size: int) -> Iterator[Longs]:
        """Ranks of combinations of a size, some at a time; once none where there are none."""
        ranks = self._ranks[size - 1]
        for first in range(0, max(1, len(ranks)), CHUNK):
            yield ranks[first : first + CHUNK]

    def place(self, size: int, ranks: Longs) -> Chunk:
        """Place these combinations; all smaller ones have been."""
        space = self._space
        rows, flat = space.by_size[size - 1][ranks], space.starts[size] + ranks
        best = best_splits(rows, self._best, space.starts, space.choose)
        winner = np.full(len(rows), -1)
        found = []
        for i, variant in enumerate(self._variants):
            tried = np.flatnonzero(variant.can(rows))
            placed = variant.search.place(rows[tried], best[tried] * BETTER)
            better = placed.throughput > 0
            winner[tried[better]], best[tried[better]] = i, placed.throughput[better]
            found.append((tried, placed))
        self._best[flat] = best
        shares = []
        for i, (variant, (tried, placed)) in enumerate(zip(self._variants, found, strict=True)):
            won = winner[tried] == i
            shares.append(
                Share(
                    rows[tried[won]],
                    placed.take(won),
                    int(variant.within(rows).sum()),
                    variant.refusals(rows, flat, serves=best > 0),
                )
            )
        return Chunk(len(rows), tuple(shares))

    def kept(self, chunks: Sequence[Chunk]) -> dict[Key, Kept]:
        """All chunks, in the order of `chunks`, put together."""
        return {
            variant.key: _together([chunk.shares[i] for chunk in chunks], self._space)
            for i, variant in enumerate(self._variants)
        }


class _Variant:
    """One variant's search, and what of the combinations is its."""

    def __init__(
        self,
        space: Space,
        configurations: Sequence[Configuration],
        memory: Floats,
        inputs: ServiceInputs,
        rho: float,
    ) -> None:
        r = inputs.roofline
        self.key = inputs.key
        self.search = search_of(inputs, configurations, space.n_max)
        self.limit_bytes = rho * r.shape.total_bytes
        self._memory, self._space = memory, space
        self._allowed: Flags = np.array([node.gpu in r.variant.gpus for node in configurations])
        self._fits = np.zeros(space.starts[-1])
        """1 for combinations whose memory, or a part's, holds the model."""

    def within(self, rows: Bytes) -> Flags:
        """Whether they are considered at all."""
        found: Flags = self._memory[rows].sum(axis=1) <= self.limit_bytes
        return found

    def can(self, rows: Bytes) -> Flags:
        """Whether there is anything to search."""
        return self.within(rows) & self._allowed[rows].all(axis=1) & self.search.parallel(rows)

    def refusals(self, rows: Bytes, flat: Longs, serves: Flags) -> dict[Reason, int]:
        """How many are considered and do not serve, by reason."""
        fits = serves.copy()
        idle = np.flatnonzero(~serves & self.within(rows))
        left, space = rows[idle], self._space
        allowed, parallel = self._allowed[left].all(axis=1), self.search.parallel(left)
        by_parts = best_splits(left, self._fits, space.starts, space.choose) > 0
        fits[idle] = by_parts
        unknown = allowed & parallel & ~by_parts
        fits[idle[unknown]] = self.search.fits(left[unknown])
        self._fits[flat] = fits
        reasons = np.select([~allowed, ~parallel, ~fits[idle]], [0, 1, 2], 3)
        return dict(zip(REASONS, np.bincount(reasons, minlength=4).tolist(), strict=True))


def _together(shares: Sequence[Share], space: Space) -> Kept:
    """The rows of one variant, brought to one width."""
    placed = [share.placed for share in shares]
    considered = sum(share.considered for share in shares)
    refused = {reason: sum(share.refused[reason] for share in shares) for reason in REASONS}
    return Kept(
        combination=_wide([share.rows for share in shares], space.n_max, -1),
        throughput=np.concatenate([p.throughput for p in placed]),
        stages=np.concatenate([p.stages for p in placed]),
        stage_of=_wide([p.stage_of for p in placed], space.n_max, -1),
        layers=_wide([p.layers for p in placed], space.n_max, 0),
        tp=_wide([p.tp for p in placed], space.n_max, -1),
        batch=np.concatenate([p.batch for p in placed]),
        order=_wide([p.order for p in placed], space.n_max, -1),
        considered=considered,
        over_rho=int(space.starts[-1]) - considered,
        valid=considered - sum(refused.values()),
        refused={reason: count for reason, count in refused.items() if count},
    )


def _wide(arrays: Sequence[NDArray[Whole]], width: int, fill: int) -> NDArray[Whole]:
    """Rows of all arrays, filled up on the right."""
    found = np.full((sum(map(len, arrays)), width), fill, dtype=arrays[0].dtype)
    first = 0
    for array in arrays:
        found[first : first + len(array), : array.shape[1]] = array
        first += len(array)
    return found
