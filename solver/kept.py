"""What a sweep over a set-up's combinations is given, and what it keeps (`solver.sweep`).

Arrays, since there are hundreds of thousands of rows: `solver.placement` makes a template of a row when one
is asked for.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from schemas.catalog import Phase, Runtime
from solver.roofline import Roofline
from solver.shapes import Flags, Floats

Reason = Literal["gpu-not-allowed", "no-parallelism", "does-not-fit", "slo-too-tight"]
"""Why a combination cannot serve, the first that applies.

gpu-not-allowed: the variant does not run on one of its GPUs. no-parallelism: no tensor-parallel degree
divides the nodes and the model with at most a stage a layer, or the phase wants fewer stages than there are
nodes. does-not-fit: too little memory. slo-too-tight: it fits, but no placement meets TTFT and TPOT.
"""
REASONS: tuple[Reason, ...] = get_args(Reason)

Bytes = NDArray[np.int8]
Shorts = NDArray[np.int16]


class Key(NamedTuple):
    """One variant of a service, for one runtime."""

    model: str
    variant: str
    slo_class: str
    phase: Phase
    runtime: Runtime


@dataclass(frozen=True)
class ServiceInputs:
    """What one variant of a service is rated by; variants of one service compete in the pruning."""

    roofline: Roofline
    runtime: Runtime

    @property
    def key(self) -> Key:
        r = self.roofline
        return Key(r.model.name, r.variant.name, r.level.slo_class, r.phase, self.runtime)


@dataclass(frozen=True)
class Placements:
    """The best placement of each of some combinations of one size; n rows, as in `Kept`.

    Rows of throughput 0 have none, and the rest of them says nothing.
    """

    throughput: Floats
    stages: Bytes
    stage_of: Bytes
    layers: Shorts
    tp: Bytes
    """0 for a node of runtime `coral` that adds nothing: the others would do as well without it."""
    batch: Floats
    order: Bytes

    @classmethod
    def none(cls, count: int, size: int) -> "Placements":
        """`count` rows without any."""
        return cls(
            throughput=np.zeros(count),
            stages=np.zeros(count, dtype=np.int8),
            stage_of=np.full((count, size), -1, dtype=np.int8),
            layers=np.zeros((count, size), dtype=np.int16),
            tp=np.full((count, size), -1, dtype=np.int8),
            batch=np.zeros(count),
            order=np.full((count, size), -1, dtype=np.int8),
        )

    def take(self, rows: Flags) -> "Placements":
        """Some of the rows."""
        return Placements(*(getattr(self, part.name)[rows] for part in fields(self)))


class Search(Protocol):
    """The exact search of one runtime, for one variant of a service, over the configurations of a set-up."""

    def place(self, rows: Bytes, floors: Floats) -> Placements:
        """The best placement of each combination, where it gives more than its floor.

        Args:
            rows: shape (n, size), indices of configurations in rising order.
        """

    def parallel(self, rows: Bytes) -> Flags:
        """Whether the nodes can share the model at all (not `no-parallelism`)."""

    def fits(self, rows: Bytes) -> Flags:
        """Whether memory alone would hold the model, at the smallest batch and whatever time it takes."""


@dataclass(frozen=True)
class Kept:
    """The combinations worth choosing from, smaller ones first, then by rank (`solver.space`); n rows.

    A node is a column of a row. Columns beyond a combination's size hold -1 (0 in `layers`).
    """

    combination: Bytes
    """[n, n_max]: indices of configurations, in rising order."""
    throughput: Floats
    """[n]: requests/s for phase `both`, else tokens/s."""
    stages: Bytes
    """[n]: number of stages S."""
    stage_of: Bytes
    """[n, n_max]: the stage that the node is in; for runtime `vllm` the first of those it hosts."""
    layers: Shorts
    """[n, n_max]: layers of the node's stage; for runtime `vllm` of all the stages it hosts."""
    tp: Bytes
    """[n, n_max]: the node's tensor-parallel degree."""
    batch: Floats
    """[n]: sequences of a micro-batch, for runtime `vllm`; 0 for `coral`, where nodes differ."""
    order: Bytes
    """[n, n_max]: the node's place in the chain, for runtime `vllm`; -1 for `coral`."""
    considered: int = 0
    """Combinations within rho."""
    over_rho: int = 0
    valid: int = 0
    """Of those considered: they serve, as a whole or by one of their parts."""
    refused: dict[Reason, int] = field(default_factory=dict)
    """Of those considered: `considered` = `valid` + all of these."""

    def __len__(self) -> int:
        return len(self.throughput)

    def take(self, rows: Flags | NDArray[np.int64]) -> "Kept":
        """Some of the rows; what is said of all combinations stays."""
        arrays = [part.name for part in fields(self) if isinstance(getattr(self, part.name), np.ndarray)]
        return replace(self, **{name: getattr(self, name)[rows] for name in arrays})
