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
    fp8_tflops: Positive | None = None
    link: Literal["nvlink", "pcie"]
    link_gb_s: Positive
    source: str


class Configuration(Frozen):
    """A node type (coral.md: GPU configuration c), such as `2xL40S`."""

    name: Name
    gpu: Name
    gpus: Whole
    network_gbps: Positive
    source: str


class Architecture(Frozen):
    """The shape of a transformer, as its config.json has it."""

    layers: Whole
    hidden: Whole
    heads: Whole
    kv_heads: Whole
    head_dim: Whole
    ffn_dim: Whole | None = None
    experts: Whole | None = None
    top_k: Whole | None = None
    expert_ffn_dim: Whole | None = None
    sliding_window: Whole | None = None
    full_attention_layers: Whole
    vocab: Whole
    tied_embeddings: bool = False

    @model_validator(mode="after")
    def _dense_or_experts(self) -> Self:
        if (self.ffn_dim is None) == (self.experts is None):
            raise ValueError("exactly one of ffn_dim and experts is expected")
        if self.experts is not None and (self.top_k is None or self.expert_ffn_dim is None):
            raise ValueError("a model with experts needs top_k and expert_ffn_dim")
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


class Workload(Frozen):
    """Mean request lengths the planner assumes until enough was measured."""

    mean_input_tokens: Positive
    mean_output_tokens: Positive
    source: str


class ServiceLevel(Frozen):
    """One SLO class of one model: what is promised, and for which workload."""

    slo_class: Name
    ttft: tuple[Objective, ...] = Field(min_length=1)
    tpot: tuple[Objective, ...] = Field(min_length=1)
    workload: Workload
    drain_deadline_s: Positive | None = None
    """The longest that a drain waits for open answers; None is the policy's."""


class Model(Frozen):
    """A public model: the name clients ask for, its shape, its checkpoints and its service levels."""

    name: Name
    architecture: Architecture
    variants: tuple[Variant, ...] = Field(min_length=1)
    levels: tuple[ServiceLevel, ...] = Field(min_length=1)
    source: str


class ListPrice(Frozen):
    """A published price of a node: a bare fact with its source."""

    cloud: Name
    region: Name
    zone: Name = "*"
    market: Market
    configuration: Name
    instance_type: str
    usd_per_hour: Positive
    source: str


class Catalog(Frozen):
    """All of it, with every reference resolved; `digest` names exactly this content."""

    gpus: tuple[Gpu, ...]
    configurations: tuple[Configuration, ...]
    models: tuple[Model, ...]
    prices: tuple[ListPrice, ...] = ()

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
