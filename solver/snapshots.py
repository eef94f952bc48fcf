"""Moments to plan at, in the manner of the paper's evaluation (coral.md, "Evaluation set-up").

Real are the models, lengths, regions and prices of a set-up, and the shape in which stock comes and goes: a
recorded one, every kind of node somewhere else in it. The rest follows from a seed. There is no chance here:
what is drawn for a place is a digest of the seed and of the place's name, so it stays when others are added.
"""

import hashlib
import math
from typing import Protocol, assert_never

from schemas.catalog import Catalog, Phase, ServiceLevel, Workload
from schemas.problems import Answer, Pool, Problem, Running, Service, ServiceDemand, Stock
from solver.library import Library
from solver.roofline import DEFAULT as ASSUMED
from solver.scarcity import Place, Scale, factor, least_share
from solver.setups import Setup
from solver.shapes import Shape as ModelShape
from solver.worth import Prices

GPUS = 48
"""Of each configuration in a place at the trace's peak, before all are scaled alike."""
AMORTISED_S = 3600.0
"""The paper spreads the cost of a start over an hour."""
MOVED = 0.2
"""Demand moves by up to this share."""
DAY_S, KIND_APART_S = 86_400.0, 1_800.0
"""Kinds of GPU are anywhere in a day of the trace; node sizes of one kind within half an hour."""


class Level(Protocol):
    """A recorded level that moves in steps (`agents.traces.StepTrace`)."""

    @property
    def times_s(self) -> tuple[float, ...]: ...

    @property
    def levels(self) -> tuple[int, ...]: ...

    def at(self, elapsed_s: float, offset_s: float = 0) -> int: ...


# ----------------------------------------------------------------------------------------------- snapshots


def snapshot(setup: Setup, library: Library, trace: Level, seed: int, scale: Scale = "full") -> Problem:
    """A moment of a paper's set-up at which nothing runs yet.

    Args:
        library: built for the set-up.
        trace: the shape of stock over time.

    Raises:
        ValueError: the set-up is none of a paper's, or no stock of it could meet the demand.
    """
    prices, demands = prices_of(setup), demands_of(setup)
    shape = shape_of(setup, trace, seed)
    share = least_share(library, {d.service.key: d.rate for d in demands}, shape)
    return Problem(
        id=f"{setup.name}-{scale}-{seed}",
        library=library.digest,
        demands=demands,
        stocks=tuple(
            Stock(
                pool=place.pool,
                configuration=place.configuration,
                nodes=math.floor(nodes * share * factor(setup.name, scale) + draw(seed, "node", place.key)),
                usd_per_hour=prices[place],
            )
            for place, nodes in shape.items()
        ),
        startup_ratio=startup_ratios(setup.catalog),
    )


def later(problem: Problem, answer: Answer, seed: int, moved: float = MOVED) -> Problem:
    """The next moment: what an answer chose runs, and each demand has moved by up to a share either way."""
    return problem.model_copy(
        update={
            "id": f"{problem.id}-then-{seed}",
            "running": running_of(answer),
            "demands": tuple(
                d.model_copy(
                    update={"rate": d.rate * (1 + moved * (2 * draw(seed, "moved", d.service.key) - 1))}
                )
                for d in problem.demands
            ),
        }
    )


def running_of(answer: Answer) -> tuple[Running, ...]:
    """What runs once an answer is carried out."""
    return tuple(
        Running(template=c.template, rating=c.rating, pool=c.pool, count=c.count) for c in answer.chosen
    )


# --------------------------------------------------------------------------------------------- their parts


def demands_of(setup: Setup) -> tuple[ServiceDemand, ...]:
    """The paper's: so many requests/s of each model, as tokens/s of prefill and of decode by mean lengths.

    Raises:
        ValueError: the set-up is none of a paper's, so nothing is known of its demand.
    """
    found = next((s for s in setup.catalog.setups if s.name == setup.name), None)
    if found is None:
        raise ValueError(f"demand: the set-up {setup.name!r} has none of its own; give it as a file")
    return tuple(
        ServiceDemand(
            service=Service(model=model, slo_class=slo_class, phase=phase),
            rate=found.requests_per_s * tokens_of(level_of(setup.catalog, model, slo_class).workload, phase),
        )
        for model, slo_class in setup.scope.levels
        for phase in setup.scope.phases
    )


def level_of(catalog: Catalog, model: str, slo_class: str) -> ServiceLevel:
    """What is promised of a model in a class that it has."""
    return next(level for level in catalog.model(model).levels if level.slo_class == slo_class)


def tokens_of(workload: Workload, phase: Phase) -> float:
    """What a rate of requests is to be multiplied by to be one of a phase: tokens of a request, or 1."""
    match phase:
        case "prefill":
            return workload.mean_input_tokens
        case "decode":
            return workload.mean_output_tokens
        case "both":
            return 1.0
        case _:
            assert_never(phase)


def prices_of(setup: Setup) -> dict[Place, float]:
    """List prices on demand, USD per hour of a node, wherever the set-up's configurations are sold."""
    nodes = setup.scope.configurations
    by_region = Prices(setup.catalog, setup.regions).by_region(nodes)
    return {
        Place(_pool(region), node.name): float(usd)
        for region, costs in by_region.items()
        for node, usd in zip(nodes, costs, strict=True)
        if math.isfinite(usd)
    }


def startup_ratios(catalog: Catalog) -> dict[str, float]:
    """K of each model: start-up time, which grows with the weights to load, over the paper's hour."""
    return {
        model.name: (
            ASSUMED.startup_s
            + ModelShape(model.architecture, model.variants[0]).total_bytes / 1e9 / ASSUMED.load_gb_s
        )
        / AMORTISED_S
        for model in catalog.models
    }


def shape_of(setup: Setup, trace: Level, seed: int) -> dict[Place, float]:
    """Nodes of each configuration wherever it is sold, as yet fractions and of no scale.

    Every size of a kind has as many GPUs at most; popularity, drawn from 0.5 to 1, and the recorded level at
    the place's own time of the day take from them.
    """
    start = next((t for t, level in zip(trace.times_s, trace.levels, strict=True) if level), 0.0)
    nodes = {node.name: node for node in setup.scope.configurations}
    found = {}
    for place in prices_of(setup):
        node = nodes[place.configuration]
        kind = f"{place.pool.key} {node.gpu}"
        at_s = DAY_S * draw(seed, "hour", kind) + KIND_APART_S * draw(seed, "minute", place.key)
        level = trace.at(at_s, start) / max(trace.levels)
        popular = 0.5 + 0.5 * draw(seed, "popular", place.key)
        found[place] = GPUS / node.gpus * popular * level
    return found


# ------------------------------------------------------------------------------------------------- helpers


def draw(seed: int, *what: str) -> float:
    """A number from 0 to below 1 that the seed and a name decide."""
    found = hashlib.sha256("|".join([str(seed), *what]).encode()).digest()
    return int.from_bytes(found[:7], "big") / 2**56


def _pool(region: str) -> Pool:
    cloud, name = region.split("/")
    return Pool(cloud=cloud, region=name, market="on-demand")
