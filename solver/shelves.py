"""What a library has to choose from as arrays, whatever kind of library it is.

A `Library` is arrays already, hundreds of thousands of rows, and what follows from them alone is worked out
once for all solves with it. Any other `Templates` (the small ones of tests) and running templates that the
library lacks are put into arrays template by template.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from schemas.problems import Service
from solver.candidates import Candidate, Rated, Templates
from solver.chains import workload_digest
from solver.library import Library, LibraryError, Shelf
from solver.program import Bytes, Floats, Ints
from solver.roofline import ENGINE

MOST_CONFIGURATIONS = 127


@dataclass(frozen=True, eq=False)
class Kind:
    """The templates of one variant of a service; n rows."""

    service: Service
    variant: str
    nodes: Bytes
    """[n, most nodes]: indices of configurations in rising order, -1 beyond the last."""
    throughput: Floats
    source: Sequence[Candidate]
    _made: dict[int, Rated] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.throughput)

    @cached_property
    def size(self) -> Ints:
        """[n]: nodes of a template."""
        return np.asarray((self.nodes >= 0).sum(axis=1), np.int64)

    @cached_property
    def complexity(self) -> Ints:
        """[n]: 0 for one node, 1 for several of one configuration, 2 for a mix."""
        mixed = ((self.nodes != self.nodes[:, :1]) & (self.nodes >= 0)).any(axis=1)
        return np.asarray((self.size > 1).astype(np.int64) + mixed, np.int64)

    @cached_property
    def most(self) -> dict[int, int]:
        """Configuration -> the most nodes of it that one template has."""
        return most_of(self.nodes)

    @cached_property
    def _packed(self) -> Ints:
        """[n, eighths]: the combination, eight nodes a number, to look for it."""
        wide = np.full((len(self), 8 * -(-self.nodes.shape[1] // 8)), -1, np.int8)
        wide[:, : self.nodes.shape[1]] = self.nodes
        return wide.view(np.int64)

    def sums(self, values: Floats) -> Floats:
        """[n]: sum over a template's nodes of a value by configuration; one past the last counts nothing."""
        padded, total = np.append(values, 0.0), np.zeros(len(self))
        for k in range(self.nodes.shape[1]):  # several times faster than one sum over both axes
            total += padded[self.nodes[:, k]]
        return total

    def uses(self, row: int) -> dict[int, int]:
        """Configuration -> nodes of it that a row's template takes."""
        return dict(Counter(c for c in self.nodes[row].tolist() if c >= 0))  # in rising order, as nodes are

    def rated(self, row: int) -> Rated:
        """The template of a row, made once: the same ones are chosen again and again."""
        if row not in self._made:
            self._made[row] = self.source[row].rated
        return self._made[row]

    def know(self, row: int, rated: Rated) -> None:
        """Take a running template for the row's own, if the library rates it as it was rated: it need not
        be made."""
        if isinstance(self.source, Shelf) and row not in self._made:
            workload = workload_digest(self.source.inputs.roofline.level.workload)
            rating = rated.rating
            if (rating.throughput, rating.workload, rating.engine) == (
                self.throughput[row],
                workload,
                ENGINE,
            ):
                self._made[row] = rated

    def find(self, template: str, nodes: Sequence[int]) -> int | None:
        """The row of a template, of which the nodes are known.

        Raises:
            LibraryError: the library was opened without figures.
        """
        if len(nodes) > self.nodes.shape[1]:
            return None
        wanted = np.full(8 * self._packed.shape[1], -1, np.int8)
        wanted[: len(nodes)] = sorted(nodes)
        same = np.logical_and.reduce(
            [self._packed[:, k] == eight for k, eight in enumerate(wanted.view(np.int64))]
        )
        alike = np.flatnonzero(same).tolist()
        if isinstance(self.source, Shelf):
            return self.source.find(template, alike)
        return next((row for row in alike if self.rated(row).template.id == template), None)


def most_of(nodes: Bytes) -> dict[int, int]:
    """Configuration -> the most nodes of it that one of some templates has."""
    most, run = np.zeros(128, np.int64), np.ones(len(nodes), np.int64)
    for k in range(nodes.shape[1]):
        node = nodes[:, k]
        run = np.where(node == nodes[:, k - 1], run + 1, 1) if k else run
        np.maximum.at(most, node[node >= 0], run[node >= 0])
    return {c: int(most[c]) for c in np.flatnonzero(most).tolist()}


@dataclass(frozen=True, eq=False)
class Shelves:
    """All that a library has to choose from."""

    configurations: tuple[str, ...]
    """What the nodes of `kinds` refer to."""
    kinds: tuple[Kind, ...]

    def of(self, service: str) -> Iterator[Kind]:
        return (kind for kind in self.kinds if kind.service.key == service)


def shelves_of(library: Templates) -> Shelves:
    """Everything in a library; for a `Library` worked out once."""
    return _of_library(library) if isinstance(library, Library) else _written_out(library)


@lru_cache(maxsize=2)
def _of_library(library: Library) -> Shelves:
    kinds = (
        Kind(s.part.service, s.part.key.variant, s.kept.combination, s.kept.throughput, s)
        for s in library.parts.values()
        if len(s)
    )
    names = tuple(configuration.name for configuration in library.inputs.configurations)
    return Shelves(names, tuple(kinds))


def with_strangers(shelves: Shelves, strangers: Sequence[Rated]) -> Shelves:
    """The same and templates that it lacks, each a kind of its own."""
    used = {name for rated in strangers for name in rated.template.nodes}
    names = _named((*shelves.configurations, *sorted(used - set(shelves.configurations))))
    kinds = [_kind(rated.service, rated.template.variant, [rated.candidate], names) for rated in strangers]
    return Shelves(names, (*shelves.kinds, *kinds))


def _written_out(library: Templates) -> Shelves:
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for key in sorted(library.by_service):
        for candidate in library.by_service[key]:
            groups.setdefault((key, candidate.variant), []).append(candidate)
    names = _named(tuple(sorted({name for found in groups.values() for c in found for name in c.nodes})))
    kinds = (_kind(found[0].service, variant, found, names) for (_, variant), found in groups.items())
    return Shelves(names, tuple(kinds))


def _named(names: tuple[str, ...]) -> tuple[str, ...]:
    """Configurations that an int8 can number.

    Raises:
        LibraryError: there are more.
    """
    if len(names) > MOST_CONFIGURATIONS:
        most = MOST_CONFIGURATIONS
        raise LibraryError(f"{len(names)} configurations in templates, expected at most {most}")
    return names


def _kind(service: Service, variant: str, found: Sequence[Candidate], names: Sequence[str]) -> Kind:
    at = {name: i for i, name in enumerate(names)}
    nodes = np.full((len(found), max(len(c.nodes) for c in found)), -1, np.int8)
    for row, candidate in enumerate(found):
        nodes[row, : len(candidate.nodes)] = sorted(at[name] for name in candidate.nodes)
    return Kind(service, variant, nodes, np.array([c.throughput for c in found]), found)
