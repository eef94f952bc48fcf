"""The exact best placement for runtime `coral`: nodes of one stage share its load (solver.md, "Stage 1").

Nodes of a stage add up, stages take the minimum, and slices of layers are interchangeable. So a stage with the
nodes N gives F(j) = sum over N of That(c, j) while it holds j layers, which never rises with j; and a partition
into stages reaches more than T exactly if the layers that each can hold above T, #{j : F(j) > T}, make up the
model. The first and the last stage hold the embedding and the LM head, so those two are chosen as well: for a
given T, the pair that loses the fewest layers.

A partition that beats T is climbed: its stages hold all they can above T; taking a layer too many from the
slowest stage raises the least rate to the next value that any cut can have, until the layers are the model's.
So the result is one of the values F(j) itself, and no cut of this partition in this order gives more.

What makes it fast is how little is climbed. The search starts at the value to beat, T. A stage that holds j
layers at T or more has T (j - o) <= sum over N of (j - o) That(c, j), so for any offset o no stage holds more than

    W(N) / T + o layers, where W adds up each node's w(c) = max over j of max(0, j - o) That(c, j)

and S stages hold no more than W / T + S o together. A number of stages for which one of a few offsets shows that
this is less than the model is out at once; and a partition is dropped at the stage where what its stages lack of
their bounds, by the offset of the lowest total, exceeds what the total has to spare.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit

from schemas.catalog import Configuration
from solver.kept import Bytes, Placements, Shorts
from solver.partitions import Words, partitions
from solver.roofline import Roofline
from solver.shapes import Flags, Floats
from solver.space import Longs
from solver.tables import POSITIONS, NodeTable, Position, degrees, node_slot, node_table

FIRST, MIDDLE, LAST = (POSITIONS.index(position) for position in ("first", "middle", "last"))
OFFSETS: Floats = np.array([0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9])
"""Of a stage's equal share of the layers: where throughput falls fast with the layers, the large ones bind."""
MOST_NODES = 8
"""There are 4,140 ways to part 8 nodes, and 115,975 to part 10."""
NEVER = -(1 << 20)
"""In place of a number of layers where a stage cannot hold even one."""


@dataclass(frozen=True)
class StageTables:
    """That of whole nodes (`solver.tables`), by number of stages first."""

    that: Floats
    """[S - 1, position, c, j - 1]"""
    before: Floats
    """[S - 1, c, j - 1]: the most that a stage before the last can have, wherever it is."""
    peaks: Floats
    """[S - 1, (before the last, last), c, o]: w(c) for each offset."""
    offsets: Floats
    """[S - 1, o], in layers."""
    tp: Bytes
    """[S - 1, position, c, j - 1]"""


def stage_tables(roofline: Roofline, configurations: Sequence[Configuration], n_max: int) -> StageTables:
    """What the search needs to know of up to `n_max` of these nodes."""
    return tables_of(node_table(roofline, configurations, range(1, n_max + 1)))


def tables_of(table: NodeTable) -> StageTables:
    """The same of a table of nodes for every number of stages from 1 on."""
    return _tables(table.throughput.swapaxes(0, 1), table.tp.swapaxes(0, 1).astype(float))


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
    that, total = np.ascontiguousarray(that), that.shape[-1]
    before = np.maximum(that[:, FIRST], that[:, MIDDLE])
    before[:2] = that[:2, FIRST]  # of two stages, none is in the middle
    offsets = OFFSETS * (total / np.arange(1.0, len(that) + 1))[:, None]
    beyond = np.maximum(0.0, np.arange(1.0, total + 1) - offsets[..., None])
    either = np.stack([before, that[:, LAST]], axis=1)
    peaks = (either[:, :, :, None, :] * beyond[:, None, None]).max(axis=4)
    return StageTables(that, before, peaks, offsets, np.ascontiguousarray(tp, dtype=np.int8))


@dataclass(frozen=True)
class StageSearch:
    """The search of one variant of a service (`solver.kept.Search`)."""

    roofline: Roofline
    configurations: Sequence[Configuration]
    n_max: int

    @cached_property
    def tables(self) -> StageTables:
        return stage_tables(self.roofline, self.configurations, self.n_max)

    @cached_property
    def memory(self) -> StageTables:
        return memory_tables(self.roofline, self.configurations, self.n_max)

    def place(self, rows: Bytes, floors: Floats) -> Placements:
        return place_stages(rows, floors, self.tables)

    def parallel(self, rows: Bytes) -> Flags:
        """Always: a stage may have as many nodes as there are."""
        return np.ones(len(rows), dtype=bool)

    def fits(self, rows: Bytes) -> Flags:
        return place_stages(rows, np.zeros(len(rows)), self.memory).throughput > 0


def place_stages(rows: Bytes, floors: Floats, tables: StageTables) -> Placements:
    """Search the combinations of one size, for placements that give more than the floors."""
    size = rows.shape[1]
    if size > MOST_NODES:
        raise ValueError(f"n_max: {size}, expected at most {MOST_NODES} for runtime coral")
    parts = partitions(size)
    found = Placements.none(*rows.shape)
    _place_rows(
        rows,
        floors,
        (tables.that, tables.before, tables.peaks, tables.offsets, tables.tp),
        (parts.groups, parts.last, parts.starts, parts.others),
        (found.throughput, found.stages, found.stage_of, found.layers, found.tp),
    )
    return found


# ----------------------------------------------------------------------------------------------- compiled


@njit(cache=True, nogil=True)
def _place_rows(
    rows: Bytes,
    floors: Floats,
    tables: tuple[Floats, Floats, Floats, Floats, Bytes],
    parts: tuple[Longs, Words, Longs, Words],
    found: tuple[Floats, Bytes, Bytes, Shorts, Bytes],
) -> None:
    """The search of `place_stages`: fills `found`."""
    that, before, peaks, offsets, tp = tables
    groups, ends, starts, others = parts
    throughput, stages, stage_of, layers, degree = found
    count, size = rows.shape
    total, whole = that.shape[3], (1 << size) - 1
    reach, lack = np.zeros((2, 1 << size)), np.zeros(1 << size)
    least = np.zeros(1 << size, dtype=np.int64)
    cut = np.empty(size, dtype=np.int64)
    for i in range(count):
        nodes, best = rows[i], floors[i]
        pattern = _pattern(nodes)
        for s in range(1, min(size, total) + 1):
            rates = that[s - 1]
            offset, bound = _aim(nodes, peaks[s - 1], offsets[s - 1], best, s, total, reach, lack, least)
            if bound < total:
                continue
            for g in range(groups[pattern, s - 1], groups[pattern, s]):
                end, p, held, spare = ends[g], starts[g], -1, 0.0
                while p < starts[g + 1] and bound >= total:
                    if held < 0:
                        room = reach[0, whole ^ end] + offset * (s - 1)
                        held = _last_holds(
                            rates[LAST], nodes, end, best, s, reach[1, end] + offset, room, total
                        )
                        if held == 0:
                            break
                        spare = room + held - total + 0.5
                    left = spare
                    for q in range(s - 1):
                        left -= lack[others[p, q]]
                    p += 1
                    if left < 0.0:
                        continue
                    rest = others[p - 1, : s - 1]
                    if not _may_beat(nodes, rest, before[s - 1], best, reach[0], offset, left, lack, least):
                        continue
                    first, rate = _climb(nodes, rest, end, rates, best, held, least, cut)
                    if rate > best:
                        best, held = rate, -1
                        throughput[i], stages[i] = rate, s
                        _describe(
                            nodes, rest, end, first, cut, rates, tp[s - 1], stage_of[i], layers[i], degree[i]
                        )
                        offset, bound = _aim(
                            nodes, peaks[s - 1], offsets[s - 1], best, s, total, reach, lack, least
                        )


@njit(cache=True, nogil=True)
def _pattern(nodes: Bytes) -> int:
    """Which nodes equal the next (`solver.partitions`)."""
    pattern = 0
    for node in range(len(nodes) - 1):
        if nodes[node] == nodes[node + 1]:
            pattern |= 1 << node
    return pattern


@njit(cache=True, nogil=True)
def _aim(
    nodes: Bytes,
    peaks: Floats,
    offsets: Floats,
    best: float,
    count: int,
    total: int,
    reach: Floats,
    lack: Floats,
    least: Longs,
) -> tuple[float, float]:
    """Bounds for `count` stages that shall beat `best`.

    Fills `reach[e, mask]` with W / T of the nodes in a mask, before the last stage (e = 0) and in it (e = 1).
    Of the layers that they hold before it, `least` are known, none yet, and all but `lack` of the bound.

    Returns:
        The offset with which all stages together have the lowest bound, and that bound.
    """
    least[:] = 0
    lowest, room = 0, np.inf
    if best > 0.0:
        for o in range(len(offsets)):
            given = count * offsets[o]
            for node in nodes:
                given += max(peaks[0, node, o], peaks[1, node, o]) / best
            if given < room:
                lowest, room = o, given
        if room < total:
            return offsets[lowest], room
    for i in range(len(nodes)):
        for e in range(2):
            given = peaks[e, nodes[i], lowest] / best if best > 0.0 else float(total)
            for mask in range(1 << i):
                reach[e, mask | 1 << i] = reach[e, mask] + given
    for mask in range(len(lack)):
        limit = reach[0, mask] + offsets[lowest]
        lack[mask] = limit - min(total + 1 - count, int(limit + 1e-6))
    return offsets[lowest], room


@njit(cache=True, nogil=True)
def _last_holds(
    rates: Floats, nodes: Bytes, end: int, best: float, count: int, limit: float, room: float, total: int
) -> int:
    """Layers that the last stage holds above `best`; 0 where the others' room for the rest is too small."""
    most = min(total + 1 - count, int(limit + 1e-6))
    needed = max(1, total - int(room + 1e-6))
    if needed > most or _rate(rates, nodes, end, needed) <= best:
        return 0
    return _most_layers(rates, nodes, end, best, needed, most)


@njit(cache=True, nogil=True)
def _rate(rates: Floats, nodes: Bytes, mask: int, j: int) -> float:
    """F(j) of the nodes in the mask."""
    given, node = 0.0, 0
    while mask:
        if mask & 1:
            given += rates[nodes[node], j - 1]
        mask >>= 1
        node += 1
    return given


@njit(cache=True, nogil=True)
def _most_layers(rates: Floats, nodes: Bytes, mask: int, above: float, low: int, high: int) -> int:
    """The most layers that the nodes in the mask hold at more than `above`, of `low`, which they do, to `high`."""
    while low < high:
        middle = (low + high + 1) // 2
        if _rate(rates, nodes, mask, middle) > above:
            low = middle
        else:
            high = middle - 1
    return low


@njit(cache=True, nogil=True)
def _may_beat(
    nodes: Bytes,
    rest: Words,
    before: Floats,
    best: float,
    reach: Floats,
    offset: float,
    spare: float,
    lack: Floats,
    least: Longs,
) -> bool:
    """Whether the stages before the last could hold their layers above `best`, were each where it is best.

    Args:
        spare: by how many layers, and half a one, the most that they can hold exceeds what they have to.
        lack, least: what is known of what a stage holds; here more is learnt.
    """
    for mask in rest:
        most = int(reach[mask] + offset - lack[mask] + 0.5)
        needed = max(1, most - int(spare))
        held = needed - 1
        if least[mask] >= needed or _rate(before, nodes, mask, needed) > best:
            held = _most_layers(before, nodes, mask, best, max(least[mask], needed), most)
            least[mask] = held
        lack[mask] += most - held
        spare -= most - held
        if held < needed:
            return False
    return True


@njit(cache=True, nogil=True)
def _climb(
    nodes: Bytes,
    rest: Words,
    end: int,
    that: Floats,
    best: float,
    ended: int,
    most: Longs,
    cut: Longs,
) -> tuple[int, float]:
    """The best rate of a partition above `best`, and which of `rest` is then first; (0, 0) if there is none.

    Fills `cut` with the layers of `rest` and the last stage.

    Args:
        ended: layers that the last stage holds above `best`.
        most: what the others can hold at most.
    """
    count, total = len(rest), that.shape[2]
    held, first, rate = np.empty(count + 1, dtype=np.int64), 0, 0.0
    held[count] = ended
    while True:
        above = max(best, rate)
        held[count] = _most_layers(that[LAST], nodes, end, above, 0, held[count])
        if held[count] == 0:  # the others may hold the whole model, but the last stage needs a layer
            return first, rate
        room, gain, leading, opened = held[count], 2 * NEVER, 0, 0
        for s in range(count):
            opening = _most_layers(that[FIRST], nodes, rest[s], above, 0, most[rest[s]])
            middle = _most_layers(that[MIDDLE], nodes, rest[s], above, 0, most[rest[s]]) if count > 1 else 0
            held[s] = middle if middle > 0 else NEVER
            room += held[s]
            if opening > 0 and opening - held[s] > gain:
                gain, leading, opened = opening - held[s], s, opening
        if count > 0:
            held[leading] = opened
            room += gain
        if room < total:
            return first, rate
        first = leading
        rate = _cut(nodes, rest, end, first, that, room - total, held, cut)


@njit(cache=True, nogil=True)
def _stage_rate(nodes: Bytes, rest: Words, end: int, first: int, that: Floats, s: int, j: int) -> float:
    """F(j) of a stage: the last one where s is the number of the others."""
    if s == len(rest):
        return _rate(that[LAST], nodes, end, j)
    return _rate(that[FIRST if s == first else MIDDLE], nodes, rest[s], j)


@njit(cache=True, nogil=True)
def _cut(
    nodes: Bytes, rest: Words, end: int, first: int, that: Floats, excess: int, held: Longs, cut: Longs
) -> float:
    """From stages that hold `held`, take `excess` layers, each from the slowest; the least rate in the end."""
    count = len(held)
    rates = np.empty(count)
    for s in range(count):
        cut[s] = held[s]
        rates[s] = _stage_rate(nodes, rest, end, first, that, s, cut[s])
    while excess > 0:
        slowest = int(np.argmin(rates))
        if cut[slowest] == 1:  # it stays the slowest: what is left may come from anywhere
            break
        cut[slowest] -= 1
        excess -= 1
        rates[slowest] = _stage_rate(nodes, rest, end, first, that, slowest, cut[slowest])
    for s in range(count):
        taken = min(excess, cut[s] - 1)
        cut[s] -= taken
        excess -= taken
    return float(rates.min())


@njit(cache=True, nogil=True)
def _describe(
    nodes: Bytes,
    rest: Words,
    end: int,
    first: int,
    cut: Longs,
    that: Floats,
    tp: Bytes,
    stage_of: Bytes,
    layers: Shorts,
    degree: Bytes,
) -> None:
    """Write a placement into a row of the results."""
    between = 1
    for s in range(len(rest) + 1):
        mask, position, place = end, LAST, len(rest)
        if s < len(rest):
            mask, position, place = rest[s], FIRST, 0
            if s != first:
                position, place = MIDDLE, between
                between += 1
        for node in range(len(nodes)):
            if mask >> node & 1:
                stage_of[node], layers[node] = place, cut[s]
                works = that[position, nodes[node], cut[s] - 1] > 0.0
                degree[node] = tp[position, nodes[node], cut[s] - 1] if works else 0
