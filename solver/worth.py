"""What a library's templates are worth at some prices: throughput per USD, by region.

Prices are none of a library's inputs, so that it outlives them; here they come in. A template lies in one
region, and costs there what its nodes cost.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from schemas.catalog import Catalog, Configuration, Market
from solver.library import Shelf
from solver.shapes import Floats


class Prices(NamedTuple):
    """A catalog's list prices, in some regions (cloud/region) or in all."""

    catalog: Catalog
    regions: tuple[str, ...] = ()
    market: Market = "on-demand"

    def by_region(self, configurations: Sequence[Configuration]) -> Mapping[str, Floats]:
        """USD per hour of each configuration in each region; infinite where it has no price.

        A slice of a node that is sold costs its share of the node, whoever has the rest.
        """
        sizes = {configuration.name: configuration for configuration in self.catalog.configurations}
        found: dict[str, Floats] = {}
        own: dict[tuple[str, str], float] = {}
        for price in self.catalog.prices:
            region = f"{price.cloud}/{price.region}"
            if price.market != self.market or (self.regions and region not in self.regions):
                continue
            own[region, price.configuration] = price.usd_per_hour
            share = [_share(node, sizes[price.configuration]) for node in configurations]
            costs = np.where(np.array(share) > 0, price.usd_per_hour * np.array(share), np.inf)
            found[region] = np.minimum(found.get(region, np.inf), costs)
        for region, costs in found.items():
            for c, node in enumerate(configurations):
                costs[c] = own.get((region, node.name), costs[c])  # as it is sold, if it is
        return dict(sorted(found.items()))


class Worth(NamedTuple):
    """A template and what it gives for its price where it is cheapest."""

    row: int
    region: str
    usd_per_hour: float
    per_usd: float
    """Throughput over USD per hour: tokens/s (requests/s in phase `both`) that one USD an hour buys."""


def per_usd(shelf: Shelf, prices: Prices) -> tuple[Floats, list[str], Floats]:
    """For each template the most it gives per USD an hour, in which region, and its USD an hour there.

    Where no region has all its nodes it gives 0, at an infinite price.
    """
    by_region = prices.by_region(shelf.library.inputs.configurations)
    if not len(shelf) or not by_region:
        return np.zeros(len(shelf)), [""] * len(shelf), np.full(len(shelf), np.inf)
    nodes, regions = shelf.kept.combination, list(by_region)
    costs = np.stack([np.where(nodes >= 0, each[nodes], 0.0).sum(axis=1) for each in by_region.values()])
    cheapest = costs.argmin(axis=0)
    usd = costs[cheapest, np.arange(len(shelf))]
    return shelf.kept.throughput / usd, [regions[r] for r in cheapest.tolist()], usd


def best(shelf: Shelf, prices: Prices, count: int = 1) -> list[Worth]:
    """The templates that give most per USD, the best first; only those that some region sells."""
    worth, regions, usd = per_usd(shelf, prices)
    order = np.argsort(-worth, kind="stable")[:count].tolist()
    return [Worth(row, regions[row], float(usd[row]), float(worth[row])) for row in order if worth[row] > 0]


def _share(node: Configuration, sold: Configuration) -> float:
    """Which part of a node that is sold another is; 0 if it is none."""
    return node.gpus / sold.gpus if node.gpu == sold.gpu and node.gpus <= sold.gpus else 0.0
