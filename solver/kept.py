"""What a sweep over a set-up's combinations is given, and what it keeps (`solver.sweep`).

Arrays, since there are hundreds of thousands of rows: `solver.placement` makes a template of a row when one
is asked for.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from schemas.catalog import Phase, Runtime
from solver.roofline import Roofline
from solver.shapes import Floats

Reason = Literal["gpu-not-allowed", "no-parallelism", "does-not-fit", "slo-too-tight"]
"""Why a combination cannot serve, the first that applies.

gpu-not-allowed: the variant does not run on one of its GPUs. no-parallelism: no tensor-parallel degree divides
the nodes and the model with at most a stage a layer, or the phase wants fewer stages than there are nodes.
does-not-fit: too little memory. slo-too-tight: it fits, but no placement meets TTFT and TPOT.
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
