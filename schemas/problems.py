"""The solver's question and its answer (coral.md, "Stage 2").

A problem is self-contained but for the template library, which it names by digest; an answer carries
its chosen templates whole, so that whoever reads it later needs no library.

Units: rates are requests/s for phase `both` and tokens/s for `prefill` and `decode`; prices are USD
per hour.

Fields that came later than the first logs are left out of what is written while they say nothing (`later`),
so that a log replays to the digests that it was written with.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from schemas.allocation import AllocationPolicy
from schemas.base import Count, Frozen, Name, Rate, digest
from schemas.catalog import Market, Phase, Positive, Revision, Runtime, Whole

NodeUsd = Annotated[float, Field(ge=0, le=1e6)]
"""As `Usd`, or 0 for what is paid anyway: nodes of a reserved pool."""


def later(default: Any) -> Any:
    """A field that old records lack: not written while it has its default."""
    return Field(default=default, exclude_if=lambda value: value == default)


class Service(Frozen):
    """What templates are made for: one phase of one model under one SLO class."""

    model: Name
    slo_class: Name
    phase: Phase = "both"

    @property
    def key(self) -> str:
        return f"{self.model}/{self.slo_class}/{self.phase}"


class Pool(Frozen):
    """Where nodes of like price and fate come from: the solver's region r."""

    cloud: Name
    region: Name
    zone: Name = "*"
    market: Market

    @property
    def key(self) -> str:
        return f"{self.cloud}/{self.region}/{self.zone}/{self.market}"


class TemplateRank(Frozen):
    """One engine process of a stage: on which node of the combination, with which devices."""

    node: Count
    device_ids: tuple[Count, ...] = Field(min_length=1)
    memory_gb: Positive
    """Weights and KV cache together, over all of the rank's devices, in 10^9 bytes."""

    @property
    def tp(self) -> int:
        return len(self.device_ids)


class TemplateStage(Frozen):
    """A slice of consecutive layers and the ranks that hold it."""

    layers: Whole
    ranks: tuple[TemplateRank, ...] = Field(min_length=1)


class LatencyTable(Frozen):
    """What an engine double needs of the performance model.

    `step_ms[i]` is the time of one decode step of the whole instance at batch `batch[i]`;
    prefill takes `prefill_ms_per_token` for every uncached prompt token; `startup_s` from start to
    ready.
    """

    batch: tuple[Whole, ...] = Field(min_length=1)
    step_ms: tuple[Positive, ...] = Field(min_length=1)
    prefill_ms_per_token: Positive
    startup_s: Positive

    @model_validator(mode="after")
    def _same_length_and_rising(self) -> Self:
        if len(self.batch) != len(self.step_ms):
            raise ValueError("batch and step_ms differ in length")
        if list(self.batch) != sorted(set(self.batch)):
            raise ValueError("batch must rise strictly")
        return self


class Template(Frozen):
    """A serving template: the best placement of a model variant on a node combination.

    `id` is the digest of the identity fields; the latency table describes and does not identify.
    """

    id: str
    model: Name
    variant: Name
    checkpoint: str
    vllm_args: dict[str, str] = {}
    revision: Revision | None = None
    """Of the checkpoint; None takes what the node finds."""
    unverified: Literal["refuse", "allow"] = "refuse"
    """As in the catalog's variant. It describes and does not identify."""
    phase: Phase
    runtime: Runtime
    nodes: tuple[Name, ...] = Field(min_length=1)
    """The combination: the configuration of each node, by index."""
    stages: tuple[TemplateStage, ...] = Field(min_length=1)
    latency: LatencyTable

    @staticmethod
    def identity(
        model: str,
        variant: str,
        vllm_args: dict[str, str],
        phase: Phase,
        runtime: Runtime,
        nodes: tuple[str, ...],
        stages: tuple[TemplateStage, ...],
        revision: str | None = None,
    ) -> str:
        shape = [{"layers": s.layers, "ranks": [(r.node, r.device_ids) for r in s.ranks]} for s in stages]
        parts: list[object] = [model, variant, vllm_args, phase, runtime, nodes, shape]
        # Templates without a revision keep the id they had before there were revisions: old logs name them.
        return digest(parts if revision is None else [*parts, revision])

    @model_validator(mode="after")
    def _is_what_its_id_says(self) -> Self:
        expected = self.identity(
            self.model,
            self.variant,
            self.vllm_args,
            self.phase,
            self.runtime,
            self.nodes,
            self.stages,
            self.revision,
        )
        if self.id != expected:
            raise ValueError(f"id: {self.id!r} is not the template's digest, expected {expected!r}")
        ranks = [rank for stage in self.stages for rank in stage.ranks]
        if {rank.node for rank in ranks} != set(range(len(self.nodes))):
            raise ValueError("stages: every node of the combination must hold a rank, and no other")
        devices = [(rank.node, device) for rank in ranks for device in rank.device_ids]
        if len(set(devices)) != len(devices):
            raise ValueError("stages: a device is given to two ranks")
        return self

    def uses(self) -> dict[str, int]:
        """U_c: how many nodes of each configuration one instance takes."""
        return {name: self.nodes.count(name) for name in sorted(set(self.nodes))}


class Rating(Frozen):
    """T: a template's saturated throughput for one SLO class under one workload and engine version."""

    slo_class: Name
    throughput: Positive
    workload: str
    """Digest of the workload it was rated for."""
    engine: str
    """Engine version it was rated for, such as `roofline-1`."""


class ServiceDemand(Frozen):
    service: Service
    rate: Rate


class Stock(Frozen):
    """A_r(c) and p_r(c): nodes held plus obtainable of one configuration in one pool."""

    pool: Pool
    configuration: Name
    nodes: Count
    usd_per_hour: NodeUsd
    refused: tuple[Name, ...] = ()
    """Why some held nodes do not count: what they refused (`schemas.events.NODE_REFUSALS`)."""
    interruptions_per_hour: Rate = later(0.0)
    """Of one node: how often its cloud takes it back. Counts with `AllocationPolicy.interruption_hours`."""

    @model_validator(mode="after")
    def _only_what_is_paid_anyway_is_free(self) -> Self:
        if self.usd_per_hour == 0 and self.pool.market != "reserved":
            where = f"{self.configuration} in {self.pool.key}"
            raise ValueError(f"usd_per_hour: 0 for {where}, expected above 0 but for reserved nodes")
        return self


class Sliced(Frozen):
    """Node types of one GPU kind of which a node may be shared: a template's node is then so many GPUs of a
    bought node, which costs its price as a whole; what is left of it is free for others.

    Applies to every pool. GPUs are powers of two, so that slices fill nodes without gaps.
    """

    gpu: Name
    gpus: dict[Name, Whole] = Field(min_length=1)
    """Configuration -> GPUs of it, both what is sold and what templates use."""

    @model_validator(mode="after")
    def _powers_of_two(self) -> Self:
        for name, gpus in self.gpus.items():
            if gpus & (gpus - 1):
                raise ValueError(f"gpus.{name}: {gpus}, expected a power of two")
        return self


class Running(Frozen):
    """Instances running now; they stay selectable even when the library no longer has them."""

    template: Template
    rating: Rating
    pool: Pool
    count: Annotated[int, Field(ge=1)]
    pinned: Count = later(0)
    """So many of them stay, whatever it costs, as long as there is the stock for them."""


class Unfit(Frozen):
    """A place that refused a model: nothing of it that does not run there goes there for now."""

    model: Name
    pool: Pool
    configuration: Name
    reason: Name = "refused"
    """What it was (`schemas.events.Refusal`)."""
    tries: Count = 0
    """New instances that may go there all the same: one, to see, once the back-off is over."""


class Problem(Frozen):
    """One allocation to solve."""

    id: Name
    library: str
    demands: tuple[ServiceDemand, ...]
    stocks: tuple[Stock, ...]
    running: tuple[Running, ...] = ()
    startup_ratio: dict[str, float] = {}
    """K per model: start-up time over adjustment interval; a model that is missing has 0."""
    excluded_configurations: tuple[Name, ...] = ()
    unfit: tuple[Unfit, ...] = ()
    sliced: tuple[Sliced, ...] = later(())
    """GPU kinds whose nodes are shared; any other node is a template's alone."""
    policy: AllocationPolicy = later(AllocationPolicy())


class Chosen(Frozen):
    """nu_r(tau) = count."""

    template: Template
    rating: Rating
    pool: Pool
    count: Annotated[int, Field(ge=1)]
    usd_per_hour: NodeUsd
    """Of one instance; of a slice its share of the cheapest node, by GPUs, that it fits on."""

    @property
    def service(self) -> Service:
        return Service(model=self.template.model, slo_class=self.rating.slo_class, phase=self.template.phase)


class Unmet(Frozen):
    """Demand that the stock cannot meet, and what stands in the way."""

    service: Service
    rate: Positive
    share: Annotated[float, Field(gt=0, le=1)]
    binding: str


class Bought(Frozen):
    """Nodes of a kind that is sliced: what the instances' slices lie on."""

    pool: Pool
    configuration: Name
    count: Annotated[int, Field(ge=1)]
    usd_per_hour: NodeUsd
    """Of one node."""


class Apart(Frozen):
    """A share of a model's demand that prefill and decode instances of one region and variant serve
    together."""

    service: Service
    """The whole, phase `both`."""
    region: str
    """As cloud/region."""
    variant: Name
    share: Annotated[float, Field(gt=0, le=1)]


class Binding(Frozen):
    """A limit that the plan uses up, and that costs something."""

    limit: str
    """Such as `stock of 1xH100 in aws/us-east-2/*/on-demand`, or `regions of m/interactive/both`."""
    usd_per_hour: Positive
    """What one more of it (node, GPU, replica, USD) would save, at the relaxation."""


class Breach(Frozen):
    """A policy that was kept in part only."""

    policy: Literal["replicas", "regions_at_least", "pinned"]
    subject: str
    asked: Count
    got: Count


class Step(Frozen):
    """One step of the order: what was reached, and what cannot be beaten given the steps before."""

    minimised: Literal["worst", "total", "cost"]
    """The largest weighted unmet share; the sum of weighted shares; USD per hour."""
    value: float
    bound: float
    gap: Rate
    """Relative for the cost, absolute for shares."""


class Answer(Frozen):
    """The allocation found, with what it rests on."""

    problem: Name
    method: str
    status: Literal["optimal", "feasible"]
    chosen: tuple[Chosen, ...]
    unmet: tuple[Unmet, ...] = ()
    usd_per_hour: Rate
    """The bill: nodes, and KV caches sent between prefill and decode."""
    penalty_usd_per_hour: Rate
    bound_usd_per_hour: float
    """No allocation that leaves as little demand unmet, and is as little short of policies, costs less,
    start-up and what policies add included."""
    gap: Rate
    seconds: Rate
    policy_usd_per_hour: Rate = later(0.0)
    """What policies add to the cost without being on the bill: surcharges, risk. Not `breaches`."""
    nodes: tuple[Bought, ...] = later(())
    apart: tuple[Apart, ...] = later(())
    columns: Count = later(0)
    """Templates times pools that were chosen from."""
    steps: tuple[Step, ...] = later(())
    """Those that were needed, in their order: where demand can be met, the cost alone."""
    binding: tuple[Binding, ...] = later(())
    """Dearest first."""
    breaches: tuple[Breach, ...] = later(())
    kept: bool = later(False)
    """The running plan: a new one would save less than the policy's least share, or none was found."""
    ignored: tuple[str, ...] = later(())
    """Of the question: what the library knows nothing of."""
    stopped: str | None = later(None)
    """Why the search was ended before it had done: this is the best plan that it had told of by then, proven
    as far as it was. None where it had done."""
    timings: dict[str, float] = later({})
    """Seconds by part of the search."""

    @property
    def value(self) -> float:
        """What was minimised, USD per hour, but for the weight of breaches."""
        return self.usd_per_hour + self.penalty_usd_per_hour + self.policy_usd_per_hour
