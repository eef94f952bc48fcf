"""Where templates can run: what each pool has, what a node costs there, and what an instance takes of it.

A node of a configuration is bought for one template, unless its GPU kind is **sliced** (`Problem.sliced`):
then any of the kind's nodes may be shared, templates take slices of them, and how many nodes are bought is a
variable of its own. Slices and nodes are powers of two, so the largest first fill nodes without gaps, and
slices can be packed if and only if, for every size of node, those too large for smaller nodes fit into the
nodes of that size and above, by GPUs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from schemas.problems import Pool, Problem, Sliced, Stock
from solver.program import Floats


@dataclass(frozen=True)
class Floor:
    """Nodes of one kind and pool with at least so many GPUs, and the slices that fit on no smaller ones."""

    gpu: str
    pool: Pool
    gpus: int
    above: int
    """GPUs of the next smaller nodes, 0 if there are none: larger slices count."""

    @property
    def name(self) -> str:
        return f"GPUs of {self.gpu} nodes with {self.gpus} or more in {self.pool.key}"


@dataclass(frozen=True, eq=False)
class Place:
    """One pool."""

    pool: Pool
    names: tuple[str, ...]
    """All configurations, what columns' nodes refer to; C of them."""
    stocks: Mapping[str, Stock]
    """By configuration, of those not excluded."""
    kinds: Mapping[str, Sliced]
    """Configuration -> its GPU kind, where that is sliced; of those not excluded."""

    @property
    def region(self) -> str:
        return f"{self.pool.cloud}/{self.pool.region}"

    @cached_property
    def shared(self) -> Mapping[str, tuple[Stock, ...]]:
        """GPU kind -> nodes of it that are sold to be shared."""
        found: dict[str, tuple[Stock, ...]] = {}
        for name, stock in sorted(self.stocks.items()):
            if name in self.kinds:
                kind = self.kinds[name].gpu
                found[kind] = (*found.get(kind, ()), stock)
        return found

    @cached_property
    def bill(self) -> Floats:
        """[C]: USD per hour of a node of a template; of a slice its share of the cheapest node, by GPUs,
        that it fits on; NaN where there is none."""
        return np.array([self._usd(name) for name in self.names])

    @cached_property
    def risk(self) -> Floats:
        """[C]: interruptions per hour of a node that is a template's alone."""
        own = (self.stocks.get(name) for name in self.names)
        return np.array(
            [s.interruptions_per_hour if s and not self.is_slice(s.configuration) else 0.0 for s in own]
        )

    @cached_property
    def offered(self) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        return np.isfinite(self.bill)

    def is_slice(self, name: str) -> bool:
        return name in self.kinds

    def _usd(self, name: str) -> float:
        if not self.is_slice(name):
            return self.stocks[name].usd_per_hour if name in self.stocks else np.nan
        gpus = self.kinds[name].gpus
        usd = (gpus[name] * s.usd_per_hour / gpus[s.configuration] for s in self.hosts_of(name))
        return min(usd, default=np.nan)

    def hosts_of(self, name: str) -> list[Stock]:
        """Nodes that a slice fits on."""
        kind = self.kinds[name]
        return [s for s in self.shared.get(kind.gpu, ()) if kind.gpus[s.configuration] >= kind.gpus[name]]

    def floors(self) -> Iterator[Floor]:
        """What slices are counted against, by kind and the sizes of nodes that are sold."""
        for gpu, stocks in self.shared.items():
            below = 0
            for gpus in sorted({self.kinds[s.configuration].gpus[s.configuration] for s in stocks}):
                yield Floor(gpu, self.pool, gpus, below)
                below = gpus

    def slices(self, floor: Floor) -> Iterator[tuple[int, int]]:
        """(configuration, GPUs) of the slices that a floor counts."""
        for c, name in enumerate(self.names):
            kind = self.kinds.get(name)
            if kind is not None and kind.gpu == floor.gpu and kind.gpus[name] > floor.above:
                yield c, kind.gpus[name]

    def hosts(self, floor: Floor) -> Iterator[tuple[Stock, int]]:
        """Nodes that a floor counts, with the GPUs of one."""
        for stock in self.shared[floor.gpu]:
            gpus = self.kinds[stock.configuration].gpus[stock.configuration]
            if gpus >= floor.gpus:
                yield stock, gpus


def places_of(problem: Problem, names: tuple[str, ...]) -> tuple[Place, ...]:
    """The pools of a problem, in the order of their keys."""
    excluded = problem.excluded_configurations
    kinds = {name: kind for kind in problem.sliced for name in kind.gpus if name not in excluded}
    stocks: dict[str, dict[str, Stock]] = {}
    for stock in problem.stocks:
        if stock.configuration not in excluded:
            stocks.setdefault(stock.pool.key, {})[stock.configuration] = stock
    return tuple(
        Place(next(iter(found.values())).pool, names, found, kinds) for _, found in sorted(stocks.items())
    )


class Room:
    """What is left of a pool's stock while instances are put there one by one."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._left = {name: float(s.nodes) for name, s in place.stocks.items() if not place.is_slice(name)}
        self._floors = {f: float(sum(g * s.nodes for s, g in place.hosts(f))) for f in place.floors()}

    def take(self, uses: Mapping[int, int], instances: int = 1) -> int:
        """Put instances (configuration -> nodes) there, as many of them as fit; how many those are."""
        taken = min(instances, self.most(uses))
        for c, count in uses.items():
            name = self._place.names[c]
            if name in self._left:
                self._left[name] -= count * taken
        for floor, gpus in self._on_floors(uses):
            self._floors[floor] -= gpus * taken
        return taken

    def most(self, uses: Mapping[int, int]) -> int:
        """Instances of these nodes that would fit."""
        asked = list(self._asked(uses))
        if any(left is None for left, _ in asked):
            return 0
        return int(min((left // amount for left, amount in asked if left is not None), default=0))

    def short(self, uses: Mapping[int, int]) -> set[str]:
        """Configurations of which there are fewer left."""
        return {self._place.names[c] for c, count in uses.items() if self.most({c: count}) < 1}

    def _asked(self, uses: Mapping[int, int]) -> Iterator[tuple[float | None, float]]:
        """(what is left, what one instance takes of it); None where the pool has no such thing."""
        floors = dict(self._on_floors(uses))
        for c, count in uses.items():
            name = self._place.names[c]
            if self._place.offered[c] and not self._place.is_slice(name):
                yield self._left[name], count
            elif not self._place.offered[c]:
                yield None, count
        yield from ((self._floors[floor], gpus) for floor, gpus in floors.items())

    def _on_floors(self, uses: Mapping[int, int]) -> Iterator[tuple[Floor, float]]:
        for floor in self._floors:
            gpus = sum(gpus * uses.get(c, 0) for c, gpus in self._place.slices(floor))
            if gpus:
                yield floor, gpus
