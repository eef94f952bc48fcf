"""What a library is built for: which services, on which nodes, within which limits.

- `core` and `extended` are a paper's set-ups (the catalog in paper mode): every configuration its own node,
  sold or not, one checkpoint a model, prefill and decode apart, runtime `coral`.
- The catalog's own: every level, on what is sold and the slices of it, runtime `vllm`, prefill and decode
  together. A file (`SetupFile`) says the same and more, field by field.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

from schemas.base import Frozen, Name, Whole
from schemas.catalog import PAPER_CATALOG, SHIPPED_CATALOG, Catalog, Configuration, Model, Phase, Runtime
from schemas.yamlfile import load_yaml

PAPER_SETUPS = ("core", "extended")
NAMED_CATALOGS = {"shipped": SHIPPED_CATALOG, "paper": PAPER_CATALOG}
SLICES = (1, 2, 4, 8)
"""GPUs of a node that a template may take, the rest being free for others."""
N_MAX, RHO = 6, 12.0
"""Where the paper saw its best templates stop getting better."""
MOST_COMBINATIONS = 2_000_000
"""As many as a build gets through in seconds: a set-up of one's own keeps to them if it leaves N_max open."""

Regions = tuple[Annotated[str, Field(pattern=r"^[^/\s]+/[^/\s]+$")], ...]
"""As cloud/region."""
Listed = TypeVar("Listed", bound=Sequence[object] | Mapping[str, object])


def _any(given: Listed) -> Listed:
    """A list that has become empty must not turn into all there is."""
    if not given:
        raise ValueError("expected at least one, or leave it out to mean all")
    return given


Some = Annotated[Listed, AfterValidator(_any)]
"""Not empty."""


class SetupError(ValueError):
    """A set-up that names what is not there, or limits that cannot be."""


@dataclass(frozen=True)
class Scope:
    """What to build templates for; with the catalog's figures, all that a library follows from."""

    levels: tuple[tuple[str, str], ...]
    """(model, SLO class) pairs."""
    configurations: tuple[Configuration, ...]
    """Those to combine."""
    variants: Mapping[str, tuple[str, ...]]
    """Model -> the checkpoints that its quality policy allows, by name; a missing model allows all."""
    phases: tuple[Phase, ...] = ("both",)
    runtime: Runtime = "vllm"
    n_max: int = N_MAX
    """Most nodes of a template; with 0 there are none."""
    rho: float = RHO
    """A combination has less GPU memory than this times the checkpoint's weights (coral.md)."""
    mixed_max: int | None = None
    """Most nodes of a template of two configurations, and more are not mixed; None: no such limit."""

    def with_limits(
        self, runtime: Runtime | None = None, n_max: int | None = None, rho: float | None = None
    ) -> "Scope":
        """The same with other limits, where they are given."""
        return replace(
            self,
            runtime=self.runtime if runtime is None else runtime,
            n_max=self.n_max if n_max is None else n_max,
            rho=self.rho if rho is None else rho,
        )


class SetupFile(Frozen):
    """A set-up as a YAML file, named as the settings name things."""

    catalog: str | None = None
    """`shipped`, `paper`, or a path from this file on; the settings' catalog if not given."""
    serve: Some[dict[Name, Some[tuple[Name, ...]]]] | None = None
    """Model -> SLO classes; every level of the catalog if not given."""
    variants: dict[Name, Some[tuple[Name, ...]]] = {}
    regions: Some[Regions] | None = None
    """Where nodes are bought; wherever the catalog has prices if not given."""
    configurations: Some[tuple[Name, ...]] | None = None
    """Node types to combine; what is sold there if not given."""
    slices: bool = True
    """Whether 1, 2, 4 or 8 GPUs of a larger node are a node too."""
    phases: Annotated[tuple[Phase, ...], Field(min_length=1)] = ("both",)
    runtime: Runtime = "vllm"
    n_max: Whole | None = None
    """`open_n_max` if not given."""
    rho: Annotated[float, Field(ge=1)] = RHO


@dataclass(frozen=True)
class Setup:
    """A scope with its catalog, and where its nodes are bought."""

    name: str
    catalog: Catalog
    scope: Scope
    regions: tuple[str, ...]
    """Empty: wherever the catalog has prices."""


def paper_setup(name: str, catalog: Catalog) -> Setup:
    """`core` or `extended`, by the paper's catalog.

    Raises:
        SetupError: the catalog has no such set-up.
    """
    found = next((setup for setup in catalog.setups if setup.name == name), None)
    if found is None:
        raise SetupError(f"setup: {name!r}, expected one of {', '.join(s.name for s in catalog.setups)}")
    models = [catalog.model(model) for model in found.models]
    scope = Scope(
        levels=tuple(_levels(models)),
        configurations=tuple(catalog.configuration(node) for node in found.configurations),
        variants={model.name: (model.variants[0].name,) for model in models},
        phases=("prefill", "decode"),
        runtime="coral",
    )
    return Setup(name, catalog, scope, found.regions)


def own_setup(catalog: Catalog, asked: SetupFile | None = None, name: str = "catalog") -> Setup:
    """The catalog's own, or what a file asks for.

    Raises:
        SetupError: the file names what the catalog does not have.
    """
    asked = asked or SetupFile()
    regions = asked.regions or ()
    if unknown := set(regions) - {f"{p.cloud}/{p.region}" for p in catalog.prices}:
        raise SetupError(f"regions: {sorted(unknown)} have no prices in the catalog")
    nodes = [configuration_of(catalog, name) for name in asked.configurations or ()]
    nodes = nodes or sold(catalog, regions)
    scope = Scope(
        levels=_asked_levels(catalog, asked.serve or {}),
        configurations=tuple(with_slices(catalog, nodes) if asked.slices else nodes),
        variants=dict(asked.variants),
        phases=asked.phases,
        runtime=asked.runtime,
        rho=asked.rho,
    )
    n_max = open_n_max(len(scope.configurations)) if asked.n_max is None else asked.n_max
    return Setup(name, catalog, scope.with_limits(n_max=n_max), regions)


def open_n_max(configurations: int) -> int:
    """The paper's N_max, or the largest with combinations few enough.

    It is 4 for all nodes and slices that are sold: of 52, six make 40 million, in minutes and several GB.
    """
    affordable = (n for n in range(N_MAX, 1, -1) if comb(configurations + n, n) <= MOST_COMBINATIONS)
    return next(affordable, 1)


def read_setup(path: Path) -> tuple[SetupFile, Path | None]:
    """A file's set-up and the path of its catalog, None for the settings' one.

    Raises:
        OSError: it cannot be read.
        yaml.YAMLError: it is no YAML.
        pydantic.ValidationError: it is no set-up; the error names the field.
    """
    asked = load_yaml(SetupFile, path)
    if asked.catalog is None:
        return asked, None
    return asked, NAMED_CATALOGS.get(asked.catalog, path.parent / asked.catalog)


# -------------------------------------------------------------------------------------------------- nodes


def sold(catalog: Catalog, regions: Sequence[str] = ()) -> list[Configuration]:
    """Node types that a cloud sells in one of these regions, or anywhere: a price of their own, no share of
    another node's, says so."""
    names = {
        price.configuration
        for price in catalog.prices
        if price.basis != "pro-rata" and (not regions or f"{price.cloud}/{price.region}" in regions)
    }
    return [configuration for configuration in catalog.configurations if configuration.name in names]


def sold_in(catalog: Catalog, name: str) -> tuple[str, ...]:
    """The regions where a node type is sold, as cloud/region."""
    here = {
        f"{price.cloud}/{price.region}"
        for price in catalog.prices
        if price.configuration == name and price.basis != "pro-rata"
    }
    return tuple(sorted(here))


def with_slices(catalog: Catalog, nodes: Sequence[Configuration]) -> list[Configuration]:
    """These nodes and the slices of them, each a node of its own, in the order of GPU kinds and sizes.

    A slice that the catalog describes is as it says. Any other has its share of the largest node's network.
    """
    known = {configuration.name: configuration for configuration in (*catalog.configurations, *nodes)}
    made = {node.name: node for node in nodes}
    for node in sorted(nodes, key=lambda node: -node.gpus):
        for gpus in SLICES:
            name = f"{gpus}x{node.gpu}"
            if gpus < node.gpus and name not in made:
                made[name] = known.get(name) or _slice(node, gpus, name)
    kinds = list(dict.fromkeys(node.gpu for node in nodes))
    return sorted(made.values(), key=lambda node: (kinds.index(node.gpu), node.gpus, node.name))


def _slice(node: Configuration, gpus: int, name: str) -> Configuration:
    share = node.network_gbps * gpus / node.gpus
    source = f"{gpus} of the {node.gpus} GPUs of {node.name}, with their share of its network"
    return Configuration(name=name, gpu=node.gpu, gpus=gpus, network_gbps=share, source=source)


def configuration_of(catalog: Catalog, name: str) -> Configuration:
    """Raises SetupError: the catalog has none of that name."""
    found = next((c for c in catalog.configurations if c.name == name), None)
    if found is None:
        raise SetupError(f"configurations: {name!r} is not in the catalog")
    return found


# ------------------------------------------------------------------------------------------------- levels


def _asked_levels(catalog: Catalog, serve: Mapping[str, Sequence[str]]) -> tuple[tuple[str, str], ...]:
    known = tuple(_levels(catalog.models))
    asked = tuple((model, slo_class) for model, classes in serve.items() for slo_class in classes)
    if unknown := [pair for pair in asked if pair not in known]:
        raise SetupError(f"serve: {'/'.join(unknown[0])} is not in the catalog")
    return asked or known


def _levels(models: Sequence[Model]) -> list[tuple[str, str]]:
    return [(model.name, level.slo_class) for model in models for level in model.levels]
