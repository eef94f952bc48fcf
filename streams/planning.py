"""From a set-up and what a person gives to the question that is solved.

What is not given is the paper's: its demand, the shipped prices, stock that follows from a seed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agents.traces import SHIPPED_TRACES, read_steps
from schemas.allocation import AllocationPolicy
from schemas.catalog import Phase
from schemas.problems import Problem, Running, Service, ServiceDemand, Sliced, Stock
from solver.asked import beyond_reach
from solver.candidates import Rated
from solver.library import Library
from solver.scarcity import Place, Scale
from solver.setups import Setup, sold
from solver.snapshots import (
    level_of,
    prices_of,
    running_of,
    snapshot,
    startup_ratios,
    tokens_of,
)
from streams.pairing import disaggregation_of, refuse_given_twice
from streams.plan_files import (
    DemandLine,
    Entries,
    Known,
    PriceLine,
    read_availability,
    read_demand,
    read_prices,
    read_running,
    refuse,
    workload_of,
)
from streams.plan_policy import policy_of, refuse_undemanded
from streams.plan_record import is_record, read_record

STOCK_TRACE = SHIPPED_TRACES / "bamboo_2020_g4dn.csv.gz"
"""How stock comes and goes."""


@dataclass(frozen=True)
class Given:
    """What was given beside the set-up."""

    demand: Path | None = None
    availability: Path | None = None
    prices: Path | None = None
    running: Path | None = None
    """A file of running instances, or a plan that `coral plan` wrote."""
    policy: Path | None = None
    seed: int = 0
    scale: Scale = "full"


class Question(NamedTuple):
    """What is solved, and what was given for nothing."""

    problem: Problem
    unused: tuple[str, ...] = ()
    """Prices of places that have no stock: where they stand and what they are of."""


def question_of(setup: Setup, library: Library, given: Given) -> Question:
    """The question.

    Raises:
        OSError, ValueError: a file cannot be read, or says what cannot be; or one is missing
            where the set-up is none of a paper's.
    """
    known = _known(setup)
    problem = _from_the_set_up(setup, library, given)
    asked = policy_of(setup, given.policy, known)
    update: dict[str, Any] = {"sliced": sliced_of(setup), "policy": asked.policy}
    update["excluded_configurations"] = asked.excluded
    if given.demand is not None:
        update |= _demanded(setup, library, read_demand(given.demand, known), asked.policy)
    refuse_undemanded(asked, update.get("demands", problem.demands))
    listed = None if given.prices is None else read_prices(given.prices, known)
    prices = prices_of(setup) | ({} if listed is None else _by_place(listed))
    stocks = problem.stocks
    if given.availability is not None:
        update["id"] = setup.name  # its stock follows from no seed
        stocks = _stocks(given.availability, known, prices)
    else:
        stocks = tuple(
            s.model_copy(update={"usd_per_hour": prices[Place(s.pool, s.configuration)]}) for s in stocks
        )
    if given.running is not None:
        update["running"] = _running(given.running, known, library)
    unused = () if listed is None else _unused(listed, stocks, prices)
    return Question(problem.model_copy(update={**update, "stocks": stocks}), unused)


def sliced_of(setup: Setup) -> tuple[Sliced, ...]:
    """GPU kinds of which templates may use parts of what is sold: those that some region sells in some sizes
    only. None in paper mode, where each configuration is its own node."""
    if setup.catalog.paper:
        return ()
    kinds: dict[str, dict[str, int]] = {}
    for node in setup.scope.configurations:
        kinds.setdefault(node.gpu, {})[node.name] = node.gpus
    by_region = [{node.name for node in sold(setup.catalog, (region,))} for region in regions_of(setup)]
    return tuple(
        Sliced(gpu=gpu, gpus=sizes)
        for gpu, sizes in sorted(kinds.items())
        if any(sizes.keys() & here and sizes.keys() - here for here in by_region)
    )


def regions_of(setup: Setup) -> tuple[str, ...]:
    """Where its nodes are bought, as cloud/region."""
    return setup.regions or tuple(sorted({f"{p.cloud}/{p.region}" for p in setup.catalog.prices}))


# ------------------------------------------------------------------------------------------- what was given


def _from_the_set_up(setup: Setup, library: Library, given: Given) -> Problem:
    """The paper's snapshot, or an empty question where everything has to be given."""
    if setup.catalog.paper and any(paper.name == setup.name for paper in setup.catalog.setups):
        return snapshot(setup, library, read_steps(STOCK_TRACE), given.seed, given.scale)
    for name in ("demand", "availability"):
        if getattr(given, name) is None:
            raise ValueError(f"--{name}: {setup.name!r} is none of the paper's set-ups, expected a file")
    return Problem(
        id=setup.name,
        library=library.digest,
        demands=(),
        stocks=(),
        startup_ratio=startup_ratios(setup.catalog),
    )


def _known(setup: Setup) -> Known:
    names = [node.name for node in setup.scope.configurations]
    return Known(setup.scope.levels, setup.scope.phases, names, regions_of(setup))


def _demanded(
    setup: Setup, library: Library, asked: Entries[DemandLine], policy: AllocationPolicy
) -> dict[str, Any]:
    """What a file of demand says of a problem. Raises: as `refuse_given_twice` and `_demands`."""
    pairs = policy.disaggregation or tuple(disaggregation_of(setup, asked.lines))
    refuse_given_twice(asked, pairs)
    apart = policy.model_copy(update={"disaggregation": pairs})
    return {"demands": _demands(setup, library, asked), "policy": apart}


def _demands(setup: Setup, library: Library, asked: Entries[DemandLine]) -> tuple[ServiceDemand, ...]:
    """Raises FileError: requests/s times their length are more than there are numbers for, or than so many
    templates that it must be a mistake."""
    faults, found, best = [], [], _best(library)
    for i, line in enumerate(asked.lines):
        rates = _rates(setup, line)
        if not all(map(math.isfinite, rates.values())):
            faults.append(asked.fault(i, "", f"{_said(rates)}, expected finite numbers"))
            continue
        for phase, rate in rates.items():
            service = Service(model=line.model, slo_class=str(line.slo_class), phase=phase)
            if much := beyond_reach(rate, best.get(service.key, 0.0)):
                faults.append(asked.fault(i, "", f"{_said({phase: rate})}, {much}"))
                break  # the other phase's follows from the same number
            found.append(ServiceDemand(service=service, rate=rate))
    refuse(faults)
    return tuple(found)


def _best(library: Library) -> dict[str, float]:
    """Service key -> the most that a template of it gives."""
    found: dict[str, float] = {}
    for shelf in library.parts.values():
        most = float(shelf.kept.throughput.max(initial=0.0))
        found[shelf.part.service.key] = max(most, found.get(shelf.part.service.key, 0.0))
    return found


def _said(rates: Mapping[Phase, float]) -> str:
    return ", ".join(f"{rate:g} a second of {phase}" for phase, rate in rates.items())


def _rates(setup: Setup, line: DemandLine) -> Mapping[Phase, float]:
    """Requests/s as the set-up's phases count them: where it has prefill and decode together, that one."""
    if line.requests_per_s is None:
        return line.rates
    workload = workload_of(line, level_of(setup.catalog, line.model, str(line.slo_class)).workload)
    phases: tuple[Phase, ...] = ("both",) if "both" in setup.scope.phases else setup.scope.phases
    return {phase: line.requests_per_s * tokens_of(workload, phase) for phase in phases}


def _by_place(listed: Entries[PriceLine]) -> dict[Place, float]:
    return {Place(line.pool, line.configuration): line.usd_per_hour for line in listed.lines}


def _priced_at(place: Place, prices: Mapping[Place, float]) -> Place | None:
    """The place whose price holds: its own, or that of the region without zones."""
    anywhere = Place(place.pool.model_copy(update={"zone": "*"}), place.configuration)
    return next((at for at in (place, anywhere) if at in prices), None)


def _unused(
    listed: Entries[PriceLine], stocks: Sequence[Stock], prices: Mapping[Place, float]
) -> tuple[str, ...]:
    """Lines whose price no stock has."""
    used = {_priced_at(Place(stock.pool, stock.configuration), prices) for stock in stocks}
    return tuple(
        f"{listed.at(i)}: price of {place.configuration} in {place.pool.key}"
        for i, place in enumerate(_by_place(listed))  # each place is listed once
        if place not in used
    )


def _stocks(path: Path, known: Known, prices: Mapping[Place, float]) -> tuple[Stock, ...]:
    """Raises FileError: nobody has said what a node costs there."""
    stocks, faults = [], []
    listed = read_availability(path, known)
    for i, line in enumerate(listed.lines):
        at = _priced_at(Place(line.pool, line.configuration), prices)
        if at is None and line.market != "reserved":  # which are paid anyway
            text = f"{line.configuration} in {line.pool.key} has no price, expected one in a file of prices"
            faults.append(listed.fault(i, "", text))
            continue
        stocks.append(
            Stock(
                pool=line.pool,
                configuration=line.configuration,
                nodes=line.nodes,
                usd_per_hour=0.0 if at is None else prices[at],
                interruptions_per_hour=line.interruptions_per_hour,
            )
        )
    refuse(faults)
    return tuple(stocks)


def _running(path: Path, known: Known, library: Library) -> tuple[Running, ...]:
    """Raises FileError: a template that is not in the library."""
    if is_record(path):
        return running_of(read_record(path).answer)
    found, faults = [], []
    listed = read_running(path, known)
    for i, line in enumerate(listed.lines):
        rated = _found(library, line.template)
        if rated is None:
            text = (
                f"{line.template!r} is not in the library {library.digest}, expected one that is, or "
                "instead of this file a plan that `coral plan` wrote, which has its templates whole"
            )
            faults.append(listed.fault(i, "template", text))
            continue
        found.append(
            Running(
                template=rated.template,
                rating=rated.rating,
                pool=line.pool,
                count=line.count,
                pinned=line.pinned,
            )
        )
    refuse(faults)
    return tuple(found)


def _found(library: Library, template: str) -> Rated | None:
    for shelf in library.parts.values():
        if (row := shelf.find(template)) is not None:
            return shelf.rated(row)
    return None
