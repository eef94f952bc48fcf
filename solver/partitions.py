"""The ways to part a combination's nodes into stages, each told once though some nodes be equal."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from solver.space import Longs

Words = NDArray[np.int32]


@dataclass(frozen=True)
class Partitions:
    """Partitions of `size` nodes, by which neighbours of the rising row are equal and by number of stages.

    A pattern has bit i set where nodes i and i + 1 are equal. Those of a pattern with S stages are the rows
    from `starts[pattern, S - 1]` to `starts[pattern, S]` of `masks`: S sets of nodes as bits, then 0.
    """

    masks: Words
    """[rows, size]"""
    starts: Longs
    """[2^(size - 1), size + 1]"""


@cache
def partitions(size: int) -> Partitions:
    """All of them, once for each size."""
    ways = sorted(_ways(size))
    masks: list[tuple[int, ...]] = []
    starts = np.zeros((1 << (size - 1), size + 1), dtype=np.int64)
    for pattern in range(1 << (size - 1)):
        seen: set[tuple[int, ...]] = set()
        for stages in range(1, size + 1):
            starts[pattern, stages - 1] = len(masks)
            for way in ways:
                key = tuple(sorted(_canonical(mask, pattern, size) for mask in way))
                if len(way) == stages and key not in seen:
                    seen.add(key)
                    masks.append(way + (0,) * (size - stages))
        starts[pattern, size] = len(masks)
    return Partitions(np.array(masks, dtype=np.int32), starts)


def _ways(size: int) -> Iterator[tuple[int, ...]]:
    """Partitions of the set of nodes: each node joins a stage of those before it, or opens one."""
    if size == 0:
        yield ()
        return
    node = 1 << (size - 1)
    for way in _ways(size - 1):
        for i, mask in enumerate(way):
            yield (*way[:i], mask | node, *way[i + 1 :])
        yield (*way, node)


def _canonical(mask: int, pattern: int, size: int) -> int:
    """The same for sets of equal nodes: in each run of equal ones, as many as there are, first ones first."""
    found, first = 0, 0
    for last in range(size):
        if last + 1 < size and pattern >> last & 1:
            continue
        held = (mask >> first & ((1 << (last + 1 - first)) - 1)).bit_count()
        found |= ((1 << held) - 1) << first
        first = last + 1
    return found
