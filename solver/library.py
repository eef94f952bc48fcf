"""The template library (coral.md, "Stage 1"): which combinations are worth choosing from.

Enumerates one to `n_max` equal nodes and small mixed combinations, places each (runtime `vllm`) and drops
what splitting into parts makes needless. Deterministic from its inputs, so that whoever lacks a library can
build it again and compare digests.
"""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from schemas.base import Count, Frozen, Name, canonical, digest
from schemas.catalog import Catalog, Configuration, Model, Phase, Whole
from schemas.performance import Efficiencies, load_efficiencies
from schemas.problems import Rating, Service, Template
from solver.combinations import Combination, best_split, enumerate_combinations
from solver.correction import correction_of
from solver.placement import Found, Refusal, describe, search
from solver.profiles import Profile
from solver.roofline import ENGINE, Roofline

SCHEMA = 2
"""Version of the file; a reader refuses others."""


class LibraryError(ValueError):
    """A library file that is not what it says, or inputs that no library can be built from."""


class Rated(Frozen):
    """A template and what it gives to one service."""

    template: Template
    rating: Rating

    @property
    def service(self) -> Service:
        return Service(model=self.template.model, slo_class=self.rating.slo_class, phase=self.template.phase)


class Refused(Frozen):
    """How many combinations of a service were refused, by reason (placement.Refusal)."""

    service: Service
    reasons: dict[str, Count]


class Inputs(Frozen):
    """All that a library follows from."""

    catalog: str
    """Digest of the catalog without its prices."""
    efficiencies: str
    """Digest of the GPUs' efficiencies."""
    profile: str | None = None
    """Digest of the measured points that correct them."""
    levels: tuple[tuple[Name, Name], ...]
    configurations: tuple[Name, ...]
    variants: dict[Name, tuple[Name, ...]] = {}
    phase: Phase = "both"
    n_max: Whole
    mixed_max: Annotated[int, Field(ge=1)]
    rho: Annotated[float, Field(ge=1)]


class Library(Frozen):
    """Templates of every service, with the engine version and the inputs they were rated by."""

    schema_version: int = SCHEMA
    engine: str
    inputs: Inputs
    templates: tuple[Rated, ...]
    refused: tuple[Refused, ...] = ()
    considered: Count = 0
    """Combinations that were placed, over all services and variants."""

    @cached_property
    def digest(self) -> str:
        return digest(self)

    @cached_property
    def by_service(self) -> dict[str, tuple[Rated, ...]]:
        """Service key -> its templates, by id."""
        found: dict[str, list[Rated]] = {}
        for rated in self.templates:
            found.setdefault(rated.service.key, []).append(rated)
        return {key: tuple(found[key]) for key in sorted(found)}

    def save(self, path: Path) -> None:
        """Write as gzipped JSON `{"digest", "library"}`; the same library gives the same bytes."""
        body = canonical({"digest": self.digest, "library": self.model_dump(mode="json")})
        path.write_bytes(gzip.compress(body, mtime=0))


def load_library(path: Path) -> Library:
    """Read what `Library.save` wrote.

    Raises:
        OSError: the file cannot be read.
        LibraryError: it is of another schema version, or its content is not what its digest says.
    """
    try:
        plain = json.loads(gzip.decompress(path.read_bytes()))
        version = plain["library"]["schema_version"]
        if version != SCHEMA:
            raise LibraryError(f"{path.name}: schema version {version}, expected {SCHEMA}")
        library = Library.model_validate_json(canonical(plain["library"]))
        stated = plain["digest"]
    except (EOFError, KeyError, TypeError, gzip.BadGzipFile) as error:
        raise LibraryError(f"{path.name}: not a library file: {error!r}") from error
    except ValueError as error:
        raise error if isinstance(error, LibraryError) else LibraryError(f"{path.name}: {error}") from error
    if library.digest != stated:
        raise LibraryError(f"{path.name}: content has digest {library.digest}, the file says {stated}")
    return library


# --------------------------------------------------------------------------------------------------- build


class Figures(NamedTuple):
    """All that templates are rated by."""

    catalog: Catalog
    efficiencies: Efficiencies
    profile: Profile | None


def build_library(
    catalog: Catalog,
    *,
    levels: Sequence[tuple[str, str]],
    configurations: Sequence[str],
    n_max: int = 4,
    rho: float = 12.0,
    variants: Mapping[str, Sequence[str]] | None = None,
    mixed_max: int = 3,
    efficiencies: Efficiencies | None = None,
    profile: Profile | None = None,
) -> Library:
    """Build the templates of `levels` on `configurations`.

    Args:
        levels: (model, SLO class) pairs.
        configurations: names of those to combine; what a region sells is the allocation's business.
        n_max: most equal nodes of a template.
        rho: most GPU memory of a combination, as a multiple of the variant's weights (coral.md).
        variants: model -> names of the checkpoints its quality policy allows; a missing model allows all.
        mixed_max: most nodes of a template of two configurations; 1 leaves mixed ones out.
        efficiencies: of every GPU that a configuration has; those that ship if None.
        profile: measured points, by which the model is corrected where there are any.

    Raises:
        LibraryError: an unknown model, SLO class, variant or configuration, or a limit below 1.
        ValueError: a GPU without efficiencies.
    """
    efficiencies = efficiencies or load_efficiencies()
    figures = Figures(catalog, efficiencies, profile)
    inputs = _inputs(figures, levels, configurations, variants or {}, n_max, mixed_max, rho)
    nodes = {name: _configuration(catalog, name) for name in inputs.configurations}
    built = [_build_service(figures, inputs, nodes, *level) for level in inputs.levels]
    rated = sorted((r for b in built for r in b.rated), key=lambda r: (r.service.key, r.template.id))
    return Library(
        engine=ENGINE,
        inputs=inputs,
        templates=tuple(rated),
        refused=tuple(b.refused for b in built),
        considered=sum(b.considered for b in built),
    )


def _inputs(
    figures: Figures,
    levels: Sequence[tuple[str, str]],
    configurations: Sequence[str],
    variants: Mapping[str, Sequence[str]],
    n_max: int,
    mixed_max: int,
    rho: float,
) -> Inputs:
    """The arguments in their one order, so that no order of asking makes another library."""
    if n_max < 1 or mixed_max < 1 or rho < 1:
        raise LibraryError(f"n_max, mixed_max and rho must be at least 1, got {n_max}, {mixed_max}, {rho}")
    return Inputs(
        catalog=figures.catalog.model_copy(update={"prices": ()}).digest,  # templates outlive prices
        efficiencies=digest(figures.efficiencies),
        profile=None if figures.profile is None else figures.profile.digest,
        levels=tuple(sorted(set(levels))),
        configurations=tuple(sorted(set(configurations))),
        variants={model: tuple(sorted(names)) for model, names in sorted(variants.items())},
        n_max=n_max,
        mixed_max=mixed_max,
        rho=rho,
    )


@dataclass(frozen=True)
class _Built:
    rated: list[Rated]
    refused: Refused
    considered: int


def _build_service(
    figures: Figures,
    inputs: Inputs,
    nodes: Mapping[str, Configuration],
    model_name: str,
    slo_class: str,
) -> _Built:
    """The kept templates of one service, over all its allowed variants."""
    rooflines = list(_rooflines(figures, inputs, model_name, slo_class))
    best: dict[Combination, float] = {}
    kept: list[Rated] = []
    reasons: dict[str, int] = {}
    considered = 0
    for combination in enumerate_combinations(inputs.configurations, inputs.n_max, inputs.mixed_max):
        split = best_split(combination, best)
        own: list[tuple[Found, Roofline]] = []
        for roofline in rooflines:
            members = [nodes[name] for name in combination]
            if not _small_enough(roofline, members, inputs.rho):
                continue
            considered += 1
            found = search(roofline, members)
            if isinstance(found, Refusal):
                reasons[found.reason] = reasons.get(found.reason, 0) + 1
            else:
                own.append((found, roofline))
        top = max(own, key=lambda pair: pair[0].throughput, default=None)
        best[combination] = max(split, top[0].throughput if top else 0.0)
        if top and top[0].throughput > split * (1 + 1e-9):
            placement = describe(top[1], top[0])
            kept.append(Rated(template=placement.template, rating=placement.rating))
    service = Service(model=model_name, slo_class=slo_class, phase=inputs.phase)
    return _Built(kept, Refused(service=service, reasons=dict(sorted(reasons.items()))), considered)


def _rooflines(figures: Figures, inputs: Inputs, model_name: str, slo_class: str) -> Iterator[Roofline]:
    catalog, efficiencies = figures.catalog, figures.efficiencies
    model = _model(catalog, model_name)
    level = next((level for level in model.levels if level.slo_class == slo_class), None)
    if level is None:
        raise LibraryError(f"levels: {model_name!r} has no SLO class {slo_class!r}")
    allowed = inputs.variants.get(model_name, tuple(v.name for v in model.variants))
    if unknown := set(allowed) - {v.name for v in model.variants}:
        raise LibraryError(f"variants: {model_name!r} has no variant {sorted(unknown)}")
    gpus = {gpu.name: gpu for gpu in catalog.gpus}
    for variant in model.variants:
        if variant.name in allowed:
            correction = correction_of(figures.profile, catalog, efficiencies, model, variant)
            yield Roofline(model, variant, level, gpus, efficiencies, inputs.phase, correction)


def _small_enough(roofline: Roofline, nodes: Sequence[Configuration], rho: float) -> bool:
    memory = sum(node.gpus * roofline.gpus[node.gpu].memory_gb for node in nodes)
    return memory * 1e9 <= rho * roofline.shape.total_bytes


def _configuration(catalog: Catalog, name: str) -> Configuration:
    found = next((c for c in catalog.configurations if c.name == name), None)
    if found is None:
        raise LibraryError(f"configurations: {name!r} is not in the catalog")
    return found


def _model(catalog: Catalog, name: str) -> Model:
    found = next((m for m in catalog.models if m.name == name), None)
    if found is None:
        raise LibraryError(f"levels: model {name!r} is not in the catalog")
    return found
