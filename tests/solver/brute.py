"""All allocations of a small problem, one after the other: what the solver's answers are held against.

Written down again from coral.md, "Stage 2", and the order of scarcity; nothing shared with the solver.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from schemas.problems import Answer, Pool, Problem, Running
from solver.candidates import Candidate, Rated, Templates


class Option(NamedTuple):
    """A template that fits a pool."""

    candidate: Candidate
    pool: Pool
    usd: float
    running: int
    most: int


class Reached(NamedTuple):
    """What the order compares, over the services that some template could serve."""

    worst: float
    total: float
    cost: float


def options(problem: Problem, library: Templates) -> Iterator[Option]:
    """All pairs of template and pool; what runs and the library lacks is among them."""
    wanted = {d.service.key for d in problem.demands if d.rate > 0}
    price = {(s.pool.key, s.configuration): s.usd_per_hour for s in problem.stocks}
    nodes = {(s.pool.key, s.configuration): s.nodes for s in problem.stocks}
    pools = {s.pool.key: s.pool for s in problem.stocks}
    for key in sorted(wanted):
        for candidate in _candidates(problem, library, key):
            for name, pool in sorted(pools.items()):
                running = sum(r.count for r in problem.running if _is(r, candidate, name))
                most = min(nodes.get((name, c), 0) // n for c, n in candidate.uses.items())
                for unfit in problem.unfit:
                    here = (unfit.model, unfit.pool.key) == (candidate.service.model, name)
                    if here and unfit.configuration in candidate.uses:
                        most = min(most, running + unfit.tries)
                if most:
                    usd = sum(price[name, c] * n for c, n in candidate.uses.items())
                    yield Option(candidate, pool, usd, running, most)


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


def brute_force(problem: Problem, library: Templates) -> Reached:
    """The best of all allocations."""
    known = list(options(problem, library))
    nodes = {(s.pool.key, s.configuration): s.nodes for s in problem.stocks}
    best = Reached(float("inf"), float("inf"), float("inf"))
    for counts in product(*(range(o.most + 1) for o in known)):
        used: dict[tuple[str, str], int] = {}
        for option, count in zip(known, counts, strict=True):
            for name, n in option.candidate.uses.items():
                used[option.pool.key, name] = used.get((option.pool.key, name), 0) + n * count
        if all(taken <= nodes[key] for key, taken in used.items()):
            best = min(best, reached(problem, known, counts))
    return best


def reached(problem: Problem, known: Sequence[Option], counts: Sequence[int]) -> Reached:
    """Unmet shares first, rounded, so that the cost decides among equals."""
    served = {o.candidate.service.key for o in known}
    shares = [
        max(0.0, 1 - _given(known, counts, d.service.key) / d.rate)
        for d in problem.demands
        if d.service.key in served
    ]
    cost = 0.0
    for option, count in zip(known, counts, strict=True):
        ratio = problem.startup_ratio.get(option.candidate.service.model, 0.0)
        cost += option.usd * (count + max(0, count - option.running) * ratio)
    return Reached(round(max(shares, default=0.0), 6), round(sum(shares), 6), cost)


def _given(known: Sequence[Option], counts: Sequence[int], key: str) -> float:
    pairs = zip(known, counts, strict=True)
    return sum(n * o.candidate.throughput for o, n in pairs if o.candidate.service.key == key)


def measured(problem: Problem, library: Templates, answer: Answer) -> Reached:
    """An answer by the same measure."""
    known = list(options(problem, library))
    chosen = {(c.template.id, c.pool.key): c.count for c in answer.chosen}
    counts = [chosen.get((o.candidate.rated.template.id, o.pool.key), 0) for o in known]
    return reached(problem, known, counts)
