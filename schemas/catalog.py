"""What may be served, on what, and how well: models, GPUs, configurations, service levels.

A catalog is a YAML file or a folder of such (one ships as `schemas/data/catalog`); every number in it carries
its unit in its name, and each entry its source.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from schemas.architecture import Architecture, LatentAttention
from schemas.base import Frozen, Name, Positive, Whole, digest
from schemas.catalog_parts import put_together
from schemas.drafts import draft
from schemas.faults import Fault, FileError, Steps, unique
from schemas.marked import read_marked
from schemas.vllm_arguments import wrong_arguments
from schemas.workload import Burstiness, Objective, Quantiles, ServiceLevel, Workload

__all__ = [  # what the parts below are made of is to be had here too
    "Architecture",
    "Burstiness",
    "LatentAttention",
    "Objective",
    "Positive",
    "Quantiles",
    "ServiceLevel",
    "Whole",
    "Workload",
]

Market = Literal["on-demand", "spot", "reserved"]
Phase = Literal["prefill", "decode", "both"]
Runtime = Literal["vllm", "coral"]
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 over a checkpoint's files, in hexadecimal digits (`agents.weights`)."""

BF16_FROM = 8.0
"""NVIDIA's least compute capability with bfloat16."""


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
        return self.at_least(BF16_FROM)

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

    @field_validator("vllm_args")
    @classmethod
    def _arguments_are_allowed(cls, given: dict[str, str]) -> dict[str, str]:
        if wrong := wrong_arguments(given):
            raise ValueError("; ".join(wrong))
        return given


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
        if faults := [f"{'.'.join(map(str, steps))}: {text}" for steps, text in broken_references(self)]:
            raise ValueError("; ".join(faults))
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


Broken = Iterator[tuple[Steps, str]]
"""Ways to what refers to nothing, or is named like another; and what was expected."""


def broken_references(
    catalog: Catalog, unfit: Mapping[str, Collection[str]] = MappingProxyType({})
) -> Broken:
    """All that makes the parts of a catalog no whole.

    Args:
        unfit: by section, names of entries that are there, but not valid: what refers to them is no mistake.
    """
    gpus = {gpu.name for gpu in catalog.gpus} | set(unfit.get("gpus", ()))
    configurations = {c.name for c in catalog.configurations} | set(unfit.get("configurations", ()))
    models = {model.name for model in catalog.models} | set(unfit.get("models", ()))
    yield from _twice("gpus", [(gpu.name,) for gpu in catalog.gpus])
    yield from _twice("configurations", [(c.name,) for c in catalog.configurations])
    yield from _twice("workloads", [(workload.name,) for workload in catalog.workloads])
    yield from _twice("regions", [(region.cloud, region.name) for region in catalog.regions])
    yield from _twice("models", [(model.name,) for model in catalog.models])
    yield from _twice("setups", [(setup.name,) for setup in catalog.setups])
    for i, configuration in enumerate(catalog.configurations):
        yield from _unknown(("configurations", i, "gpu"), [configuration.gpu], gpus)
    for i, model in enumerate(catalog.models):
        for way, text in _broken_model(model, gpus):
            yield ("models", i, *way), text
    yield from _broken_prices(catalog, configurations)
    regions = {f"{region.cloud}/{region.name}" for region in catalog.regions}
    for i, setup in enumerate(catalog.setups):
        yield from _unknown(("setups", i, "models"), setup.models, models)
        yield from _unknown(("setups", i, "configurations"), setup.configurations, configurations)
        yield from _unknown(("setups", i, "regions"), setup.regions, regions)


def _broken_model(model: Model, gpus: set[str]) -> Broken:
    yield from _twice("variants", [(variant.name,) for variant in model.variants])
    yield from _twice("levels", [(level.slo_class,) for level in model.levels])
    for i, variant in enumerate(model.variants):
        yield from _unknown(("variants", i, "gpus"), variant.gpus, gpus)


def _broken_prices(catalog: Catalog, configurations: set[str]) -> Broken:
    keys = [(p.cloud, p.region, p.zone, p.market, p.configuration) for p in catalog.prices]
    yield from _twice("prices", keys)
    regions = {(region.cloud, region.name) for region in catalog.regions}
    for i, price in enumerate(catalog.prices):
        yield from _unknown(("prices", i, "configuration"), [price.configuration], configurations)
        if regions and (price.cloud, price.region) not in regions:
            yield ("prices", i, "region"), f"{price.cloud}/{price.region} is not among the regions"
        if price.basis == "pro-rata" and not catalog.paper:
            yield ("prices", i, "basis"), "pro-rata is what nobody sells, expected in paper mode only"


def _twice(section: str, names: Sequence[tuple[str | None, ...]]) -> Broken:
    seen: set[tuple[str | None, ...]] = set()
    for i, name in enumerate(names):
        if name in seen:
            yield (section, i), f"{'/'.join(map(str, name))} is given twice"
        seen.add(name)


def _unknown(steps: Steps, names: Iterable[str], known: set[str]) -> Broken:
    for name in names:
        if name not in known:
            yield steps, f"{name!r} is unknown, expected one of {', '.join(sorted(known))}"


# ------------------------------------------------------------------------------------------------- files

SHIPPED_CATALOG = Path(__file__).parent / "data" / "catalog"
PAPER_CATALOG = Path(__file__).parent / "data" / "paper"
"""The set-ups of arXiv 2605.04357, with prices of what nobody sells: to compare with it, not to plan by."""


class CatalogError(FileError):
    """All that is wrong with a catalog's files."""


def load_catalog(path: Path = SHIPPED_CATALOG) -> Catalog:
    """Read a catalog: a file, or a folder whose `*.yaml` files are parts of one.

    Raises:
        OSError: it cannot be read.
        CatalogError: fields are missing, unknown or impossible, or refer to nothing; each with file and line.
    """
    catalog, faults = draft_catalog(path)
    if faults:
        raise CatalogError(faults)
    return catalog


def draft_catalog(path: Path, more: Callable[[Catalog], Broken] | None = None) -> tuple[Catalog, list[Fault]]:
    """As much of a catalog as is valid, and all that is wrong with it, in the order of files and lines.

    Args:
        more: further checks, told as `broken_references` tells.

    Raises:
        OSError: it cannot be read.
    """
    marked = read_marked(path)
    if marked.unread:  # what seems to be missing may stand there
        return Catalog(gpus=(), configurations=(), models=()), unique(marked.faults)
    put_together(marked)
    found = draft(Catalog, marked)
    made: Catalog = found.model
    for steps, text in (*broken_references(made, found.unfit), *(more(made) if more else ())):
        marked.fault(found.steps(steps), text)
    return made, unique(marked.faults)
