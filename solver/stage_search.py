"""The exact best placement for runtime `coral`: nodes of one stage share its load (solver.md, "Stage 1").

Nodes of a stage add up, stages take the minimum, and slices of layers are interchangeable. So a stage with the
nodes N gives F(j) = sum over N of That(c, j) while it holds j layers, which never rises with j; and a partition
into stages reaches more than T exactly if the layers that each can hold above T, #{j : F(j) > T}, make up the
model. The first and the last stage hold the embedding and the LM head, so those two are chosen as well: for a
given T, the pair that loses the fewest layers.

A partition that beats T is climbed: its stages hold all they can above T; taking a layer too many from the
slowest stage raises the least rate to the next value that any cut can have, until the layers are the model's.
So the result is one of the values F(j) itself, and no cut of this partition in this order gives more.

What makes it fast is how little is climbed. The search starts at the value to beat. Since T j <= sum over N of
j That(c, j) for a stage of j layers, no stage holds more than W(N) / T, where W adds up each node's
w(c) = max over j of j That(c, j): a number of stages whose nodes together have less than T L is out at once, and
a partition is dropped at the stage where what it falls short of W / T exceeds what all have to spare.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from schemas.catalog import Configuration
from solver.kept import Bytes, Shorts
from solver.partitions import Words, partitions
from solver.roofline import Roofline
from solver.shapes import Floats
from solver.space import Longs
from solver.tables import POSITIONS, Position, degrees, node_slot, node_table

FIRST, MIDDLE, LAST = (POSITIONS.index(position) for position in ("first", "middle", "last"))
NEVER = -(1 << 20)
"""In place of a number of layers where a stage cannot hold even one."""


@dataclass(frozen=True)
class StageTables:
    """That of whole nodes (`solver.tables`), by number of stages first."""

    that: Floats
    """[S - 1, position, c, j - 1]"""
    loosest: Floats
    """[S - 1, c, j - 1]: the most over the positions that a stage of S can have."""
    peaks: Floats
    """[S - 1, c]: w(c), the most layers x throughput."""
    tp: Bytes
    """[S - 1, position, c, j - 1]"""


def stage_tables(roofline: Roofline, configurations: Sequence[Configuration], n_max: int) -> StageTables:
    """What the search needs to know of up to `n_max` of these nodes."""
    table = node_table(roofline, configurations, range(1, n_max + 1))
    return _tables(table.throughput.swapaxes(0, 1), table.tp.swapaxes(0, 1))


def memory_tables(roofline: Roofline, configurations: Sequence[Configuration], n_max: int) -> StageTables:
    """The same for memory alone: 1 where a node holds the layers at the smallest batch, else 0."""
    that = np.zeros((n_max, len(POSITIONS), len(configurations), roofline.model.architecture.layers))
    for c, node in enumerate(configurations):
        for tp in degrees(roofline, node):
            for stages in range(1, n_max + 1):
                for p, position in enumerate(POSITIONS):
                    slot = node_slot(node, tp, **_ends(position, stages))
                    that[stages - 1, p, c, : roofline.most_layers(slot, stages)] = 1.0
    return _tables(that, np.zeros(that.shape))


def _ends(position: Position, stages: int) -> dict[str, bool]:
    return {"first": position == "first" or stages == 1, "last": position == "last" or stages == 1}


def _tables(that: Floats, tp: Floats) -> StageTables:
    loosest = that.max(axis=1)
    if len(that) > 1:
        loosest[1] = np.maximum(that[1, FIRST], that[1, LAST])
    peaks = (loosest * np.arange(1.0, that.shape[-1] + 1)).max(axis=2)
    return StageTables(np.ascontiguousarray(that), loosest, peaks, np.ascontiguousarray(tp, dtype=np.int8))


@dataclass(frozen=True)
class StagePlacements:
    """The best placement of each combination, where it beats the floor."""

    throughput: Floats
    """[n]; 0 where nothing does."""
    stages: Bytes
    """[n]"""
    stage_of: Bytes
    """[n, size]: 0 is the first stage."""
    layers: Shorts
    """[n, size]: of the node's stage."""
    tp: Bytes
    """[n, size]; 0 for a node that adds nothing."""


def place_stages(rows: Bytes, floors: Floats, tables: StageTables) -> StagePlacements:
    """Search the combinations of one size.

    Args:
        rows: shape (n, size), indices of configurations in rising order.
        floors: [n], only more than this is wanted.
    """
    parts = partitions(rows.shape[1])
    found = StagePlacements(
        np.zeros(len(rows)),
        np.zeros(len(rows), dtype=np.int8),
        np.zeros(rows.shape, dtype=np.int8),
        np.zeros(rows.shape, dtype=np.int16),
        np.zeros(rows.shape, dtype=np.int8),
    )
    _place_rows(
        rows,
        floors,
        (tables.that, tables.loosest, tables.peaks, tables.tp),
        (parts.masks, parts.starts),
        (found.throughput, found.stages, found.stage_of, found.layers, found.tp),
    )
    return found


# ----------------------------------------------------------------------------------------------- compiled


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _place_rows(
    rows: Bytes,
    floors: Floats,
    tables: tuple[Floats, Floats, Floats, Bytes],
    parts: tuple[Words, Longs],
    found: tuple[Floats, Bytes, Bytes, Shorts, Bytes],
) -> None:
    """The search of `place_stages`: fills `found`."""
    that, loosest, peaks, tp = tables
    masks, starts = parts
    throughput, stages, stage_of, layers, degree = found
    count, size = rows.shape
    total = that.shape[3]
    most = np.empty(1 << size, dtype=np.int64)
    held = np.empty((size, 3), dtype=np.int64)
    cut = np.empty(size, dtype=np.int64)
    for i in range(count):
        nodes = rows[i]
        pattern = 0
        for node in range(size - 1):
            if nodes[node] == nodes[node + 1]:
                pattern |= 1 << node
        best = floors[i]
        for s in range(1, min(size, total) + 1):
            reach = 0.0
            for node in range(size):
                reach += peaks[s - 1, nodes[node]]
            most[:] = -1
            for p in range(starts[pattern, s - 1], starts[pattern, s]):
                if reach <= best * total:
                    break
                if not _may_beat(nodes, masks[p, :s], loosest[s - 1], peaks[s - 1], reach, best, most):
                    continue
                first, last, rate = _climb(nodes, masks[p, :s], that[s - 1], best, held, cut)
                if rate > best:
                    best = rate
                    most[:] = -1
                    throughput[i], stages[i] = rate, s
                    _describe(
                        nodes, masks[p, :s], first, last, cut, tp[s - 1], that[s - 1], i, stage_of, layers, degree
                    )


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _rate(rates: Floats, nodes: Bytes, mask: int, j: int) -> float:
    """F(j) of the nodes in the mask."""
    given = 0.0
    for node in range(len(nodes)):
        if mask >> node & 1:
            given += rates[nodes[node], j - 1]
    return given


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _most_layers(rates: Floats, nodes: Bytes, mask: int, above: float, most: int) -> int:
    """The most layers, up to `most`, that the nodes in the mask hold at more than `above`."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if _rate(rates, nodes, mask, middle) > above:
            low = middle
        else:
            high = middle - 1
    return low


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _may_beat(
    nodes: Bytes, stages: Words, loosest: Floats, peaks: Floats, reach: float, best: float, most: Longs
) -> bool:
    """Whether a partition could beat `best` if every stage had its best position.

    `most` remembers the layers of stages that were looked at for this `best`; -1 where none was.
    """
    total, room = loosest.shape[1], 0
    spare = reach / best - total + 1e-6 if best > 0.0 else np.inf
    for mask in stages:
        if best > 0.0:
            mine = 0.0
            for node in range(len(nodes)):
                if mask >> node & 1:
                    mine += peaks[nodes[node]]
            limit = mine / best
        else:
            limit = float(total)
        if most[mask] < 0:
            top = min(total + 1 - len(stages), int(limit + 1e-6))
            most[mask] = _most_layers(loosest, nodes, mask, best, top)
        if most[mask] == 0:
            return False
        room += most[mask]
        spare -= limit - most[mask]
        if spare < 0.0:
            return False
    return room >= total


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _climb(
    nodes: Bytes, stages: Words, that: Floats, best: float, held: Longs, cut: Longs
) -> tuple[int, int, float]:
    """The best rate of a partition above `best`: its first stage, last stage, rate; else (0, 0, 0).

    Fills `cut` with the layers of each stage. `held` is work space.
    """
    count, total = len(stages), that.shape[2]
    found_first, found_last, rate = 0, 0, 0.0
    while True:
        above = max(best, rate)
        for s in range(count):
            for position in range(3):
                most = 0
                if position != MIDDLE or count > 2:
                    most = _most_layers(that[position], nodes, stages[s], above, total + 1 - count)
                held[s, position] = most if most > 0 else NEVER
        first, last, room = _best_ends(held, count)
        if room < total:
            return found_first, found_last, rate
        found_first, found_last = first, last
        rate = _cut(nodes, stages, that, first, last, room - total, held, cut)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _best_ends(held: Longs, count: int) -> tuple[int, int, int]:
    """The first and the last stage with which all of them hold the most layers, and how many."""
    if count == 1:
        return 0, 0, held[0, FIRST]
    middle = 0
    for s in range(count):
        middle += held[s, MIDDLE]
    best_first, best_last, room = 0, 0, NEVER * 64
    for first in range(count):
        for last in range(count):
            if first != last:
                gained = held[first, FIRST] - held[first, MIDDLE] + held[last, LAST] - held[last, MIDDLE]
                if middle + gained > room:
                    best_first, best_last, room = first, last, middle + gained
    return best_first, best_last, room


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _position(s: int, first: int, last: int) -> int:
    if s == first:
        return FIRST
    return LAST if s == last else MIDDLE


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _cut(
    nodes: Bytes, stages: Words, that: Floats, first: int, last: int, excess: int, held: Longs, cut: Longs
) -> float:
    """Take `excess` layers, each from the stage that is slowest; the least rate in the end."""
    count = len(stages)
    rates = np.empty(count)
    for s in range(count):
        position = _position(s, first, last)
        cut[s] = held[s, position]
        rates[s] = _rate(that[position], nodes, stages[s], cut[s])
    while excess > 0:
        slowest = int(np.argmin(rates))
        if cut[slowest] == 1:  # it stays the slowest: the rest may come from anywhere
            break
        cut[slowest] -= 1
        excess -= 1
        rates[slowest] = _rate(that[_position(slowest, first, last)], nodes, stages[slowest], cut[slowest])
    for s in range(count):
        taken = min(excess, cut[s] - 1)
        cut[s] -= taken
        excess -= taken
    return float(rates.min())


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _describe(
    nodes: Bytes,
    stages: Words,
    first: int,
    last: int,
    cut: Longs,
    tp: Bytes,
    that: Floats,
    i: int,
    stage_of: Bytes,
    layers: Shorts,
    degree: Bytes,
) -> None:
    """Write a placement into row i."""
    between = 1
    for s in range(len(stages)):
        place = 0 if s == first else len(stages) - 1
        if s not in (first, last):
            place = between
            between += 1
        position = _position(s, first, last)
        for node in range(len(nodes)):
            if stages[s] >> node & 1:
                stage_of[i, node], layers[i, node] = place, cut[s]
                works = that[position, nodes[node], cut[s] - 1] > 0.0
                degree[i, node] = tp[position, nodes[node], cut[s] - 1] if works else 0
