"""What may be served, on what, and how well: models, GPUs, configurations, service levels.

A catalog is a YAML file (one ships as `schemas/data/catalog.yaml`); every number in it carries its
unit in its name, and each entry its source.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Frozen, Name, digest
from schemas.yamlfile import load_yaml

Market = Literal["on-demand", "spot", "reserved"]
Phase = Literal["prefill", "decode", "both"]
Runtime = Literal["vllm", "coral"]
Positive = Annotated[float, Field(gt=0)]
Whole = Annotated[int, Field(ge=1)]
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 over a checkpoint's files, in hexadecimal digits (`agents.weights`)."""

VLLM_ARGUMENTS = frozenset(
    {
        "dtype",
        "quantization",
        "kv-cache-dtype",
        "block-size",
        "max-model-len",
        "max-num-seqs",
        "max-num-batched-tokens",
        "gpu-memory-utilization",
        "enable-prefix-caching",
    }
)
"""The vLLM arguments a variant may set: those that change memory or speed and nothing else."""


class Gpu(Frozen):
    """One GPU kind. Rates are dense vendor figures; bandwidths in 10^9 bytes per second."""

    name: Name
    memory_gb: Positive
    bandwidth_gb_s: Positive
    bf16_tflops: Positive
    """16-bit arithmetic: float16's rate where the GPU is too old for bfloat16 (`has_bf16`)."""
    fp8_tflops: Positive | None = None
    fp4_tflops: Positive | None = None
    link: Literal["nvlink", "pcie", "xgmi"]
    link_gb_s: Positive
    """To the other GPUs of its node, one direction."""
    compute_capability: Annotated[str, Field(pattern=r"^(\d+\.\d|gfx\w+)$")] | None = None
    """NVIDIA's, such as 8.9, or AMD's target; None is taken to support every precision."""
    source: str

    @property
    def has_bf16(self) -> bool:
        return self.at_least(8.0)

    def at_least(self, capability: float) -> bool:
        """Whether its compute capability is no lower than this, as far as is known."""
        known = self.compute_capability
        return known is None or known.startswith("gfx") or float(known) >= capability


class Configuration(Frozen):
    """A node type (coral.md: GPU configuration c), such as `2xL40S`."""

    name: Name
    gpu: Name
    gpus: Whole
    network_gbps: Positive
    """To other nodes: the slowest cloud's, since a template is rated once for every pool."""
    network_gbps_by_cloud: dict[Name, Positive] = {}
    """The same where clouds differ."""
    source: str

    @model_validator(mode="after")
    def _the_slowest_counts(self) -> Self:
        slowest = min(self.network_gbps_by_cloud.values(), default=self.network_gbps)
        if slowest != self.network_gbps:
            raise ValueError(
                f"network_gbps is {self.network_gbps}, expected the least of network_gbps_by_cloud, {slowest}"
            )
        return self


class LatentAttention(Frozen):
    """Multi-head latent attention (DeepSeek): keys and values are made from one small vector a token.

    That vector, with a rotary key that all heads share, is all that the KV cache holds.
    """

    query_rank: Whole
    kv_rank: Whole
    rope_dim: Whole
    """Of the key, position-dependent and shared by all heads."""
    nope_dim: Whole
    """Of each head's query and key, without position."""
    value_dim: Whole


class Architecture(Frozen):
    """The shape of a transformer, as its config.json has it. FFNs are gated."""

    layers: Whole
    hidden: Whole
    heads: Whole
    kv_heads: Whole
    head_dim: Whole
    latent: LatentAttention | None = None
    ffn_dim: Whole | None = None
    """Of dense layers: all of them, or the first `dense_ffn_layers` of a model with experts."""
    dense_ffn_layers: Annotated[int, Field(ge=0)] = 0
    """Layers without experts in a model that has experts."""
    experts: Whole | None = None
    top_k: Whole | None = None
    shared_experts: Annotated[int, Field(ge=0)] = 0
    """Experts that every token uses, beside its `top_k`; as large as the others."""
    expert_ffn_dim: Whole | None = None
    sliding_window: Whole | None = None
    full_attention_layers: Whole
    vocab: Whole
    tied_embeddings: bool = False

    @model_validator(mode="after")
    def _dense_or_experts(self) -> Self:
        if self.experts is None:
            if self.ffn_dim is None or self.dense_ffn_layers or self.shared_experts:
                raise ValueError(
                    "a model without experts needs ffn_dim and has no dense_ffn_layers or shared_experts"
                )
            return self
        if self.top_k is None or self.expert_ffn_dim is None:
            raise ValueError("a model with experts needs top_k and expert_ffn_dim")
        if self.top_k > self.experts:
            raise ValueError(f"top_k is {self.top_k}, expected at most {self.experts}, the number of experts")
        if (self.ffn_dim is None) != (self.dense_ffn_layers == 0):
            raise ValueError(
                "ffn_dim beside experts is that of dense_ffn_layers: both or neither is expected"
            )
        return self

    @model_validator(mode="after")
    def _parts_of_a_whole(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads is {self.heads}, expected a multiple of kv_heads, {self.kv_heads}")
        if max(self.full_attention_layers, self.dense_ffn_layers) > self.layers:
            raise ValueError(
                f"full_attention_layers and dense_ffn_layers: expected at most {self.layers}, the layers"
            )
        if self.sliding_window is None and self.full_attention_layers < self.layers:
            raise ValueError("fewer full_attention_layers than layers need a sliding_window")
        return self


class Variant(Frozen):
    """One checkpoint of a model: what is loaded, in which precision, and on which GPUs it runs."""

    name: Name
    checkpoint: str
    weight_bits: Positive
    """Bits per weight of a layer; embeddings and the LM head are 16-bit."""
    expert_bits: Positive | None = None
    """Bits per weight of the experts where they differ from the rest (4.25 for mxfp4)."""
    kv_bits: Positive = 16
    gpus: tuple[Name, ...]
    vllm_args: dict[str, str] = {}
    revision: Revision | None = None
    """Digest of the checkpoint's files (`coral model revision`); None takes what the node finds."""
    unverified: Literal["refuse", "allow"] = "refuse"
    """Whether an instance may serve without a reference to check its answers against."""

    @model_validator(mode="after")
    def _arguments_are_allowed(self) -> Self:
        for argument in self.vllm_args:
            if argument not in VLLM_ARGUMENTS:
                raise ValueError(
                    f"vllm_args: {argument!r} is not allowed; expected one of {sorted(VLLM_ARGUMENTS)}"
                )
        return self


class Objective(Frozen):
    """A latency promise: the `percentile` of the measured times stays at or under `ms`."""

    percentile: Annotated[float, Field(gt=0, lt=100)]
    ms: Positive
    max_prompt_tokens: Whole | None = None
    """The prompt-length bucket it holds for: prompts up to this long; None is every other prompt."""


class Quantiles(Frozen):
    """Percentiles of a length in tokens; None where the data do not resolve it."""

    p10: Positive | None = None
    p25: Positive | None = None
    p50: Positive | None = None
    p75: Positive | None = None
    p90: Positive | None = None
    p95: Positive | None = None
    p99: Positive | None = None

    @model_validator(mode="after")
    def _they_rise(self) -> Self:
        known = list(self.known.values())
        if not known or known != sorted(known):
            raise ValueError(f"{self.known}: at least one is expected, and none below a lower one")
        return self

    @property
    def known(self) -> dict[float, float]:
        """Probability (0.5 for p50) -> tokens, rising."""
        given: dict[str, float | None] = self.model_dump()
        return {int(name[1:]) / 100: tokens for name, tokens in given.items() if tokens is not None}


class Burstiness(Frozen):
    """How unevenly requests arrive: 1 is a Poisson process, more is burstier.

    `dispersion` is the variance over the mean of the number of arrivals in intervals of `interval_s`. Thinned
    to a share s of its rate, a stream of dispersion D has 1 + s (D - 1): so the rate belongs to it.
    """

    interval_s: Positive
    dispersion: Positive
    requests_per_s: Positive


class Workload(Frozen):
    """Request lengths and arrivals the planner assumes until enough was measured."""

    name: Name | None = None
    mean_input_tokens: Positive
    mean_output_tokens: Positive
    input_tokens: Quantiles | None = None
    output_tokens: Quantiles | None = None
    burstiness: tuple[Burstiness, ...] = ()
    """By interval, shortest first."""
    assumed: str | None = None
    """What of it is no measurement, and why it is taken."""
    source: str


class ServiceLevel(Frozen):
    """One SLO class of one model: what is promised, and for which workload."""

    slo_class: Name
    ttft: tuple[Objective, ...] = Field(min_length=1)
    tpot: tuple[Objective, ...] = Field(min_length=1)
    workload: Workload


class Model(Frozen):
    """A public model: the name clients ask for, its shape, its checkpoints and its service levels."""

    name: Name
    architecture: Architecture
    variants: tuple[Variant, ...] = Field(min_length=1)
    levels: tuple[ServiceLevel, ...] = ()
    """None: known, and not served until somebody promises something."""
    source: str


class Wire(Frozen):
    """What lies between two nodes beside their own network cards."""

    rtt_ms: Positive
    usd_per_gb: Annotated[float, Field(ge=0)]
    """Price of 10^9 bytes sent, both ends together."""


class Region(Frozen):
    """Where nodes are sold. No instance spans regions, so the network that counts is within one."""

    cloud: Name
    name: Name
    within_zone: Wire
    between_zones: Wire
    source: str


class ListPrice(Frozen):
    """A published price of a node: a bare fact with its source."""

    cloud: Name
    region: Name
    zone: Name = "*"
    market: Market
    configuration: Name
    instance_type: str
    """What is sold, or in paper mode the part of it that the price is for."""
    usd_per_hour: Positive
    basis: Literal["read", "ratio", "pro-rata"] = "read"
    """Read from a list; another region's price times the family's ratio; or, in paper mode only, a share of
    the price of a larger node or of one with other GPUs, since nobody sells this one."""
    note: str | None = None
    """What the basis was."""
    source: str


class Setup(Frozen):
    """A set-up of a paper: what of the catalog it uses."""

    name: Name
    models: tuple[Name, ...] = Field(min_length=1)
    configurations: tuple[Name, ...] = Field(min_length=1)
    regions: tuple[str, ...] = Field(min_length=1)
    """As cloud/region."""
    requests_per_s: Positive
    """Of each model."""
    source: str


class Catalog(Frozen):
    """All of it, with every reference resolved; `digest` names exactly this content."""

    gpus: tuple[Gpu, ...]
    configurations: tuple[Configuration, ...]
    models: tuple[Model, ...]
    prices: tuple[ListPrice, ...] = ()
    regions: tuple[Region, ...] = ()
    workloads: tuple[Workload, ...] = ()
    """Those that have a name."""
    setups: tuple[Setup, ...] = ()
    paper: bool = False
    """Paper mode: prices of what nobody sells are allowed, to compare with a paper. Never to plan with."""

    @model_validator(mode="after")
    def _references_resolve(self) -> Self:
        gpus = _names("gpus", [g.name for g in self.gpus])
        configurations = _names("configurations", [c.name for c in self.configurations])
        _names("models", [m.name for m in self.models])
        for configuration in self.configurations:
            _known(f"configurations.{configuration.name}.gpu", configuration.gpu, gpus)
        for model in self.models:
            _names(f"models.{model.name}.variants", [v.name for v in model.variants])
            _names(f"models.{model.name}.levels", [level.slo_class for level in model.levels])
            for variant in model.variants:
                for gpu in variant.gpus:
                    _known(f"models.{model.name}.variants.{variant.name}.gpus", gpu, gpus)
        for price in self.prices:
            _known(f"prices.{price.instance_type}.configuration", price.configuration, configurations)
        return self

    @property
    def digest(self) -> str:
        return digest(self)

    def gpu(self, name: str) -> Gpu:
        return next(g for g in self.gpus if g.name == name)

    def configuration(self, name: str) -> Configuration:
        return next(c for c in self.configurations if c.name == name)

    def model(self, name: str) -> Model:
        return next(m for m in self.models if m.name == name)


def _names(where: str, names: list[str]) -> frozenset[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{where}: {twice} given twice")
    return frozenset(names)


def _known(where: str, name: str, names: frozenset[str]) -> None:
    if name not in names:
        raise ValueError(f"{where}: {name!r} is unknown; expected one of {sorted(names)}")


SHIPPED_CATALOG = Path(__file__).parent / "data" / "catalog.yaml"


def load_catalog(path: Path = SHIPPED_CATALOG) -> Catalog:
    """Read a catalog file.

    Raises:
        OSError: the file cannot be read.
        yaml.YAMLError: it is no YAML.
        pydantic.ValidationError: a field is missing, unknown or impossible; the error names it.
    """
    return load_yaml(Catalog, path)
