"""From a set-up to a library: what to sweep, what an older library has already, and the rows put together."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from schemas.base import digest
from solver.figures import Figures
from solver.kept import Kept, Key, ServiceInputs
from solver.library import SCHEMA, Header, Inputs, Library, LibraryError, Part
from solver.roofline import ENGINE, Roofline
from solver.setups import Scope
from solver.sweep import Progress, sweep


class _Service(NamedTuple):
    """All variants of one service, which compete: rated anew together, or not at all."""

    fingerprint: str
    variants: tuple[ServiceInputs, ...]


def build_library(
    figures: Figures,
    scope: Scope,
    *,
    older: Library | None = None,
    cores: int | None = None,
    progress: Progress | None = None,
) -> Library:
    """The library of a scope. The order in which the scope names things makes no other library.

    Args:
        older: its templates are taken over, service by service, where nothing they follow from has changed.
        cores: how many to use; None uses all.
        progress: told (combinations done, all of them) now and then.

    Raises:
        LibraryError: limits that cannot be. With `n_max` 0 or `rho` below 1 the library is empty, and
            says why.
        FiguresError: the catalog lacks a model, SLO class or variant.
        ValueError: a configuration given twice, or a GPU without efficiencies.
    """
    inputs = inputs_of(figures, scope)
    services = [
        _service(figures, inputs, *level, phase) for level in inputs.levels for phase in inputs.phases
    ]
    known = {} if older is None else _known(older)
    new = [s for service in services for s in service.variants if (s.key, service.fingerprint) not in known]
    swept = _sweep(new, inputs, cores, progress)
    parts, arrays = [], []
    for service in services:
        for key in (variant.key for variant in service.variants):
            kept = swept[key] if key in swept else known[key, service.fingerprint]
            parts.append(_part(key, service.fingerprint, kept))
            arrays.append(kept)
    return Library(Header(inputs=inputs, parts=tuple(parts)), tuple(arrays), figures)


def taken_over(library: Library, older: Library | None) -> list[Key]:
    """The parts that a build takes over from an older library."""
    known = {} if older is None else _known(older)
    return [part.key for part in library.header.parts if (part.key, part.fingerprint) in known]


def inputs_of(figures: Figures, scope: Scope) -> Inputs:
    """What a library of this scope is built from, in the one order: by its digest it can be looked for.

    Raises:
        LibraryError: limits that cannot be.
    """
    if scope.n_max < 0 or not math.isfinite(scope.rho) or scope.rho <= 0:
        raise LibraryError(
            f"n_max, rho: {scope.n_max} and {scope.rho}, expected whole and finite numbers from 1 on"
        )
    if scope.mixed_max is not None and scope.mixed_max < 1:
        raise LibraryError(f"mixed_max: {scope.mixed_max}, expected at least 1")
    return Inputs(
        engine=ENGINE,
        catalog=figures.catalog_digest,
        efficiencies=figures.efficiencies_digest,
        profile=figures.profile_digest,
        runtime=scope.runtime,
        phases=tuple(sorted(set(scope.phases))),
        levels=tuple(sorted(set(scope.levels))),
        variants={model: tuple(sorted(set(names))) for model, names in sorted(scope.variants.items())},
        configurations=tuple(sorted(scope.configurations, key=lambda node: node.name)),
        n_max=scope.n_max,
        rho=float(scope.rho),
        mixed_max=scope.mixed_max,
    )


def _service(figures: Figures, inputs: Inputs, model: str, slo_class: str, phase: str) -> _Service:
    (asked,) = (p for p in inputs.phases if p == phase)
    rooflines = list(figures.rooflines(model, slo_class, asked, inputs.variants.get(model)))
    variants = tuple(ServiceInputs(roofline, inputs.runtime) for roofline in rooflines)
    return _Service(_fingerprint(figures, inputs, rooflines), variants)


def _fingerprint(figures: Figures, inputs: Inputs, rooflines: Sequence[Roofline]) -> str:
    """Digest of what the templates of a service follow from, and of nothing else: a promise of another model
    leaves it as it is, and so does a GPU that is not combined."""
    r = rooflines[0]
    points = [
        point
        for roofline in rooflines
        for point in (figures.profile.of(r.model.name, roofline.variant.name) if figures.profile else ())
    ]
    kinds = sorted({node.gpu for node in inputs.configurations} | {point.gpu for point in points})
    shared = inputs.model_dump(
        mode="json", include={"engine", "runtime", "configurations", "n_max", "rho", "mixed_max"}
    )
    return digest(
        [
            SCHEMA,
            shared,
            r.phase,
            r.model.architecture.model_dump(mode="json"),
            r.level.model_dump(mode="json"),
            [roofline.variant.model_dump(mode="json") for roofline in rooflines],
            [r.gpus[kind].model_dump(mode="json") for kind in kinds],
            [figures.efficiencies.of(kind).model_dump(mode="json") for kind in kinds],
            [point.model_dump(mode="json") for point in points],
        ]
    )


def _known(older: Library) -> dict[tuple[Key, str], Kept]:
    pairs = zip(older.header.parts, older.arrays, strict=True)
    return {(part.key, part.fingerprint): kept for part, kept in pairs}


def _sweep(
    services: Sequence[ServiceInputs], inputs: Inputs, cores: int | None, progress: Progress | None
) -> Mapping[Key, Kept]:
    if inputs.n_max < 1 or inputs.rho < 1:
        return {service.key: _nothing(inputs.n_max) for service in services}
    if not services:
        return {}
    swept = sweep(
        services, inputs.configurations, n_max=inputs.n_max, rho=inputs.rho, cores=cores, progress=progress
    )
    if inputs.mixed_max is None:
        return swept
    return {key: _hardly_mixed(kept, inputs.mixed_max) for key, kept in swept.items()}


def _hardly_mixed(kept: Kept, mixed_max: int) -> Kept:
    """The rows of equal nodes, and of few nodes of two configurations. Their parts are such rows too, so what
    was pruned for its parts' sake stays needless."""
    used = kept.combination >= 0
    size = used.sum(axis=1)
    rises = (np.diff(kept.combination, axis=1) > 0) & used[:, 1:]
    kinds = 1 + rises.sum(axis=1)  # configurations of a row are in rising order
    rows = (kinds == 1) | ((kinds == 2) & (size <= mixed_max))
    return kept.take(rows)


def _nothing(n_max: int) -> Kept:
    none, row = np.zeros(0), (0, n_max)
    nodes = np.zeros(row, dtype=np.int8)
    return Kept(
        combination=nodes,
        throughput=none,
        stages=np.zeros(0, dtype=np.int8),
        stage_of=nodes,
        layers=np.zeros(row, dtype=np.int16),
        tp=nodes,
        batch=none,
        order=nodes,
    )


def _part(key: Key, fingerprint: str, kept: Kept) -> Part:
    return Part(
        key=key,
        fingerprint=fingerprint,
        considered=kept.considered,
        over_rho=kept.over_rho,
        valid=kept.valid,
        refused=dict(sorted(kept.refused.items())),
        kept=len(kept),
    )
