"""All allocations of a small problem, one after the other: what the solver's answers are held against.

Written down again from coral.md, "Stage 2", the order of scarcity and `schemas.allocation`; nothing shared
with the solver. Nodes that are shared, pairs and pinned instances are left to tests of their own.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from schemas.problems import Answer, Pool, Problem, Running, Stock
from solver.candidates import Candidate, Rated, Templates


class Option(NamedTuple):
    """A template that fits a pool."""

    candidate: Candidate
    pool: Pool
    usd: float
    running: int
    most: int
    cover: float
    """Share of the demand that one instance counts for."""
    added: float
    """What policies add to the price."""


class Reached(NamedTuple):
    """What the order compares, over the services that some template could serve."""

    worst: float
    total: float
    cost: float


Counts = Sequence[int]


def options(problem: Problem, library: Templates) -> Iterator[Option]:
    """All pairs of template and pool; what runs and the library lacks is among them."""
    stock = {(s.pool.key, s.configuration): s for s in problem.stocks}
    pools = {s.pool.key: s.pool for s in problem.stocks}
    for demand in sorted((d for d in problem.demands if d.rate > 0), key=lambda d: d.service.key):
        for candidate in _candidates(problem, library, demand.service.key):
            for name, pool in sorted(pools.items()):
                nodes = {c: stock.get((name, c)) for c in candidate.uses}
                running = sum(r.count for r in problem.running if _is(r, candidate, name))
                most = min(s.nodes // candidate.uses[c] if s else 0 for c, s in nodes.items())
                for unfit in problem.unfit:
                    here = (unfit.model, unfit.pool.key) == (candidate.service.model, name)
                    if here and unfit.configuration in candidate.uses:
                        most = min(most, running + unfit.tries)
                if most:
                    used = [(s, candidate.uses[c]) for c, s in nodes.items() if s]
                    usd = sum(s.usd_per_hour * n for s, n in used)
                    cover, added = _cover(problem, candidate, demand.rate), _added(problem, used, usd)
                    yield Option(candidate, pool, usd, running, most, cover, added)


def _candidates(problem: Problem, library: Templates, key: str) -> list[Candidate]:
    known = list(library.by_service.get(key, ()))
    ids = {c.rated.template.id for c in known}
    for run in problem.running:
        rated = Rated(template=run.template, rating=run.rating)
        if rated.service.key == key and run.template.id not in ids:
            ids.add(run.template.id)
            known.append(rated.candidate)
    return known


def _is(run: Running, candidate: Candidate, pool: str) -> bool:
    return (run.template.id, run.pool.key) == (candidate.rated.template.id, pool)


def _cover(problem: Problem, candidate: Candidate, rate: float) -> float:
    policy, service = problem.policy, candidate.service
    hours = policy.recovery_s.get(service.model, 0.0) / 3600
    kept = 1 - policy.failures_per_node_hour * hours * len(candidate.nodes)
    half = 0.5 if service.slo_class in policy.half_rule else 1.0
    return min(half, candidate.throughput * kept / rate)


def _added(problem: Problem, used: Sequence[tuple[Stock, int]], usd: float) -> float:
    policy = problem.policy
    steps = (sum(n for _, n in used) > 1) + (len(used) > 1)
    risk = sum(s.usd_per_hour * n * s.interruptions_per_hour for s, n in used)
    return usd * policy.surcharge_per_step * steps + risk * policy.interruption_hours


def brute_force(problem: Problem, library: Templates) -> Reached:
    """The best of all allocations."""
    known = list(options(problem, library))
    allowed = (c for c in product(*(range(o.most + 1) for o in known)) if _is_allowed(problem, known, c))
    return min(reached(problem, known, counts) for counts in allowed)


def _is_allowed(problem: Problem, known: Sequence[Option], counts: Counts) -> bool:
    """Stock, ceilings, spot shares and the budget."""
    policy, used, bill = problem.policy, Counter[tuple[str, str]](), 0.0
    for option, count in zip(known, counts, strict=True):
        bill += option.usd * count
        for name, n in option.candidate.uses.items():
            used[option.pool.key, name] += n * count
    if any(used[s.pool.key, s.configuration] > s.nodes for s in problem.stocks):
        return False
    if policy.budget_usd_per_hour is not None and bill > policy.budget_usd_per_hour + 1e-9:
        return False
    for key, model in {d.service.key: d.service.model for d in problem.demands}.items():
        mine = [(o, n) for o, n in zip(known, counts, strict=True) if o.candidate.service.key == key]
        ceiling = next((r.at_most for r in policy.replicas if r.model == model), None)
        if ceiling is not None and sum(n for _, n in mine) > ceiling:
            return False
        spot = sum(o.cover * n for o, n in mine if o.pool.market == "spot")
        share = policy.spot_share.get(model, policy.spot_share.get("*", 1.0))
        if spot > share * sum(o.cover * n for o, n in mine) + 1e-9:
            return False
    return True


def reached(problem: Problem, known: Sequence[Option], counts: Counts) -> Reached:
    """Unmet shares first, rounded, so that the cost decides among equals."""
    policy, served = problem.policy, {o.candidate.service.key for o in known}
    shares, cost = [], 0.0
    for option, count in zip(known, counts, strict=True):
        ratio = problem.startup_ratio.get(option.candidate.service.model, 0.0)
        cost += option.usd * (count + max(0, count - option.running) * ratio) + option.added * count
    for service in (d.service for d in problem.demands if d.rate > 0):
        mine = [(o, n) for o, n in zip(known, counts, strict=True) if o.candidate.service == service]
        weight = policy.weights.get(service.model, 1.0)
        if service.key in served:
            shares.append(weight * max(0.0, 1 - sum(o.cover * n for o, n in mine)))
        floor = next((r.at_least for r in policy.replicas if r.model == service.model), 0)
        missing = max(0, floor - sum(n for _, n in mine))
        regions = len({o.pool.region for o, n in mine if n})
        missing += max(0, policy.regions_at_least.get(service.model, 0) - regions)
        cost += missing * policy.breach_usd_per_hour
    worst = 0.0 if policy.scarcity == "most-met" else max(shares, default=0.0)
    return Reached(round(worst, 6), round(sum(shares), 6), cost)


def measured(problem: Problem, library: Templates, answer: Answer) -> Reached:
    """An answer by the same measure."""
    known = list(options(problem, library))
    chosen = {(c.template.id, c.pool.key): c.count for c in answer.chosen}
    counts = [chosen.get((o.candidate.rated.template.id, o.pool.key), 0) for o in known]
    return reached(problem, known, counts)


PROVEN = 1e-3
"""What an answer's proof may leave open: of the cost as a share of it, of unmet shares as it is."""


def within_the_proof(answer: Answer, found: Reached, best: Reached) -> None:
    """An answer is as good as the best of all, within what its proof leaves open; no bound is above that."""
    assert all(step.gap <= PROVEN for step in answer.steps)
    assert found.worst <= best.worst + PROVEN
    if abs(found.worst - best.worst) < 1e-6:
        assert found.total <= best.total + PROVEN
    if found[:2] == best[:2]:
        assert found.cost <= best.cost * (1 + PROVEN) + 1e-6
        assert answer.steps[-1].bound <= best.cost + 1e-6
    first = answer.steps[0]
    if first.minimised == "worst" or (first.minimised == "total" and best.worst == 0):
        assert first.bound <= (best.worst if first.minimised == "worst" else best.total) + 1e-6
