"""What `solver.explain` says of a node: plain data, every figure with its unit."""

from typing import Literal, get_args

from schemas.base import Frozen
from schemas.catalog import Phase

Limit = Literal[
    "compute",
    "memory-bandwidth",
    "kv-space",
    "link",
    "network",
    "latency-budget",
    "fixed-overhead",
    "max-num-seqs",
    "max-num-batched-tokens",
]
Place = Literal["alone", "first", "middle", "last"]
"""Where in its chain a stage is: a lone one has embedding and LM head, a middle one neither."""
PLACES: tuple[Place, ...] = get_args(Place)


class Bound(Frozen):
    """A figure that has an upper limit."""

    limit: Limit
    what: str
    """Such as `TPOT over 6 stages`."""
    needs: float
    allowed: float
    unit: str

    @property
    def broken(self) -> bool:
        return self.needs > self.allowed


class StepTime(Frozen):
    """The mean step of one replica, in ms: by work, which adds up, and by resource, which overlap."""

    layers_ms: float
    embedding_ms: float
    head_ms: float
    send_ms: float
    overhead_ms: float
    total_ms: float
    alone_ms: dict[Limit, float]
    """What each resource alone would take."""


class Memory(Frozen):
    """One GPU's memory in 10^9 bytes; the parts add up to `total_gb`."""

    weights_gb: float
    kv_gb: float
    reserved_gb: float
    """Activations, graphs, buffers, and the share that the engine leaves alone."""
    free_gb: float
    """Negative by what is missing."""
    total_gb: float


class NextBatch(Frozen):
    """The next larger batch that the roofline tries."""

    batch: float
    throughput: float
    """What the node would give if nothing forbade it."""
    violates: tuple[Bound, ...]


class Explanation(Frozen):
    """What a node gives at its best batch, and why not more; without any throughput, why none."""

    model: str
    variant: str
    slo_class: str
    phase: Phase
    configuration: str
    layers: int
    stages: int
    place: Place
    tp: int
    replicas: int
    """Data-parallel ones on the node: its GPUs over `tp`."""
    binds: Limit
    busiest: Limit
    """The resource that the step spends most time on."""
    throughput: float
    """Of the whole node; 0 where even the smallest batch is forbidden."""
    unit: Literal["requests/s", "tokens/s"]
    batch: float
    """Sequences of one micro-batch of one replica; prompts in phase `prefill`."""
    step: StepTime
    memory: Memory
    bounds: tuple[Bound, ...]
    """Everything that is limited, with its figure at this batch."""
    next_batch: NextBatch | None
    """None if this is the largest that is tried."""
    gains: dict[Limit, float]
    """What 10% more of each would give: 0.05 is 5% more throughput. Empty where throughput is 0."""
