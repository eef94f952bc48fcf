"""What the search of shared stages needs to know of a variant: That of whole nodes, and what bounds it.

A stage of j layers at a rate of T or more has T (j - o) <= sum over its nodes of (j - o) That(c, j), whatever
the offset o. So it holds no more layers than

    W / T + o, where W adds up each node's w(c) = max over j of max(0, j - o) That(c, j)

and S stages together no more than W / T + S o.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.catalog import Configuration
from solver.kept import Bytes
from solver.roofline import Roofline
from solver.shapes import Floats
from solver.space import Longs
from solver.tables import POSITIONS, NodeTable, degrees, node_slot, node_table

FIRST, MIDDLE, LAST = (POSITIONS.index(position) for position in ("first", "middle", "last"))
OFFSETS: Floats = np.array([0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9])
"""Of a stage's equal share of the layers: where throughput falls fast with layers, the large ones bind."""


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
    return _tables(table.throughput.swapaxes(0, 1), table.tp.swapaxes(0, 1))


def memory_tables(roofline: Roofline, configurations: Sequence[Configuration], n_max: int) -> StageTables:
    """The same for memory alone: 1 where a node holds the layers at the smallest batch, else 0."""
    that = np.zeros((n_max, len(POSITIONS), len(configurations), roofline.model.architecture.layers))
    for c, node in enumerate(configurations):
        for tp in degrees(roofline, node):
            for stages in range(1, n_max + 1):
                for p, position in enumerate(POSITIONS):
                    slot = node_slot(
                        node,
                        tp,
                        first=position == "first" or stages == 1,
                        last=position == "last" or stages == 1,
                    )
                    that[stages - 1, p, c, : roofline.most_layers(slot, stages)] = 1.0
    return _tables(that, np.zeros(that.shape, dtype=np.int64))


def _tables(that: Floats, tp: Longs) -> StageTables:
    that, total = np.ascontiguousarray(that), that.shape[-1]
    before = np.maximum(that[:, FIRST], that[:, MIDDLE])
    before[:2] = that[:2, FIRST]  # of two stages, none is in the middle
    offsets = OFFSETS * (total / np.arange(1.0, len(that) + 1))[:, None]
    beyond = np.maximum(0.0, np.arange(1.0, total + 1) - offsets[..., None])
    either = np.stack([before, that[:, LAST]], axis=1)
    peaks = (either[:, :, :, None, :] * beyond[:, None, None]).max(axis=4)
    return StageTables(that, before, peaks, offsets, np.ascontiguousarray(tp, dtype=np.int8))
