"""An independent check of an answer against its problem: plain arithmetic, nothing shared with the solver.

Read beside coral.md, "Stage 2". A plan is made only from an answer without violations.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from schemas.problems import Answer, Chosen, Problem

Name = Literal[
    "problem", "twice", "pool", "excluded", "unfit", "capacity", "service", "rating", "demand", "unmet",
    "price", "penalty", "bound",
]  # fmt: skip

SHARE = 1e-5
"""Relative slack on demand: ten times the solver's tolerance, so that rounding never fails a good answer."""
MONEY = 1e-9
"""Relative slack on sums of prices: what adding floats in another order can change."""


@dataclass(frozen=True)
class Violation:
    """One broken promise: which, and the figures."""

    name: Name
    detail: str


def verify(problem: Problem, answer: Answer) -> tuple[Violation, ...]:
    """All violations of an answer, in a fixed order; empty if it satisfies its problem."""
    checks = (_identity, _pools, _unfit, _capacity, _services, _demand, _prices, _penalty, _bound)
    return tuple(violation for check in checks for violation in check(problem, answer))


def _identity(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """It answers this problem, and names each (service, template, pool) once."""
    if answer.problem != problem.id:
        yield Violation("problem", f"answers {answer.problem!r}, asked {problem.id!r}")
    for key, times in sorted(Counter(_key(c) for c in answer.chosen).items()):
        if times > 1:
            yield Violation("twice", f"{key} is chosen in {times} entries")


def _pools(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """Every node of a template can be had in the template's one pool, and is not excluded."""
    offered = {(s.pool, s.configuration) for s in problem.stocks}
    for chosen in answer.chosen:
        for name in chosen.template.uses():
            if (chosen.pool, name) not in offered:
                yield Violation("pool", f"{chosen.template.id}: no {name} in {chosen.pool.key}")
            if name in problem.excluded_configurations:
                yield Violation("excluded", f"{chosen.template.id}: {name} is excluded")


def _unfit(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """Where a place refused a model there is no more of it than runs there, and what may be tried."""
    running = _running(problem)
    for chosen in answer.chosen:
        for unfit in problem.unfit:
            here = (chosen.template.model, chosen.pool) == (unfit.model, unfit.pool)
            if not here or unfit.configuration not in chosen.template.nodes:
                continue
            allowed = running[_key(chosen)] + unfit.tries
            if chosen.count > allowed:
                where = f"{unfit.configuration} in {unfit.pool.key}"
                yield Violation(
                    "unfit", f"{chosen.template.id}: {chosen.count} on {where}, {allowed} allowed"
                )


def _capacity(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """No pool gives more nodes of a configuration than its stock."""
    used: Counter[tuple[str, str]] = Counter()
    for chosen in answer.chosen:
        for name, nodes in chosen.template.uses().items():
            used[chosen.pool.key, name] += nodes * chosen.count
    for stock in problem.stocks:
        taken = used[stock.pool.key, stock.configuration]
        if taken > stock.nodes:
            where = f"{stock.configuration} in {stock.pool.key}"
            yield Violation("capacity", f"{where}: {taken} used, {stock.nodes} there")


def _services(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """Only services that were asked for, and one rating for each (service, template)."""
    asked = {d.service for d in problem.demands}
    for service in sorted({c.service.key for c in answer.chosen} | {u.service.key for u in answer.unmet}):
        if service not in {s.key for s in asked}:
            yield Violation("service", f"{service} was not asked for")
    rates: dict[tuple[str, str], float] = {}
    for chosen in answer.chosen:
        rate = rates.setdefault((chosen.service.key, chosen.template.id), chosen.rating.throughput)
        if rate != chosen.rating.throughput:
            yield Violation("rating", f"{chosen.template.id}: rated {rate} and {chosen.rating.throughput}")


def _demand(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """What is served and what is declared unmet add up to each demand; nothing is declared that is served."""
    declared = {u.service.key: u for u in answer.unmet}
    if len(declared) != len(answer.unmet):
        yield Violation("unmet", "a service is declared unmet twice")
    for demand in problem.demands:
        key = demand.service.key
        served = sum(c.rating.throughput * c.count for c in answer.chosen if c.service.key == key)
        missing = max(0.0, demand.rate - served)
        unmet = declared[key].rate if key in declared else 0.0
        if missing > unmet + SHARE * demand.rate:
            yield Violation("demand", f"{key}: {missing} missing, {unmet} declared unmet")
        elif unmet > missing + SHARE * demand.rate:
            yield Violation("unmet", f"{key}: {unmet} declared unmet, {missing} missing")
        if key in declared and not _close(declared[key].share * demand.rate, unmet, SHARE):
            yield Violation("unmet", f"{key}: share {declared[key].share} is not {unmet} of {demand.rate}")


def _prices(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """An instance costs what its nodes cost; the total is the sum of the instances."""
    price = {(s.pool.key, s.configuration): s.usd_per_hour for s in problem.stocks}
    total = 0.0
    for chosen in answer.chosen:
        nodes = chosen.template.uses().items()
        usd = sum(price.get((chosen.pool.key, name), math.nan) * count for name, count in nodes)
        if not _close(usd, chosen.usd_per_hour, MONEY):
            yield Violation("price", f"{chosen.template.id}: {chosen.usd_per_hour}, its nodes cost {usd}")
        total += chosen.usd_per_hour * chosen.count
    if not _close(total, answer.usd_per_hour, MONEY):
        yield Violation("price", f"total {answer.usd_per_hour}, instances cost {total}")


def _penalty(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """Instances beyond those running pay K times their price."""
    running = _running(problem)
    penalty = 0.0
    for chosen in answer.chosen:
        new = max(0, chosen.count - running[_key(chosen)])
        penalty += new * chosen.usd_per_hour * problem.startup_ratio.get(chosen.template.model, 0.0)
    if not _close(penalty, answer.penalty_usd_per_hour, MONEY):
        yield Violation("penalty", f"{answer.penalty_usd_per_hour}, starting instances gives {penalty}")


def _bound(_: Problem, answer: Answer) -> Iterator[Violation]:
    """The bound is not above the cost, and the gap is what lies between them."""
    cost = answer.usd_per_hour + answer.penalty_usd_per_hour
    if answer.bound_usd_per_hour > cost * (1 + MONEY) + MONEY:
        yield Violation("bound", f"bound {answer.bound_usd_per_hour} above cost {cost}")
    gap = (cost - answer.bound_usd_per_hour) / cost if cost > 0 else 0.0
    if abs(gap - answer.gap) > 1e-6:
        yield Violation("bound", f"gap {answer.gap}, bound and cost give {gap}")


def _running(problem: Problem) -> Counter[tuple[str, str, str]]:
    """(service key, template id, pool key) -> instances."""
    running: Counter[tuple[str, str, str]] = Counter()
    for run in problem.running:
        service = f"{run.template.model}/{run.rating.slo_class}/{run.template.phase}"
        running[service, run.template.id, run.pool.key] += run.count
    return running


def _key(chosen: Chosen) -> tuple[str, str, str]:
    return (chosen.service.key, chosen.template.id, chosen.pool.key)


def _close(a: float, b: float, slack: float) -> bool:
    return abs(a - b) <= slack * max(1.0, abs(a), abs(b))  # false for NaN
