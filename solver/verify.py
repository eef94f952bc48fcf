"""An independent check of an answer against its problem: plain arithmetic, nothing shared with the solver.

Read beside coral.md, "Stage 2". A plan is made only from an answer without violations.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator

from schemas.problems import Answer, Problem, Service, Template
from solver.verify_parts import (
    MONEY,
    SHARE,
    Violation,
    close,
    covered,
    key_of,
    key_of_run,
    packs,
    pinned_of,
    prices_of,
    running_of,
    slice_of,
)
from solver.verify_policies import policies
from solver.verify_proof import proof

Rated = Callable[[Service, Template], float | None]
"""What a template gives a service; None where that is not known."""


def verify(problem: Problem, answer: Answer, rated: Rated | None = None) -> tuple[Violation, ...]:
    """All violations of an answer, in a fixed order; empty if it satisfies its problem.

    Args:
        rated: by the library that it was chosen from; without it throughputs are taken on trust.
    """
    checks = (
        _identity, _templates, _pools, _unfit, _capacity, _bought, _slices, _services, _demand, _prices,
        _penalty, proof, policies,
    )  # fmt: skip
    found = tuple(violation for check in checks for violation in check(problem, answer))
    return found if rated is None else (*found, *_ratings(problem, answer, rated))


def _identity(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """It answers this problem, names everything once, and counts in whole things."""
    if answer.problem != problem.id:
        yield Violation("problem", f"answers {answer.problem!r}, asked {problem.id!r}")
    for what, keys in (
        ("chosen", [key_of(c) for c in answer.chosen]),
        ("nodes", [(b.pool.key, b.configuration) for b in answer.nodes]),
        ("unmet", [(u.service.key,) for u in answer.unmet]),
        ("apart", [(a.service.key, a.region, a.variant) for a in answer.apart]),
        ("breaches", [(b.policy, b.subject) for b in answer.breaches]),
    ):
        for key, times in sorted(Counter(keys).items()):
            if times > 1:
                yield Violation("twice", f"{what}: {' '.join(key)} is in {times} entries")
    for count in (*(c.count for c in answer.chosen), *(b.count for b in answer.nodes)):
        if count < 1:
            yield Violation("count", f"{count} instances or nodes, expected at least 1")


def _templates(_: Problem, answer: Answer) -> Iterator[Violation]:
    """A template is what its id says, so that it can be looked up."""
    for t in (chosen.template for chosen in answer.chosen):
        parts = (t.model, t.variant, t.vllm_args, t.phase, t.runtime, t.nodes, t.stages, t.revision)
        if t.id != Template.identity(*parts):
            yield Violation("template", f"{t.id} is not the digest of {t.model} on {', '.join(t.nodes)}")


def _pools(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """Every node of a template can be had in the template's one pool, and is not excluded; where slices lie
    is checked by `_slices`."""
    offered = {(s.pool, s.configuration) for s in problem.stocks}
    for chosen in answer.chosen:
        for name in chosen.template.uses():
            if slice_of(problem, name) is None and (chosen.pool, name) not in offered:
                yield Violation("pool", f"{chosen.template.id}: no {name} in {chosen.pool.key}")
            if name in problem.excluded_configurations:
                yield Violation("excluded", f"{chosen.template.id}: {name} is excluded")


def _unfit(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """Where a place refused a model there is no more of it than runs there, and what may be tried."""
    running = running_of(problem)
    for chosen in answer.chosen:
        for unfit in problem.unfit:
            here = (chosen.template.model, chosen.pool) == (unfit.model, unfit.pool)
            if not here or unfit.configuration not in chosen.template.nodes:
                continue
            allowed = running[key_of(chosen)] + unfit.tries
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
            if slice_of(problem, name) is None:
                used[chosen.pool.key, name] += nodes * chosen.count
    for bought in answer.nodes:
        used[bought.pool.key, bought.configuration] += bought.count
    for stock in problem.stocks:
        taken = used.pop((stock.pool.key, stock.configuration), 0)
        if taken > stock.nodes:
            where = f"{stock.configuration} in {stock.pool.key}"
            yield Violation("capacity", f"{where}: {taken} used, {stock.nodes} there")
    for (pool, name), taken in used.items():
        if taken and any(b.pool.key == pool and b.configuration == name for b in answer.nodes):
            yield Violation("pool", f"{taken} nodes of {name} bought, none sold in {pool}")


def _bought(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """Nodes are bought for slices only, and none that is excluded."""
    for name in (bought.configuration for bought in answer.nodes):
        if slice_of(problem, name) is None:
            yield Violation("slices", f"{name} is bought, but not shared")
        if name in problem.excluded_configurations:
            yield Violation("excluded", f"{name} is bought, and excluded")


def _slices(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """In every pool the slices of all instances lie on the nodes bought there."""
    for pool in sorted({c.pool.key for c in answer.chosen}):
        nodes = {b.configuration: b.count for b in answer.nodes if b.pool.key == pool}
        slices: Counter[str] = Counter()
        for chosen in (c for c in answer.chosen if c.pool.key == pool):
            for name, count in chosen.template.uses().items():
                slices[name] += count * chosen.count
        for kind in problem.sliced:
            if not packs(kind, nodes, slices):
                yield Violation("slices", f"{pool}: nodes bought do not hold the slices of {kind.gpu}")


def _services(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """Only services that were asked for, and one rating for each (service, template)."""
    asked = {d.service.key for d in problem.demands} | {key[0] for key in pinned_of(problem)}
    for pair in problem.policy.disaggregation:
        asked |= {f"{pair.model}/{pair.slo_class}/{phase}" for phase in ("prefill", "decode")}
    for service in sorted({c.service.key for c in answer.chosen} | {u.service.key for u in answer.unmet}):
        if service not in asked:
            yield Violation("service", f"{service} was not asked for")
    rates: dict[tuple[str, str], float] = {}
    for chosen in answer.chosen:
        rate = rates.setdefault((chosen.service.key, chosen.template.id), chosen.rating.throughput)
        if rate != chosen.rating.throughput:
            yield Violation("rating", f"{chosen.template.id}: rated {rate} and {chosen.rating.throughput}")


def _ratings(problem: Problem, answer: Answer, rated: Rated) -> Iterator[Violation]:
    """Templates give what the library says. What runs may have left it since: that goes by the problem's own
    rating of it."""
    runs = {key_of_run(run)[:2]: run.rating.throughput for run in problem.running}
    for chosen in answer.chosen:
        template, given = chosen.template.id, chosen.rating.throughput
        known, where = rated(chosen.service, chosen.template), "the library has"
        if known is None:
            known, where = runs.get(key_of(chosen)[:2]), "not in the library, it runs with"
        if known is None:
            yield Violation("rating", f"{template}: neither in the library nor running")
        elif not close(given, known, MONEY):
            yield Violation("rating", f"{template}: rated {given}, {where} {known}")


def _demand(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """What is served and what is declared unmet add up to each demand; nothing is declared that is served."""
    declared = {u.service.key: u for u in answer.unmet}
    for demand in problem.demands:
        key = demand.service.key
        apart = sum(a.share for a in answer.apart if a.service.key == key)
        served = demand.rate * (covered(problem, answer, demand.service, demand.rate) + apart)
        missing = demand.rate - served
        unmet = declared[key].rate if key in declared else 0.0
        if not missing <= unmet + SHARE * demand.rate:  # also where it is NaN
            yield Violation("demand", f"{key}: {missing} missing, {unmet} declared unmet")
        elif unmet > max(0.0, missing) + SHARE * demand.rate:
            yield Violation("unmet", f"{key}: {unmet} declared unmet, {missing} missing")
        if key in declared and not close(declared[key].share * demand.rate, unmet, SHARE):
            yield Violation("unmet", f"{key}: share {declared[key].share} is not {unmet} of {demand.rate}")


def _prices(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """An instance costs what its nodes cost, by share where they are shared; the bill is the sum of the nodes
    and of the KV caches sent."""
    stocked = {(s.pool.key, s.configuration): s.usd_per_hour for s in problem.stocks}
    total = 0.0
    for chosen in answer.chosen:
        price, nodes = prices_of(problem, chosen.pool), chosen.template.uses().items()
        usd = sum(price.get(name, math.nan) * count for name, count in nodes)
        if not close(usd, chosen.usd_per_hour, MONEY):
            yield Violation("price", f"{chosen.template.id}: {chosen.usd_per_hour}, its nodes cost {usd}")
        own = (price.get(n, math.nan) * count for n, count in nodes if slice_of(problem, n) is None)
        total += sum(own) * chosen.count
    for bought in answer.nodes:
        usd = stocked.get((bought.pool.key, bought.configuration), math.nan)
        if not close(usd, bought.usd_per_hour, MONEY):
            yield Violation("price", f"{bought.configuration}: {bought.usd_per_hour}, expected {usd}")
        total += bought.usd_per_hour * bought.count
    sent = {f"{p.model}/{p.slo_class}/both": p.transfer_usd_per_hour for p in problem.policy.disaggregation}
    total += sum(a.share * sent.get(a.service.key, math.nan) for a in answer.apart)
    if not close(total, answer.usd_per_hour, MONEY):
        yield Violation("price", f"total {answer.usd_per_hour}, instances cost {total}")


def _penalty(problem: Problem, answer: Answer) -> Iterator[Violation]:
    """Instances beyond those running pay K times their price."""
    running = running_of(problem)
    penalty = 0.0
    for chosen in answer.chosen:
        new = max(0, chosen.count - running[key_of(chosen)])
        penalty += new * chosen.usd_per_hour * problem.startup_ratio.get(chosen.template.model, 0.0)
    if not close(penalty, answer.penalty_usd_per_hour, MONEY):
        yield Violation("penalty", f"{answer.penalty_usd_per_hour}, starting instances gives {penalty}")
