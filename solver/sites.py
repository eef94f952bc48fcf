"""Which templates come into question where: a site is one kind of templates in one place, a block."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from schemas.problems import Problem, Service
from solver.asked import Asked, Runs
from solver.places import Place, Room
from solver.program import FREE, Ints
from solver.shapes import Flags
from solver.shelves import Kind, Shelves


class Site(NamedTuple):
    """One block: templates of one kind in one place."""

    family: int
    kind: Kind
    place: Place
    asked: Asked
    offered: Flags
    """[C]: configurations that its templates may have there."""


def offered_sites(
    problem: Problem, asked: Mapping[str, Asked], shelves: Shelves, places: Sequence[Place]
) -> list[Site]:
    """Kinds of wanted services and good enough variants, in every pool with nodes for any of their
    templates."""
    allowed = problem.policy.variants
    kinds = [
        kind
        for kind in shelves.kinds
        if kind.service.key in asked and kind.variant in allowed.get(kind.service.model, (kind.variant,))
    ]
    found = []
    for f, kind in enumerate(kinds):
        pairs = _may_pair(problem, kind.service, shelves.configurations)
        for place in places:
            offered = place.offered & pairs
            if any(offered[c] for c in kind.most):
                found.append(Site(f, kind, place, asked[kind.service.key], offered))
    return found


def _may_pair(problem: Problem, service: Service, names: Sequence[str]) -> Flags:
    """[C]: configurations that prefill and decode instances of a pair may have; any, for other services."""
    for pair in problem.policy.disaggregation:
        half = (service.model, service.slo_class) == (pair.model, pair.slo_class) and service.phase != "both"
        if half and pair.configurations:
            return np.array([name in pair.configurations for name in names], np.bool_)
    return np.ones(len(names), np.bool_)


def served_sites(problem: Problem, offered: Sequence[Site], runs: Sequence[Runs]) -> list[Site]:
    """Without services that no pool has the nodes for: what they lack must not hide what others lack."""
    served: set[str] = set()
    for site in offered:
        if site.asked.service.key not in served and _could_run(problem, site, runs):
            served.add(site.asked.service.key)
    kept = [site for site in offered if site.asked.service.key in served]
    families = {f: i for i, f in enumerate(sorted({site.family for site in kept}))}
    return [site._replace(family=families[site.family]) for site in kept]


def paired(problem: Problem, asked: Mapping[str, Asked], sites: Sequence[Site]) -> set[str]:
    """Services asked for that prefill and decode instances of one region and variant could serve together,
    whether or not they have templates of their own."""
    found = set()
    for pair in problem.policy.disaggregation:
        prefill, decode = (
            {
                (site.place.region, site.kind.variant)
                for site in sites
                if site.asked.service.key == f"{pair.model}/{pair.slo_class}/{phase}"
            }
            for phase in ("prefill", "decode")
        )
        if prefill & decode:
            found.add(f"{pair.model}/{pair.slo_class}/both")
    return found & set(asked)


def _could_run(problem: Problem, site: Site, runs: Sequence[Runs]) -> bool:
    """Whether there may be one instance of any template."""
    limit = tries(problem, site)
    running = {r.row for r in runs if r.kind is site.kind and r.running.get(site.place.pool.key)}
    return any(limit is None or limit[row] > 0 or row in running for row in fitting(site))


def fitting(site: Site) -> Iterator[int]:
    """The rows of which the stock holds an instance; who wants but one has not looked at all."""
    room = Room(site.place)
    alone = np.array([room.most({c: 1}) if there else 0 for c, there in enumerate(site.offered)] + [FREE])
    first, chunk = 0, 64
    while first < len(site.kind):
        nodes = site.kind.nodes[first : first + chunk].astype(np.int64)
        rows = first + np.flatnonzero((alone[nodes] > 0).all(axis=1))
        yield from (row for row in rows.tolist() if room.most(site.kind.uses(row)))
        first, chunk = first + chunk, 2 * chunk


def tries(problem: Problem, site: Site) -> Ints | None:
    """[n]: new instances that may be tried where a node of theirs refused the model; free elsewhere."""
    at = {name: c for c, name in enumerate(site.place.names)}
    limit = None
    for unfit in problem.unfit:
        here = (unfit.model, unfit.pool.key) == (site.asked.service.model, site.place.pool.key)
        if here and unfit.configuration in at:
            on_it = (site.kind.nodes == at[unfit.configuration]).any(axis=1)
            limit = np.full(len(site.kind), FREE) if limit is None else limit
            limit[on_it] = np.minimum(limit[on_it], unfit.tries)
    return limit
