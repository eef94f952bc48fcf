"""The template library (coral.md, "Stage 1"): the templates worth choosing from, of every service.

It holds them as arrays (`solver.kept`), hundreds of thousands of rows, and makes a template of a row when one
is asked for. That takes the figures that it was rated by; choosing does not. `solver.building` builds one,
`solver.library_file` keeps one. The same inputs give the same library, so whoever lacks one of a digest can
build it.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from schemas.base import Count, Frozen, Name, canonical, digest
from schemas.catalog import Configuration, Phase, Runtime
from schemas.problems import Service, Template
from solver.candidates import Candidate, Rated, Refused
from solver.figures import Figures
from solver.kept import Kept, Key, Reason, ServiceInputs
from solver.rows import identities, placement_of

SCHEMA = 3
"""Version of the library and its file; a reader refuses others."""
ARRAYS = tuple(f.name for f in fields(Kept) if f.name not in {"considered", "over_rho", "valid", "refused"})
"""Those of `Kept`, in the order of the digest."""


class LibraryError(ValueError):
    """A library that is not what it says, or not the one that is needed."""


class Inputs(Frozen):
    """All that a library follows from."""

    engine: str
    """Version of the figures, `solver.roofline.ENGINE`."""
    catalog: str
    """Digest of the catalog without its prices, which templates outlive."""
    efficiencies: str
    """Digest of the GPUs' efficiencies."""
    profile: str | None = None
    """Digest of the measured points that correct them."""
    runtime: Runtime
    phases: tuple[Phase, ...]
    levels: tuple[tuple[Name, Name], ...]
    """(model, SLO class)."""
    variants: dict[Name, tuple[Name, ...]] = {}
    configurations: tuple[Configuration, ...]
    n_max: Count
    rho: Annotated[float, Field(ge=0)]
    mixed_max: Annotated[int, Field(ge=1)] | None = None

    @cached_property
    def digest(self) -> str:
        return digest(self)

    def differences(self, other: "Inputs") -> Iterator[str]:
        """What another was built from instead, by name."""
        for name in type(self).model_fields:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                yield f"{name}: {_short(theirs)}, expected {_short(mine)}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class Part(Frozen):
    """What is said of one variant of a service beside its arrays."""

    key: Key
    fingerprint: str
    """Digest of all that its service follows from: with the same one, an older library's part is as good."""
    considered: Count = 0
    """Combinations within rho."""
    over_rho: Count = 0
    valid: Count = 0
    refused: dict[Reason, Count] = {}
    kept: Count = 0

    @property
    def service(self) -> Service:
        return Service(model=self.key.model, slo_class=self.key.slo_class, phase=self.key.phase)


class Header(Frozen):
    """Everything of a library but the arrays."""

    schema_version: int = SCHEMA
    inputs: Inputs
    parts: tuple[Part, ...]


@dataclass(frozen=True, eq=False)
class Library:
    """Templates of every service, with what they were built from; the same if their digests are."""

    header: Header
    arrays: tuple[Kept, ...] = field(repr=False)
    """One for each part."""
    figures: Figures | None = field(default=None, repr=False)
    """What makes templates of rows; None where nobody is to ask for one."""

    @property
    def inputs(self) -> Inputs:
        return self.header.inputs

    @property
    def rated_by(self) -> Figures:
        """What makes templates of its rows.

        Raises:
            LibraryError: it was opened without.
        """
        if self.figures is None:
            raise LibraryError("library: opened without the catalog that it was built from")
        return self.figures

    @cached_property
    def digest(self) -> str:
        """Of inputs and content."""
        found = hashlib.sha256(canonical(self.header))
        for kept in self.arrays:
            for name in ARRAYS:
                found.update(plain_array(getattr(kept, name)).tobytes())
        return found.hexdigest()[:16]

    @cached_property
    def parts(self) -> Mapping[Key, "Shelf"]:
        """By variant, service and runtime."""
        shelves = (Shelf(self, part, kept) for part, kept in zip(self.header.parts, self.arrays, strict=True))
        return MappingProxyType({shelf.part.key: shelf for shelf in shelves})

    @cached_property
    def by_service(self) -> Mapping[str, Sequence[Candidate]]:
        """Service key -> the templates of all its variants, one after the other; services that have any."""
        found: dict[str, list[Shelf]] = {}
        for shelf in self.parts.values():
            if len(shelf):
                found.setdefault(shelf.part.service.key, []).append(shelf)
        return MappingProxyType({key: Shelves(tuple(found[key])) for key in sorted(found)})

    @cached_property
    def services(self) -> Mapping[str, Service]:
        """All that it was built for, with templates or without."""
        return MappingProxyType({p.service.key: p.service for p in self.header.parts})

    def throughput(self, service: Service, template: Template) -> float | None:
        """What it says that a template gives a service; None where it lacks the template.

        Raises:
            LibraryError: it was opened without figures.
        """
        at = {node.name: c for c, node in enumerate(self.inputs.configurations)}
        nodes = sorted(at.get(name, -1) for name in template.nodes)
        for shelf in self.parts.values():
            combination = shelf.kept.combination
            if shelf.part.service != service or not 0 < len(nodes) <= combination.shape[1] or nodes[0] < 0:
                continue
            wanted = np.full(combination.shape[1], -1, np.int64)
            wanted[: len(nodes)] = nodes
            alike = np.flatnonzero((combination == wanted).all(axis=1)).tolist()
            if alike and (row := shelf.find(template.id, alike)) is not None:
                return float(shelf.kept.throughput[row])
        return None

    @property
    def candidates(self) -> Iterator[Candidate]:
        """Every template."""
        return (candidate for shelf in self.parts.values() for candidate in shelf)

    @cached_property
    def refused(self) -> tuple[Refused, ...]:
        """By service, over its variants."""
        reasons: dict[str, dict[str, int]] = {key: {} for key in self.services}
        for part in self.header.parts:
            here = reasons[part.service.key]
            for reason, count in part.refused.items():
                here[reason] = here.get(reason, 0) + count
        return tuple(
            Refused(service=service, reasons=dict(sorted(reasons[key].items())))
            for key, service in self.services.items()
        )

    @property
    def considered(self) -> int:
        """Combinations within rho, over all services and variants."""
        return sum(part.considered for part in self.header.parts)

    @property
    def empty(self) -> dict[str, str]:
        """Services without a template -> why, in words."""
        return {key: self._why_empty(key) for key in self.services if key not in self.by_service}

    def _why_empty(self, key: str) -> str:
        parts = [part for part in self.header.parts if part.service.key == key]
        if self.inputs.n_max < 1:
            return f"n-max: {self.inputs.n_max} nodes, expected at least 1"
        if self.inputs.rho < 1:
            return f"rho: {self.inputs.rho:g} x the weights, expected at least 1, or they fit nowhere"
        if not sum(part.considered for part in parts):
            return f"over-rho: every node has {self.inputs.rho:g} x the weights in GPU memory, or more"
        for reason, words in WHY_EMPTY.items():
            if any(part.refused.get(reason) for part in parts):
                return f"{reason}: {words}"
        raise RuntimeError(f"{key}: considered combinations are neither kept nor refused")


WHY_EMPTY: Mapping[Reason, str] = MappingProxyType(
    {
        "slo-too-tight": "the model fits, but no placement meets its TTFT and TPOT",
        "does-not-fit": "no combination within the limits has the memory for the model",
        "no-parallelism": "no tensor-parallel degree divides both the model and the nodes in so few stages",
        "gpu-not-allowed": "the checkpoint runs on no GPU of the configurations",
    }
)
"""The one that comes nearest to serving first."""


@dataclass(frozen=True, eq=False)
class Shelf(Sequence[Candidate]):
    """The templates of one variant of a service."""

    library: Library = field(repr=False)
    part: Part
    kept: Kept = field(repr=False)

    def __len__(self) -> int:
        return len(self.kept)

    @overload
    def __getitem__(self, row: int) -> Candidate: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[Candidate]: ...
    def __getitem__(self, row: int | slice) -> Candidate | Sequence[Candidate]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        at = range(len(self))[row]
        return Candidate(
            service=self.part.service,
            variant=self.part.key.variant,
            nodes=self.nodes(at),
            throughput=float(self.kept.throughput[at]),
            make=lambda: self.rated(at),
        )

    def nodes(self, row: int) -> tuple[str, ...]:
        """The combination of a row."""
        known = self.library.inputs.configurations
        return tuple(known[c].name for c in self.kept.combination[row].tolist() if c >= 0)

    @cached_property
    def inputs(self) -> ServiceInputs:
        """What its templates are rated by.

        Raises:
            LibraryError: the library was opened without figures.
        """
        key = self.part.key
        (roofline,) = self.library.rated_by.rooflines(key.model, key.slo_class, key.phase, (key.variant,))
        return ServiceInputs(roofline, key.runtime)

    def find(self, template: str, rows: Sequence[int] | None = None) -> int | None:
        """The row of a template's id, of some rows or all."""
        tried = range(len(self)) if rows is None else rows
        kept = self.kept if rows is None else self.kept.take(np.array(rows, dtype=np.int64))
        ids = identities(self.inputs, self.library.inputs.configurations, kept)
        return next((row for row, found in zip(tried, ids, strict=True) if found == template), None)

    def rated(self, row: int) -> Rated:
        """The template of a row, whole."""
        placement = placement_of(self.inputs, self.library.inputs.configurations, self.kept, row)
        return Rated(template=placement.template, rating=placement.rating)


@dataclass(frozen=True, eq=False)
class Shelves(Sequence[Candidate]):
    """Those of several variants, one after the other."""

    shelves: tuple[Shelf, ...]

    def __len__(self) -> int:
        return sum(map(len, self.shelves))

    def __iter__(self) -> Iterator[Candidate]:
        return (candidate for shelf in self.shelves for candidate in shelf)

    @overload
    def __getitem__(self, row: int) -> Candidate: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[Candidate]: ...
    def __getitem__(self, row: int | slice) -> Candidate | Sequence[Candidate]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        at = range(len(self))[row]
        for shelf in self.shelves:
            if at < len(shelf):
                return shelf[at]
            at -= len(shelf)
        raise IndexError(row)


def plain_array(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """The same on every machine: rows after each other, the least byte of a number first."""
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
