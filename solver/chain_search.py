"""The exact best placement for runtime `vllm`: a chain of stages over whole nodes (solver.md, "Stage 1").

One tensor-parallel degree t and one micro-batch b for all; a node with n GPUs hosts n/t consecutive stages.
So S follows from t, and for a given t, b and rate T each stage holds at most so many layers above T, by where
it is: first in the chain, last, sending within its node, or to the next node over the slower network of the
two. What an order of the nodes holds is a sum over neighbours, and the order that holds most is found by
dynamic programming over the sets of nodes that a chain's beginning may have. An order beats T exactly if it
holds the model; it is then climbed as in `solver.stage_search`: the slowest stage gives a layer away until
the layers are the model's.

The search starts at the value to beat, and most combinations end there: were every stage in its best place,
no batch would hold the model above it. A batch that would is tried, the one with most to spare first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from schemas.catalog import Configuration
from solver.chain_tables import ENDING, INNER, LONE, OPENING, WIRED, ChainTables, chain_tables, memory_tables
from solver.compiled import compiled
from solver.kept import Bytes, Placements, Shorts
from solver.roofline import BATCHES, Roofline
from solver.shapes import Flags, Floats
from solver.space import Longs

NEVER = -(1 << 20)
"""In place of a number of layers where a stage cannot hold even one."""
UNSEEN = NEVER << 20
"""Less than any chain of such stages."""

Times = tuple[Floats, Floats, Floats, Shorts]
"""`done`, `layer`, `once` and `most` of `ChainTables`, for one degree and one length of the chain."""


@dataclass(frozen=True)
class ChainSearch:
    """The search of one variant of a service (`solver.kept.Search`)."""

    roofline: Roofline
    configurations: Sequence[Configuration]
    n_max: int

    @property
    def lone(self) -> bool:
        """Whether a chain must be one stage: a KV cache is handed over between instances of one stage only
        (design record vllm.md, "Prefill/decode disaggregation")."""
        return self.roofline.phase != "both"

    @cached_property
    def tables(self) -> ChainTables:
        return chain_tables(self.roofline, self.configurations, self.n_max, lone=self.lone)

    @cached_property
    def memory(self) -> ChainTables:
        return memory_tables(self.roofline, self.configurations, self.n_max, lone=self.lone)

    def place(self, rows: Bytes, floors: Floats) -> Placements:
        return place_chains(rows, floors, self.tables, self._layers)

    def parallel(self, rows: Bytes) -> Flags:
        hosts = self.tables.hosts[:, rows]
        stages, most = hosts.sum(axis=2), 1 if self.lone else self._layers
        found: Flags = ((hosts > 0).all(axis=2) & (stages <= most)).any(axis=0)
        return found

    def fits(self, rows: Bytes) -> Flags:
        found: Flags = place_chains(rows, np.zeros(len(rows)), self.memory, self._layers).throughput > 0
        return found

    @property
    def _layers(self) -> int:
        return self.roofline.model.architecture.layers


def place_chains(rows: Bytes, floors: Floats, tables: ChainTables, layers: int) -> Placements:
    """Search the combinations of one size, for placements that give more than the floors.

    Args:
        layers: of the model.
    """
    found = Placements.none(*rows.shape)
    batch = np.zeros(len(rows), dtype=np.int64)
    _place_rows(
        rows,
        floors,
        layers,
        (tables.degrees, tables.hosts, tables.gpu, tables.wire),
        (tables.done, tables.layer, tables.once, tables.most, tables.once_out, tables.most_out),
        (found.throughput, found.stages, found.stage_of, found.layers, found.tp, batch, found.order),
    )
    found.batch[:] = np.where(found.stages > 0, BATCHES[batch], 0.0)
    return found


# ----------------------------------------------------------------------------------------------- compiled


@compiled
def _place_rows(
    rows: Bytes,
    floors: Floats,
    total: int,
    nodes: tuple[Longs, Longs, Longs, Longs],
    times: tuple[Floats, Floats, Floats, Shorts, Floats, Shorts],
    found: tuple[Floats, Bytes, Bytes, Shorts, Bytes, Longs, Bytes],
) -> None:
    """The search of `place_chains`: fills `found`."""
    degrees, hosts, gpu, wire = nodes
    done, layer, once, most, once_out, most_out = times
    throughput, stages, stage_of, layers, tp, batch, order = found
    count, size = rows.shape
    room = np.empty(len(done))
    chain, place = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    for i in range(count):
        row, best = rows[i], floors[i]
        for t in range(len(degrees)):
            depth = _stages(row, hosts[t])
            if depth < 1 or depth > min(total, most.shape[3]):
                continue
            mine = (done, layer[t], once[t], most[t, :, :, depth - 1])
            outs = (once_out[t], most_out[t, :, depth - 1])
            b = _most_room(row, hosts[t], gpu, mine, outs, best, room)
            while room[b] >= total:
                held = _best_order(row, hosts[t], gpu, wire, b, mine, best, chain)
                if held < total:
                    room[b] = -1.0
                    b = int(np.argmax(room))
                    continue
                best = _climb(row, hosts[t], gpu, wire, b, mine, best, chain, total, layers[i], place)
                throughput[i], stages[i], batch[i] = best, depth, b
                for at in range(size):
                    node = chain[at]
                    order[i, node], stage_of[i, node], tp[i, node] = at, place[node], degrees[t]
                b = _most_room(row, hosts[t], gpu, mine, outs, best, room)


@compiled
def _stages(row: Bytes, hosts: Longs) -> int:
    """Length of the chain; 0 where the degree does not divide a node."""
    depth = 0
    for c in row:
        if hosts[c] == 0:
            return 0
        depth += hosts[c]
    return depth


@compiled
def _most_room(
    row: Bytes,
    hosts: Longs,
    gpu: Longs,
    mine: Times,
    outs: tuple[Floats, Shorts],
    best: float,
    room: Floats,
) -> int:
    """The batch with which the stages, each in its best place, hold most layers above `best`.

    Fills `room` with these numbers of layers, of all batches.
    """
    done, layer, once, most = mine
    once_out, most_out = outs
    slowest = 1.0 / best if best > 0.0 else 1e300
    room[:] = 0.0
    for c in row:
        g, inner = gpu[c], hosts[c] - 1
        for b in range(len(done)):
            whole = np.floor((done[b] * slowest - once_out[c, b]) / layer[g, b] + 1e-6)
            room[b] += min(float(most_out[c, b]), whole)
            if inner > 0:
                whole = np.floor((done[b] * slowest - once[g, INNER, b]) / layer[g, b] + 1e-6)
                room[b] += inner * min(float(most[g, INNER, b]), whole)
    return int(np.argmax(room))


@compiled
def _holds(g: int, kind: int, b: int, mine: Times, above: float) -> int:
    """The most layers that a stage holds at a rate of more than `above`; NEVER instead of 0."""
    done, layer, once, most = mine
    high = int(most[g, kind, b])
    if high == 0:
        return NEVER
    each, rest = layer[g, b], once[g, kind, b]
    if above > 0.0:
        held = int(max(0.0, min(float(high), (done[b] / above - rest) / each)))
        while held < high and done[b] / (each * (held + 1) + rest) > above:
            held += 1
        while held > 0 and done[b] / (each * held + rest) <= above:
            held -= 1
        high = held
    return high if high > 0 else NEVER


@compiled
def _best_order(
    row: Bytes,
    hosts: Longs,
    gpu: Longs,
    wire: Longs,
    b: int,
    mine: Times,
    above: float,
    chain: Longs,
) -> int:
    """The most layers that a chain holds above a rate, over all orders; fills `chain` with the best one.

    held[set, last] is the most that a set of nodes with that one at its end holds, but for the stage with
    which that one sends on; before[set, last] is the node that sends to it.
    """
    size = len(row)
    held = np.full((1 << size, size), UNSEEN)
    before = np.full((1 << size, size), -1)
    passed = np.zeros(size, dtype=np.int64)
    for a in range(size):
        g, inner = gpu[row[a]], hosts[row[a]] - 1
        held[1 << a, a] = 0
        if inner > 0:
            each = _holds(g, INNER, b, mine, above)
            passed[a] = inner * each
            held[1 << a, a] = passed[a] - each + _holds(g, OPENING, b, mine, above)
    for nodes in range(1, (1 << size) - 1):
        _lengthen(nodes, row, hosts, gpu, wire, b, mine, above, passed, held, before)
    nodes, best, last = (1 << size) - 1, UNSEEN, 0
    for a in range(size):
        ends = LONE if size == 1 and hosts[row[a]] == 1 else ENDING
        whole = held[nodes, a] + _holds(gpu[row[a]], ends, b, mine, above)
        if whole > best:
            best, last = whole, a
    if best < 0:  # some stage cannot hold a layer, whatever the order: there may be none to go back through
        return best
    for at in range(size - 1, -1, -1):
        chain[at] = last
        nodes, last = nodes ^ (1 << last), before[nodes, last]
    return best


@compiled
def _lengthen(
    nodes: int,
    row: Bytes,
    hosts: Longs,
    gpu: Longs,
    wire: Longs,
    b: int,
    mine: Times,
    above: float,
    passed: Longs,
    held: Longs,
    before: Longs,
) -> None:
    """Let chains of a set of nodes send on to each node that is not in it.

    Args:
        passed: layers that a node in the chain holds beside the stage with which it sends on.
    """
    size = len(row)
    for a in range(size):
        if held[nodes, a] == UNSEEN:
            continue
        opens = nodes == 1 << a and hosts[row[a]] == 1
        for d in range(size):
            if not nodes >> d & 1:
                sending = WIRED + 2 * min(wire[row[a]], wire[row[d]]) + opens
                sent = held[nodes, a] + _holds(gpu[row[a]], sending, b, mine, above) + passed[d]
                if sent > held[nodes | 1 << d, d]:
                    held[nodes | 1 << d, d], before[nodes | 1 << d, d] = sent, a


@compiled
def _climb(
    row: Bytes,
    hosts: Longs,
    gpu: Longs,
    wire: Longs,
    b: int,
    mine: Times,
    above: float,
    chain: Longs,
    total: int,
    layers: Shorts,
    place: Longs,
) -> float:
    """The best rate of a chain that holds the model above a rate.

    Fills, by node, `layers` with those of all its stages and `place` with the number of its first one.
    """
    done, layer, once, _ = mine
    depth = _stages(row, hosts)
    node, cut = np.empty(depth, dtype=np.int64), np.empty(depth, dtype=np.int64)
    rates, rest = np.empty(depth), np.empty(depth)
    s, excess = 0, -total
    for at in range(len(chain)):
        a = chain[at]
        g = gpu[row[a]]
        place[a] = s
        for inner in range(hosts[row[a]]):
            kind = OPENING if s == 0 else INNER
            if s == depth - 1:
                kind = LONE if s == 0 else ENDING
            elif inner == hosts[row[a]] - 1:
                kind = WIRED + 2 * min(wire[row[a]], wire[row[chain[at + 1]]]) + (s == 0)
            node[s], rest[s], cut[s] = a, once[g, kind, b], _holds(g, kind, b, mine, above)
            rates[s] = done[b] / (layer[g, b] * cut[s] + rest[s])
            excess += cut[s]
            s += 1
    while excess > 0:
        slowest = int(np.argmin(rates))
        if cut[slowest] == 1:  # it stays the slowest: the rest may come from anywhere
            break
        cut[slowest] -= 1
        excess -= 1
        rates[slowest] = done[b] / (layer[gpu[row[node[slowest]]], b] * cut[slowest] + rest[slowest])
    layers[:] = 0
    for s in range(depth):
        taken = min(excess, cut[s] - 1)
        excess -= taken
        layers[node[s]] += cut[s] - taken
    return float(rates.min())
