"""Prefill and decode apart against everything there is: two regions, two variants, whole and halves."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import product

import pytest

from schemas.allocation import AllocationPolicy, Disaggregation
from schemas.problems import Pool, Problem
from solver.allocation import solve
from solver.candidates import Rated
from solver.verify import verify
from tests.solver.conftest import EAST, WEST, MadeUp, Toolbox

RATE = 10.0
Option = tuple[Rated, Pool]


def random_pairs(box: Toolbox, seed: int) -> tuple[Problem, MadeUp, list[Option]]:
    rng = random.Random(seed)
    rated = [
        box.rated(["b"], round(rng.uniform(40, 120), 1), phase="prefill", variant=v) for v in ("bf16", "fp8")
    ]
    rated += [
        box.rated(["c"], round(rng.uniform(20, 60), 1), phase="decode", variant=rng.choice(("bf16", "fp8")))
    ]
    if seed % 3:
        rated += [box.rated(["a"], round(rng.uniform(3, 12), 1))]
    library = box.library(*sorted(rated, key=lambda r: r.template.id))
    stocks = [
        box.stock(name, rng.randint(0, 2), round(rng.uniform(1, 5), 2), pool)
        for name in ("a", "b", "c")
        for pool in (EAST, WEST)
    ]
    pair = Disaggregation(
        model="m",
        slo_class="interactive",
        prefill_tokens_per_s=100.0,
        decode_tokens_per_s=50.0,
        transfer_usd_per_hour=rng.choice((0.0, 1.5)),
    )
    half = ("interactive",) if seed % 2 else ()
    policy = AllocationPolicy(disaggregation=(pair,), half_rule=half)
    problem = box.problem(library, {"m": RATE}, stocks, policy=policy)
    return problem, library, [(r, pool) for r in rated for pool in (EAST, WEST)]


def best_of_all(problem: Problem, options: Sequence[Option]) -> tuple[float, float]:
    """(unmet share, cost), by trying every count. What is apart in a place is the least of what its halves
    cover; only as much of it as the whole lacks is sent, and paid for."""
    policy = problem.policy
    (pair,) = policy.disaggregation
    most = 0.5 if policy.half_rule else 1.0
    rates = {"both": RATE, "prefill": pair.prefill_tokens_per_s, "decode": pair.decode_tokens_per_s}
    stock = {(s.pool, s.configuration): s for s in problem.stocks}
    at = [stock[pool, r.template.nodes[0]] for r, pool in options]
    best = (2.0, 0.0)
    for counts in product(*(range(s.nodes + 1) for s in at)):
        used: Counter[tuple[Pool, str]] = Counter()
        covers: Counter[tuple[str, str, str]] = Counter()
        for (rated, pool), count in zip(options, counts, strict=True):
            used[pool, rated.template.nodes[0]] += count
            share = min(most, rated.rating.throughput / rates[rated.template.phase])
            covers[rated.template.phase, pool.region, rated.template.variant] += count * share  # type: ignore[assignment]
        if any(used[key] > s.nodes for key, s in stock.items()):
            continue
        whole = sum(share for (phase, _, _), share in covers.items() if phase == "both")
        apart = sum(
            min(1.0, covers["prefill", region, variant], covers["decode", region, variant])
            for region in ("east", "west")
            for variant in ("bf16", "fp8")
        )
        sent = min(apart, max(0.0, 1 - whole))
        usd = sum(s.usd_per_hour * n for s, n in zip(at, counts, strict=True))
        best = min(best, (round(max(0.0, 1 - whole - sent), 6), usd + sent * pair.transfer_usd_per_hour))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_plans_apart_equal_brute_force(box: Toolbox, seed: int) -> None:
    problem, library, options = random_pairs(box, seed)
    answer = solve(problem, library)
    assert verify(problem, answer) == ()
    unmet, cost = best_of_all(problem, options)
    assert sum(u.share for u in answer.unmet) == pytest.approx(unmet, abs=1e-3)
    if answer.unmet == () or abs(answer.unmet[0].share - unmet) < 1e-6:
        assert answer.usd_per_hour <= cost * 1.001 + 1e-6
        assert answer.bound_usd_per_hour <= cost + 1e-6
