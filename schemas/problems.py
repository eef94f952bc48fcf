"""The solver's question and its answer (coral.md, "Stage 2").

A problem is self-contained but for the template library, which it names by digest; an answer carries
its chosen templates whole, so that whoever reads it later needs no library.

Units: rates are requests/s for phase `both` and tokens/s for `prefill` and `decode`; prices are USD
per hour.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Count, Frozen, Name, Rate, Usd, digest
from schemas.catalog import Market, Phase, Positive, Revision, Runtime, Whole


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
    usd_per_hour: Usd
    refused: tuple[Name, ...] = ()
    """Why some held nodes do not count: what they refused (`schemas.events.NODE_REFUSALS`)."""


class Running(Frozen):
    """Instances running now; they stay selectable even when the library no longer has them."""

    template: Template
    rating: Rating
    pool: Pool
    count: Annotated[int, Field(ge=1)]


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


class Chosen(Frozen):
    """nu_r(tau) = count."""

    template: Template
    rating: Rating
    pool: Pool
    count: Annotated[int, Field(ge=1)]
    usd_per_hour: Usd
    """Of one instance."""

    @property
    def service(self) -> Service:
        return Service(model=self.template.model, slo_class=self.rating.slo_class, phase=self.template.phase)


class Unmet(Frozen):
    """Demand that the stock cannot meet, and what stands in the way."""

    service: Service
    rate: Positive
    share: Annotated[float, Field(gt=0, le=1)]
    binding: str


class Answer(Frozen):
    """The allocation found, with what it rests on."""

    problem: Name
    method: str
    status: Literal["optimal", "feasible"]
    chosen: tuple[Chosen, ...]
    unmet: tuple[Unmet, ...] = ()
    usd_per_hour: Rate
    penalty_usd_per_hour: Rate
    bound_usd_per_hour: float
    """No allocation that leaves as little demand unmet costs less, start-up penalties included."""
    gap: Rate
    seconds: Rate
