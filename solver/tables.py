"""That[position, S, c, j]: what a node gives while it holds j layers as one of S stages (coral.md, stage 1).

A node of n GPUs may split each layer over t of them (t divides n and the model's heads) and then runs n/t
data-parallel replicas of its slice, which share its network: the table takes the t that gives most. That is
runtime `coral`, where a node's replicas share a stage; runtime `vllm` has one t for a chain and lays several
stages on a node, so `solver.chain_search` chooses there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from schemas.catalog import Configuration
from solver.roofline import Roofline, Slot
from solver.shapes import Floats

Position = Literal["first", "middle", "last"]
POSITIONS: tuple[Position, ...] = get_args(Position)


@dataclass(frozen=True)
class NodeTable:
    """Saturated throughput of nodes, in requests/s for phase `both`, else tokens/s.

    The axes are position, number of stages, configuration, layers - 1. A lone stage (S = 1) is first and last
    at once, whatever its position is called.
    """

    configurations: tuple[str, ...]
    stages: tuple[int, ...]
    throughput: Floats
    """Never rises with layers; 0 where memory or an objective forbids it."""
    tp: NDArray[np.int64]
    """The tensor-parallel degree of it; 0 where there is none."""


def node_table(
    roofline: Roofline, configurations: Sequence[Configuration], stages: Sequence[int] = (1, 2, 3, 4, 5, 6)
) -> NodeTable:
    """The table of one phase of one variant. GPUs that the variant does not run on give 0."""
    shape = (len(POSITIONS), len(stages), len(configurations), roofline.model.architecture.layers)
    throughput, degree = np.zeros(shape), np.zeros(shape, dtype=np.int64)
    known: dict[Slot, Floats] = {}
    for c, node in enumerate(configurations):
        for tp in degrees(roofline, node):
            for p, position in enumerate(POSITIONS):
                given = node.gpus // tp * _peaks(roofline, node, tp, position, stages, known)
                better = given > throughput[p, :, c]
                throughput[p, :, c] = np.where(better, given, throughput[p, :, c])
                degree[p, :, c] = np.where(better, tp, degree[p, :, c])
    return NodeTable(tuple(node.name for node in configurations), tuple(stages), throughput, degree)


def degrees(roofline: Roofline, node: Configuration) -> list[int]:
    """Tensor-parallel degrees that the node and the model allow, largest first; none if it may not run."""
    if node.gpu not in roofline.variant.gpus:
        return []
    return [t for t in range(node.gpus, 0, -1) if node.gpus % t == 0 and roofline.shape.splits_into(t)]


def node_slot(node: Configuration, tp: int, *, first: bool, last: bool) -> Slot:
    """A replica's slot: what it sends goes over its share of the node's network."""
    share = node.network_gbps / 8 / (node.gpus // tp)
    return Slot(node.gpu, tp, first, last, 0.0 if last else share)


def _peaks(
    roofline: Roofline,
    node: Configuration,
    tp: int,
    position: Position,
    stages: Sequence[int],
    known: dict[Slot, Floats],
) -> Floats:
    """The best batch's throughput of a replica: shape (stages, layers)."""
    several = _peak(
        roofline, node_slot(node, tp, first=position == "first", last=position == "last"), stages, known
    )
    if 1 not in stages:
        return several
    alone = _peak(roofline, node_slot(node, tp, first=True, last=True), stages, known)
    return np.where(np.array(stages)[:, None] == 1, alone, several)


def _peak(roofline: Roofline, slot: Slot, stages: Sequence[int], known: dict[Slot, Floats]) -> Floats:
    if slot not in known:
        known[slot] = roofline.peaks(slot, stages)
    return known[slot]
