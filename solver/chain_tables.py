"""What the search of chains needs to know of a variant: the time of every stage that may be in one.

A stage's rate with j layers at batch b is done(b) / (layer(b) j + once(b)), as `solver.roofline` has it;
memory, promises and the engine's limits say how many layers it may hold at most, by the length S of the
chain. Which stage it is matters to `once` and to the most layers only: whether it is first or last, and over
which wire it sends. A wire between nodes is as fast as the slower of the two, so there are few.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from schemas.catalog import Configuration
from solver.kept import Shorts
from solver.roofline import BATCHES, Roofline, Slot
from solver.shapes import Floats
from solver.space import Longs
from solver.tables import degrees

INNER, OPENING, ENDING, LONE, WIRED = range(5)
"""Kinds of stage: between others of its node; the same, first of the chain; last of the chain; the only one
of the chain. From WIRED on, two for each wire to another node: not first, and first."""


@dataclass(frozen=True)
class ChainTables:
    """Stages by degree t, GPU g, kind k, chain length S and batch b; nodes by configuration c."""

    degrees: Longs
    """[t]: tensor-parallel degrees, the largest first."""
    hosts: Longs
    """[t, c]: stages that a node hosts; 0 where the degree does not divide it."""
    gpu: Longs
    """[c]"""
    wire: Longs
    """[c]: its network among the wires, slowest first."""
    done: Floats
    """[b]: requests or tokens of a round."""
    layer: Floats
    """[t, g, b]: seconds."""
    once: Floats
    """[t, g, k, b]: seconds."""
    most: Shorts
    """[t, g, k, S - 1, b]: layers."""
    once_out: Floats
    """[t, c, b]: the least of a node's last stage, wherever the node is."""
    most_out: Shorts
    """[t, c, S - 1, b]: the most of a node's last stage, wherever the node is."""


class _Stage(NamedTuple):
    """Where a stage's figures belong, and the slot they are of."""

    t: int
    g: int
    k: int
    slot: Slot


class _Frame(NamedTuple):
    """The axes of the tables."""

    degrees: list[int]
    gpus: list[str]
    wires: list[float]
    hosts: Longs
    depth: int
    """The longest chain."""


def chain_tables(
    roofline: Roofline, configurations: Sequence[Configuration], n_max: int, *, lone: bool
) -> ChainTables:
    """The tables for chains of up to `n_max` nodes; with `lone`, of one stage only."""
    frame = _frame(roofline, configurations, n_max)
    stages = list(_stages(roofline, configurations, frame, lone=lone))
    batches = len(BATCHES)
    shape = (len(frame.degrees), len(frame.gpus), WIRED + 2 * len(frame.wires))
    layer, once = np.ones((*shape[:2], batches)), np.full((*shape, batches), np.inf)
    most = np.zeros((*shape, frame.depth, batches), dtype=np.int16)
    done = np.ones(batches)
    for t, g, k, slot in stages:
        work = roofline.known_round(slot.gpu, slot.tp)
        layer[t, g] = np.broadcast_to(work.step.layer.total_s, (batches, 1))[:, 0]
        once[t, g, k] = np.broadcast_to(roofline.once_s(slot, work.step), (batches, 1))[:, 0]
        most[t, g, k] = _most(roofline.pace_and_depth(slot)[1], frame.depth)
        done = work.done[:, 0]
    return _with_nodes(frame, configurations, done, layer, once, most)


def memory_tables(
    roofline: Roofline, configurations: Sequence[Configuration], n_max: int, *, lone: bool
) -> ChainTables:
    """The same for memory alone, at the smallest batch: every stage that holds its layers has the rate 1."""
    frame = _frame(roofline, configurations, n_max)
    shape = (len(frame.degrees), len(frame.gpus), WIRED + 2 * len(frame.wires))
    most = np.zeros((*shape, frame.depth, 1), dtype=np.int16)
    for t, g, k, slot in _stages(roofline, configurations, frame, lone=lone):
        depth = roofline.memory_depth(slot, roofline.layer_counts, float(BATCHES[0]))
        most[t, g, k] = _most(depth[None, :], frame.depth)
    return _with_nodes(
        frame, configurations, np.ones(1), np.ones((*shape[:2], 1)), np.zeros((*shape, 1)), most
    )


def _frame(roofline: Roofline, configurations: Sequence[Configuration], n_max: int) -> _Frame:
    tps = [degrees(roofline, node) for node in configurations]
    every = sorted({tp for of_node in tps for tp in of_node}, reverse=True)
    hosts = [
        [node.gpus // tp if tp in of_node else 0 for node, of_node in zip(configurations, tps, strict=True)]
        for tp in every
    ]
    most = max((max(of_degree) for of_degree in hosts), default=1)
    return _Frame(
        degrees=every,
        gpus=sorted({node.gpu for node in configurations}),
        wires=sorted({node.network_gbps for node in configurations}),
        hosts=np.array(hosts, dtype=np.int64).reshape(len(every), len(configurations)),
        depth=min(roofline.model.architecture.layers, n_max * most),
    )


def _stages(
    roofline: Roofline, configurations: Sequence[Configuration], frame: _Frame, *, lone: bool
) -> Iterator[_Stage]:
    """Every stage that a chain may have."""
    for t, tp in enumerate(frame.degrees):
        hosting = [(node, hosts) for node, hosts in zip(configurations, frame.hosts[t], strict=True) if hosts]
        heard = {frame.wires.index(node.network_gbps) for node, _ in hosting}
        for g, gpu in enumerate(frame.gpus):
            here = [(node, hosts) for node, hosts in hosting if node.gpu == gpu]
            link = roofline.gpus[gpu].link_gb_s
            if any(hosts == 1 for _, hosts in here):
                yield _Stage(t, g, LONE, Slot(gpu, tp, True, True, 0.0))
            if not here or lone:
                continue
            yield _Stage(t, g, INNER, Slot(gpu, tp, False, False, link))
            yield _Stage(t, g, OPENING, Slot(gpu, tp, True, False, link))
            yield _Stage(t, g, ENDING, Slot(gpu, tp, False, True, 0.0))
            for wire in {min(w, frame.wires.index(node.network_gbps)) for node, _ in here for w in heard}:
                for first in (False, True):
                    slot = Slot(gpu, tp, first, False, frame.wires[wire] / 8)
                    yield _Stage(t, g, WIRED + 2 * wire + first, slot)


def _most(depths: Floats, longest: int) -> Shorts:
    """From the longest chain that each number of layers allows, the layers that each length of chain does.

    Args:
        depths: shape (batches, layers), never rising with layers.

    Returns:
        Shape (longest, batches).
    """
    batches = len(depths)
    whole = np.clip(depths, 0, longest).astype(np.int64)
    flat = whole + (longest + 1) * np.arange(batches)[:, None]
    counts = np.bincount(flat.ravel(), minlength=batches * (longest + 1)).reshape(batches, longest + 1)
    return counts[:, :0:-1].cumsum(axis=1)[:, ::-1].T.astype(np.int16)


def _with_nodes(
    frame: _Frame,
    configurations: Sequence[Configuration],
    done: Floats,
    layer: Floats,
    once: Floats,
    most: Shorts,
) -> ChainTables:
    gpu = np.array([frame.gpus.index(node.gpu) for node in configurations])
    wire = np.array([frame.wires.index(node.network_gbps) for node in configurations])
    outs = [[ENDING, LONE, *range(WIRED, WIRED + 2 * w + 2)] for w in wire.tolist()]
    pairs = list(zip(gpu.tolist(), outs, strict=True))
    return ChainTables(
        degrees=np.array(frame.degrees, dtype=np.int64),
        hosts=frame.hosts,
        gpu=gpu,
        wire=wire,
        done=np.ascontiguousarray(done),
        layer=layer,
        once=once,
        most=most,
        once_out=np.stack([once[:, g, kinds].min(axis=1) for g, kinds in pairs], axis=1),
        most_out=np.stack([most[:, g, kinds].max(axis=1) for g, kinds in pairs], axis=1),
    )
