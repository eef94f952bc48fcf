"""From a problem and a library to the integer program (`solver.program`), as arrays.

Which templates could run where, at what price, what an instance covers and takes: everything is sorted, so
that the same problem always gives the same program. A template in a place that refused its model is a column
only as far as it runs there and is to be tried. Templates that run now are columns even where the library
lacks them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from schemas.problems import Breach, Pool, Problem, Stock
from solver.asked import Asked, ProblemError, Runs, asked_of, check, check_reach, running_of
from solver.candidates import Rated, Templates
from solver.coupling import Draft, Missing, define_policies, replicas_of
from solver.picking import pick
from solver.places import Place, Room, places_of
from solver.program import FREE, Block, Draw, Family, Floats, Program, Special, Term
from solver.shelves import Shelves, shelves_of
from solver.sites import Site, offered_sites, paired, served_sites, tries
from solver.slices import usd_of_slices

__all__ = ["ProblemError", "Question", "make_question"]

Pins = Mapping[tuple[int, int], int]
"""(block, row) -> instances that stay."""


@dataclass(frozen=True, eq=False)
class Question:
    """A program and what its parts stand for."""

    problem: Problem
    library: Templates
    program: Program
    asked: Mapping[str, Asked]
    """By service key, also those that no template could serve, which the program leaves out."""
    shelves: Shelves
    places: tuple[Place, ...]
    sites: tuple[Site, ...]
    """By index of the block."""
    offered: tuple[Site, ...]
    """Those, and the ones of services that no pool has the nodes for."""
    bought: Mapping[int, tuple[Place, Stock]]
    """Extra -> the nodes that it counts."""
    apart: Mapping[int, tuple[str, str, str]]
    """Extra -> service, region and variant of which it is the share served apart."""
    missing: Mapping[int, Missing]
    """Extra -> the policy that it is short of."""
    breaches: tuple[Breach, ...]
    """Pinned instances that there is no stock for, and floors of services that the program leaves out."""
    limits: tuple[int, ...]
    """Rows of policies that keep columns out: ceilings, shares, the budget."""
    ties: tuple[int, ...]
    """Rows that nobody asked for: they tie parts of the program together."""
    ignored: tuple[str, ...]
    """Stock, and exclusions, of what no template knows."""

    def rated(self, block: int, row: int) -> Rated:
        return self.sites[block].kind.rated(row)

    def uses(self, block: int, row: int) -> dict[int, int]:
        return self.sites[block].kind.uses(row)

    def pool(self, block: int) -> Pool:
        return self.sites[block].place.pool

    def bill(self, block: int, row: int) -> float:
        """USD per hour of one instance: its nodes, and its share of those that it shares."""
        place = self.sites[block].place
        return sum(float(place.bill[c]) * count for c, count in self.uses(block, row).items())


def make_question(problem: Problem, library: Templates) -> Question:
    """Put a problem as an integer program.

    Raises:
        ProblemError: it names another library, contradicts itself, or has a number that cannot be.
        LibraryError: what runs is to be looked up, and the library was opened without figures; or there are
            more configurations than a program can number.
    """
    check(problem, library)
    asked = {a.service.key: a for a in asked_of(problem)}
    shelves, runs = running_of(problem, shelves_of(library), list(asked))
    check_reach(list(asked.values()), shelves)
    places = places_of(problem, shelves.configurations)
    offered = offered_sites(problem, asked, shelves, places)
    sites = served_sites(problem, offered, runs)
    services = sorted({site.asked.service.key for site in sites} | paired(problem, asked, sites))
    draft = Draft(sites, {key: s for s, key in enumerate(services)})
    draws = {place.pool.key: tuple(define_stock(draft, problem, place)) for place in places}
    define_policies(draft, problem.policy, [asked[key] for key in draft.services])
    pins, breaches = _pins(runs, sites)
    return Question(
        problem=problem,
        library=library,
        program=_program(problem, draft, asked, draws, tuple(_specials(problem, runs, pins, sites))),
        asked=asked,
        shelves=shelves,
        places=places,
        sites=tuple(sites),
        offered=tuple(offered),
        bought=draft.bought,
        apart=draft.apart,
        missing=draft.missing,
        limits=tuple(draft.limits),
        ties=tuple(draft.ties),
        breaches=(*breaches, *_hopeless(problem, asked, draft, pins)),
        ignored=tuple(_ignored(problem, shelves)),
    )


def _program(
    problem: Problem,
    draft: Draft,
    asked: Mapping[str, Asked],
    draws: Mapping[str, tuple[Draw, ...]],
    specials: tuple[Special, ...],
) -> Program:
    wanted = [asked[key] for key in draft.services]
    kinds = {site.family: site for site in draft.sites}
    rows, extras = draft.made()
    program = Program(
        services=tuple(draft.services),
        weight=np.array([a.weight for a in wanted]),
        families=tuple(
            Family(draft.services[s.asked.service.key], s.kind.nodes, s.asked.cover(s.kind))
            for _, s in sorted(kinds.items())
        ),
        blocks=tuple(
            _block(problem, site, draws[site.place.pool.key], draft.terms.get(b, []))
            for b, site in enumerate(draft.sites)
        ),
        rows=rows,
        specials=specials,
        extras=extras,
        need=np.array([a.need for a in wanted]),
        steps=("total", "cost") if problem.policy.scarcity == "most-met" else ("worst", "total", "cost"),
    )
    return _letting_pins(program, draft)


# ------------------------------------------------------------------------------------------------ blocks


def _block(problem: Problem, site: Site, draws: tuple[Draw, ...], terms: Sequence[Term]) -> Block:
    """Templates of one kind in one place; a shared node's price is on the node, not on its slices."""
    place = site.place
    bill = np.nan_to_num(place.bill)
    shared = np.array([place.is_slice(name) for name in place.names])
    return Block(
        family=site.family,
        pool=place.pool.key,
        price=np.where(shared, 0.0, bill),
        start=bill * problem.startup_ratio.get(site.asked.service.model, 0.0),
        offered=site.offered,
        draws=draws,
        terms=tuple(terms),
        surcharge=_surcharge(problem, site, bill),
        limit=tries(problem, site),
    )


def _surcharge(problem: Problem, site: Site, bill: Floats) -> Floats | None:
    """[n]: what an instance must save by being complex, and what interruptions cost it, USD per hour.

    Both fall at least as hard on a whole as on its parts, so that pruning stays lossless.
    """
    policy = problem.policy
    risk = policy.interruption_hours * site.place.risk * bill
    found = np.zeros(len(site.kind))
    if policy.surcharge_per_step:
        found += policy.surcharge_per_step * site.kind.complexity * site.kind.sums(bill)
    if risk.any():
        found += site.kind.sums(risk)
    return found if found.any() else None


# ------------------------------------------------------------------------------------------------ stock


def define_stock(draft: Draft, problem: Problem, place: Place) -> Iterator[Draw]:
    """For every pool and configuration: nodes used by all instances there are at most its stock.

    sum over tau of U_c(tau) nu_r(tau) <= A_r(c). Of a shared kind: the nodes bought are at most the stock,
    and GPUs in slices too large for smaller nodes are at most those of bought nodes that are large enough.
    """
    at = {name: c for c, name in enumerate(place.names)}
    for name, stock in sorted(place.stocks.items()):
        if name in at and not place.is_slice(name):
            yield Draw(at[name], _stock_row(draft, stock), 1.0)
    floors = {}
    for floor in place.floors():
        floors[floor] = draft.row(floor.name, 0.0)
        yield from (Draw(c, floors[floor], float(gpus)) for c, gpus in place.slices(floor))
    for stock in (stock for stocks in place.shared.values() for stock in stocks):
        draws = {_stock_row(draft, stock): 1.0}
        draws |= {
            row: -float(gpus)
            for floor, row in floors.items()
            for host, gpus in place.hosts(floor)
            if host is stock
        }
        risk = problem.policy.interruption_hours * stock.interruptions_per_hour
        name, usd = f"nodes of {stock.configuration} in {stock.pool.key}", stock.usd_per_hour * (1 + risk)
        # One above the stock, so that the row has the shadow price and not the variable's own limit.
        nodes = draft.variable(name, usd, stock.nodes + 1.0, whole=True, draws=draws)
        draft.bought[nodes] = place, stock


def _stock_row(draft: Draft, stock: Stock) -> int:
    return draft.row(f"stock of {stock.configuration} in {stock.pool.key}", float(stock.nodes))


def _hopeless(problem: Problem, asked: Mapping[str, Asked], draft: Draft, pins: Pins) -> Iterator[Breach]:
    """Floors of services that no pool has the nodes for; decode instances of theirs may be pinned."""
    policy = problem.policy
    for service in (a.service for key, a in asked.items() if key not in draft.services and a.demanded):
        counted = replicas_of(policy, service.key)
        pinned = {at: n for at, n in pins.items() if n and draft.sites[at[0]].asked.service.key in counted}
        got = sum(pinned.values())
        floor = max((r.at_least for r in policy.replicas if r.model == service.model), default=0)
        if got < floor:
            yield Breach(policy="replicas", subject=service.key, asked=floor, got=got)
        regions = policy.regions_at_least.get(service.model, 0)
        there = len({draft.sites[b].place.region for b, _ in pinned})
        if there < regions:
            yield Breach(policy="regions_at_least", subject=service.key, asked=regions, got=there)


def _ignored(problem: Problem, shelves: Shelves) -> Iterator[str]:
    known = {*shelves.configurations, *(name for kind in problem.sliced for name in kind.gpus)}
    for stock in problem.stocks:
        if stock.configuration not in known:
            yield f"stock of {stock.configuration} in {stock.pool.key}: in no template"
    for name in sorted(set(problem.excluded_configurations)):
        if name not in known:
            yield f"excluded {name}: in no template"


# ------------------------------------------------------------------------------------------------ what runs


def _specials(problem: Problem, runs: Sequence[Runs], pins: Pins, sites: Sequence[Site]) -> Iterator[Special]:
    """The columns that run now, in rising order."""
    blocks = {(site.kind, site.place.pool.key): b for b, site in enumerate(sites)}
    found = []
    for run in runs:
        for pool, running in run.running.items():
            b = blocks.get((run.kind, pool))
            if b is not None and all(sites[b].offered[c] for c in run.kind.uses(run.row)):
                limit = tries(problem, sites[b])
                most = FREE if limit is None else min(FREE, running + int(limit[run.row]))
                found.append(Special(b, run.row, running, pins.get((b, run.row), 0), most))
    yield from sorted(found)


def _pins(runs: Sequence[Runs], sites: Sequence[Site]) -> tuple[Pins, tuple[Breach, ...]]:
    """The pinned instances that there is the stock for, and those that there is none for."""
    blocks = {(site.kind, site.place.pool.key): b for b, site in enumerate(sites)}
    rooms: dict[str, Room] = {}
    pins: dict[tuple[int, int], int] = {}
    breaches = []
    for run in runs:
        for pool, asked in sorted(run.pinned.items()):
            b, got = blocks.get((run.kind, pool)), 0
            if b is not None and all(sites[b].offered[c] for c in run.kind.uses(run.row)):
                room = rooms.setdefault(pool, Room(sites[b].place))
                got = room.take(run.kind.uses(run.row), asked)
                pins[b, run.row] = got
            if got < asked:
                subject = f"{run.kind.rated(run.row).template.id} in {pool}"
                breaches.append(Breach(policy="pinned", subject=subject, asked=asked, got=got))
    return pins, tuple(breaches)


def _letting_pins(program: Program, draft: Draft) -> Program:
    """Ceilings, shares and the budget leave room for what is pinned, the nodes under its slices included."""
    pinned = [s for s in program.specials if s.least]
    if not pinned or not draft.limits:
        return program
    picked = pick(program, [s.block for s in pinned], [s.row for s in pinned])
    drawn = np.zeros(len(program.rows.right))
    np.add.at(drawn, picked.term_row, picked.term_amount * picked.least[picked.term_column])
    if draft.budget is not None:
        drawn[draft.budget] += _usd_under_slices(pinned, draft.sites)
    right = program.rows.right.copy()
    right[draft.limits] = np.maximum(right, drawn)[draft.limits]
    return replace(program, rows=replace(program.rows, right=right))


def _usd_under_slices(pinned: Sequence[Special], sites: Sequence[Site]) -> float:
    uses: dict[str, Counter[int]] = {}
    places = {sites[s.block].place.pool.key: sites[s.block].place for s in pinned}
    for s in pinned:
        used = uses.setdefault(sites[s.block].place.pool.key, Counter())
        for c, nodes in sites[s.block].kind.uses(s.row).items():
            used[c] += nodes * s.least
    return sum(usd_of_slices(place, uses[pool]) for pool, place in places.items())
