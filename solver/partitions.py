"""The ways to part a combination's nodes into stages, each told once though some nodes be equal.

One stage is told apart: the last, which holds the LM head and sends nothing on.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from solver.space import Longs

Words = NDArray[np.int32]
"""Sets of nodes, bit i for node i of a rising row."""


@dataclass(frozen=True)
class Partitions:
    """Partitions of `size` nodes, by which neighbours are equal, by number of stages, and by the last stage.

    A pattern has bit i set where nodes i and i + 1 are equal. Its groups with S stages are those from
    `groups[pattern, S - 1]` to `groups[pattern, S]`: a group's partitions have the last stage `last[group]`,
    and in `others` the rows from `starts[group]` to `starts[group + 1]`.
    """

    groups: Longs
    """[2^(size - 1), size + 1]"""
    last: Words
    """[groups]"""
    starts: Longs
    """[groups + 1]"""
    others: Words
    """[rows, size]: the S - 1 stages before the last, in no order, then 0."""


@cache
def partitions(size: int) -> Partitions:
    """All of them, once for each size."""
    ways = sorted(_ways(size))
    patterns = 1 << (size - 1)
    groups = np.zeros((patterns, size + 1), dtype=np.int64)
    last: list[int] = []
    starts: list[int] = [0]
    others: list[tuple[int, ...]] = []
    for pattern in range(patterns):
        alike = [_alike(mask, pattern, size) for mask in range(1 << size)]
        for stages in range(1, size + 1):
            groups[pattern, stages - 1] = len(last)
            for end, rows in _by_last([way for way in ways if len(way) == stages], alike).items():
                last.append(end)
                others += [row + (0,) * (size - len(row)) for row in rows]
                starts.append(len(others))
        groups[pattern, size] = len(last)
    return Partitions(
        groups, np.array(last, dtype=np.int32), np.array(starts), np.array(others, dtype=np.int32)
    )


def _by_last(ways: list[tuple[int, ...]], alike: list[int]) -> dict[int, list[tuple[int, ...]]]:
    """Last stage -> the others, of each partition that differs from those before by more than equal nodes."""
    found: dict[int, dict[tuple[int, ...], tuple[int, ...]]] = {}
    for way in ways:
        for mask in way:
            if alike[mask] == mask:
                rest = tuple(other for other in way if other != mask)
                found.setdefault(mask, {}).setdefault(tuple(sorted(alike[m] for m in rest)), rest)
    return {mask: list(found[mask].values()) for mask in sorted(found)}


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


def _alike(mask: int, pattern: int, size: int) -> int:
    """The same for all sets of equal nodes: of a run of equal ones as many as there are, from the first."""
    found, first = 0, 0
    for node in range(size):
        if node + 1 == size or not pattern >> node & 1:
            held = (mask >> first & ((1 << (node + 1 - first)) - 1)).bit_count()
            found |= ((1 << held) - 1) << first
            first = node + 1
    return found
