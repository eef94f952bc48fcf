"""The exact best placement for runtime `coral`: nodes of one stage share its load (solver.md, "Stage 1").

Nodes of a stage add up, stages take the minimum, and slices of layers are interchangeable. So a stage of the
nodes N gives F(j) = sum over N of That(c, j) while it holds j layers, which never rises with j; and a
partition into stages reaches more than T exactly if the layers that each can hold above T, #{j : F(j) > T},
make up the model. Which stage is first and which is last matters as well: partitions are told apart by the
last one, and the first is the one that loses the fewest layers by it.

A partition that beats T is climbed: its stages hold all they can above T, and the slowest one gives a layer
away until the layers are the model's. Each step raises the least rate to the next value that any cut can
have, so the result is one of the values F(j) itself, and no cut of this partition in this order gives more.

What makes it fast is how little is climbed. The search starts at the value to beat. A number of stages whose
bound (`solver.stage_tables`) is below the model's layers is out at once; so is a last stage that leaves the
others too much, and a partition whose stages together fall shorter of their bounds than these leave room for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from schemas.catalog import Configuration
from solver.compiled import compiled
from solver.kept import Bytes, Placements, Shorts
from solver.partitions import Words, partitions
from solver.roofline import Roofline
from solver.shapes import Flags, Floats
from solver.space import Longs
from solver.stage_tables import FIRST, LAST, MIDDLE, StageTables, memory_tables, stage_tables

MOST_NODES = 8
"""There are 4,140 ways to part 8 nodes, and 115,975 to part 10."""
NEVER = -(1 << 20)
"""In place of a number of layers where a stage cannot hold even one."""

Tables = tuple[Floats, Floats, Floats, Floats, Bytes]
"""`StageTables`, as compiled code takes them."""
Parts = tuple[Longs, Words, Longs, Words]
"""`Partitions`, likewise."""


@dataclass(frozen=True)
class StageSearch:
    """The search of one variant of a service (`solver.kept.Search`)."""

    roofline: Roofline
    configurations: Sequence[Configuration]
    n_max: int

    def __post_init__(self) -> None:
        if self.n_max > MOST_NODES:
            raise ValueError(f"n_max: {self.n_max}, expected at most {MOST_NODES} for runtime coral")

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
    parts = partitions(rows.shape[1])
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


@compiled
def _place_rows(
    rows: Bytes,
    floors: Floats,
    tables: Tables,
    parts: Parts,
    found: tuple[Floats, Bytes, Bytes, Shorts, Bytes],
) -> None:
    """The search of `place_stages`: fills `found`."""
    count, size = rows.shape
    who = np.zeros((1 << size, size + 1), dtype=np.int64)
    work = (
        np.zeros((2, 1 << size)),
        np.zeros(1 << size),
        np.zeros(1 << size, dtype=np.int64),
        np.empty(size, dtype=np.int64),
    )
    for i in range(count):
        pattern, best = _list_members(rows[i], who), floors[i]
        for s in range(1, min(size, tables[0].shape[3]) + 1):
            best = _place_as(s, rows[i], who, pattern, best, tables, parts, work, found, i)


@compiled
def _list_members(nodes: Bytes, who: Longs) -> int:
    """Which nodes equal the next (`solver.partitions`).

    Fills `who[mask]` with the configurations of the nodes in a mask, then -1. (A loop that ends at a mark is
    the fastest for so few: compilers prepare loops of a known length for many.)
    """
    pattern = 0
    for node in range(len(nodes) - 1):
        if nodes[node] == nodes[node + 1]:
            pattern |= 1 << node
    for mask in range(1 << len(nodes)):
        left, node, k = mask, 0, 0
        while left:
            if left & 1:
                who[mask, k] = nodes[node]
                k += 1
            left >>= 1
            node += 1
        who[mask, k] = -1
    return pattern


@compiled
def _place_as(
    s: int,
    nodes: Bytes,
    who: Longs,
    pattern: int,
    best: float,
    tables: Tables,
    parts: Parts,
    work: tuple[Floats, Floats, Longs, Longs],
    found: tuple[Floats, Bytes, Bytes, Shorts, Bytes],
    i: int,
) -> float:
    """The most that a combination gives as S stages, or `best`; fills row i of `found` where it is more."""
    that, before, peaks, offsets, tp = tables
    groups, ends, starts, others = parts
    reach, lack, least, cut = work
    rates, total, whole = that[s - 1], that.shape[3], (1 << len(nodes)) - 1
    offset, bound = _aim(nodes, peaks[s - 1], offsets[s - 1], best, s, total, reach, lack, least)
    if bound < total:
        return best
    for g in range(groups[pattern, s - 1], groups[pattern, s]):
        end, p, held, spare = ends[g], starts[g], -1, 0.0
        while p < starts[g + 1] and bound >= total:
            if held < 0:  # at first, and when `best` has changed
                room = reach[0, whole ^ end] + offset * (s - 1)
                limit = reach[1, end] + offset
                held = _last_holds(rates[LAST], who, end, best, s, limit, room, total)
                spare = room + held - total + 0.5
            if held == 0:
                break
            left = spare
            for q in range(s - 1):
                left -= lack[others[p, q]]
            p += 1
            if left < 0.0:
                continue
            rest = others[p - 1, : s - 1]
            if not _may_beat(who, rest, before[s - 1], best, reach[0], offset, left, lack, least):
                continue
            first, rate = _climb(who, rest, end, rates, best, held, least, cut)
            if rate > best:
                best, held = rate, -1
                found[0][i], found[1][i] = rate, s
                row = (found[2][i], found[3][i], found[4][i])
                _describe(nodes, rest, end, first, cut, rates, tp[s - 1], row)
                offset, bound = _aim(nodes, peaks[s - 1], offsets[s - 1], best, s, total, reach, lack, least)
    return best


@compiled
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
            given = 0.0
            for node in nodes:
                given += max(peaks[0, node, o], peaks[1, node, o])
            given = given / best + count * offsets[o]
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


@compiled
def _last_holds(
    rates: Floats, who: Longs, end: int, best: float, count: int, limit: float, room: float, total: int
) -> int:
    """Layers that the last stage holds above `best`; 0 where the others' room for the rest is too small."""
    most = min(total + 1 - count, int(limit + 1e-6))
    needed = max(1, total - int(room + 1e-6))
    if needed > most or _rate(rates, who, end, needed) <= best:
        return 0
    return _most_layers(rates, who, end, best, needed, most)


@compiled
def _rate(rates: Floats, who: Longs, mask: int, j: int) -> float:
    """F(j) of the nodes in the mask."""
    given, k = 0.0, 0
    c = who[mask, k]
    while c >= 0:
        given += rates[c, j - 1]
        k += 1
        c = who[mask, k]
    return given


@compiled
def _most_layers(rates: Floats, who: Longs, mask: int, above: float, low: int, high: int) -> int:
    """The most layers that nodes hold at more than `above`: at least `low`, at most `high`."""
    while low < high:
        middle = (low + high + 1) // 2
        if _rate(rates, who, mask, middle) > above:
            low = middle
        else:
            high = middle - 1
    return low


@compiled
def _may_beat(
    who: Longs,
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
        if least[mask] >= needed or _rate(before, who, mask, needed) > best:
            held = _most_layers(before, who, mask, best, max(least[mask], needed), most)
            least[mask] = held
        lack[mask] += most - held
        spare -= most - held
        if held < needed:
            return False
    return True


@compiled
def _climb(
    who: Longs,
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
        held[count] = _most_layers(that[LAST], who, end, above, 0, held[count])
        if held[count] == 0:  # the others may hold the whole model, but the last stage needs a layer
            return first, rate
        room, gain, leading, opened = held[count], 2 * NEVER, 0, 0
        for s in range(count):
            opening = _most_layers(that[FIRST], who, rest[s], above, 0, most[rest[s]])
            middle = _most_layers(that[MIDDLE], who, rest[s], above, 0, most[rest[s]]) if count > 1 else 0
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
        rate = _cut(who, rest, end, first, that, room - total, held, cut)


@compiled
def _stage_rate(who: Longs, rest: Words, end: int, first: int, that: Floats, s: int, j: int) -> float:
    """F(j) of a stage: the last one where s is the number of the others."""
    if s == len(rest):
        return _rate(that[LAST], who, end, j)
    return _rate(that[FIRST if s == first else MIDDLE], who, rest[s], j)


@compiled
def _cut(
    who: Longs, rest: Words, end: int, first: int, that: Floats, excess: int, held: Longs, cut: Longs
) -> float:
    """Take `excess` of the layers held, each from the slowest stage; the least rate in the end."""
    count = len(held)
    rates = np.empty(count)
    for s in range(count):
        cut[s] = held[s]
        rates[s] = _stage_rate(who, rest, end, first, that, s, cut[s])
    while excess > 0:
        slowest = int(np.argmin(rates))
        if cut[slowest] == 1:  # it stays the slowest: what is left may come from anywhere
            break
        cut[slowest] -= 1
        excess -= 1
        rates[slowest] = _stage_rate(who, rest, end, first, that, slowest, cut[slowest])
    for s in range(count):
        taken = min(excess, cut[s] - 1)
        cut[s] -= taken
        excess -= taken
    return float(rates.min())


@compiled
def _describe(
    nodes: Bytes,
    rest: Words,
    end: int,
    first: int,
    cut: Longs,
    that: Floats,
    tp: Bytes,
    row: tuple[Bytes, Shorts, Bytes],
) -> None:
    """Write a placement into a row of the results: stage, its layers and the degree, by node."""
    stage_of, layers, degree = row
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
