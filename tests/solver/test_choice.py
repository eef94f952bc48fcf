"""A plan for each service: the search, and the program in Pyomo, against all choices."""

import itertools

import numpy as np
import pytest

from solver.allocation import decide
from solver.choice import Limits, Plans, choose
from solver.program import Floats, Ints

SEEDS = range(24)


def made(seed: int, services: int = 3) -> tuple[Plans, Ints, Floats, float]:
    """Plans with slacks that follow from prices of rows; the stock, these prices, and their bound."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 8, services)
    begin = np.append(0, np.cumsum(sizes))
    use = rng.integers(0, 3, (begin[-1], 4))
    price = rng.uniform(0, 1, 4)
    objective = rng.uniform(1, 4, begin[-1])
    unmet = rng.choice([0.0, 0.1, 0.3], begin[-1])
    right = rng.integers(1, 5, 4)
    worth = objective + use @ price
    low = np.array([worth[a:b].min() for a, b in itertools.pairwise(begin)])
    slack = worth - np.repeat(low, sizes)
    order = np.concatenate([a + np.argsort(slack[a:b]) for a, b in itertools.pairwise(begin)])
    plans = Plans(use[order], slack[order], objective[order], unmet[order], begin)
    return plans, right, price, float(low.sum() - price @ right)


def best_of(plans: Plans, right: Ints, total: float) -> float:
    """By trying every choice."""
    ranges = [range(a, b) for a, b in itertools.pairwise(plans.begin.tolist())]
    return min(
        (
            float(plans.objective[list(chosen)].sum())
            for chosen in itertools.product(*ranges)
            if (plans.use[list(chosen)].sum(axis=0) <= right).all()
            and plans.unmet[list(chosen)].sum() <= total + 1e-12
        ),
        default=np.inf,
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("total", [np.inf, 0.4])
def test_the_best_choice_is_found(seed: int, total: float) -> None:
    plans, right, _, low = made(seed)
    best, chosen = best_of(plans, right, total), np.full(3, -1, np.int64)
    value, left = choose(plans, right, low, np.inf, Limits(total), chosen)
    assert left > 0
    assert value == pytest.approx(best)
    found = decide(plans, right, total, np.inf)
    assert found.value == pytest.approx(best)
    assert found.bound <= best + 1e-6
    if np.isfinite(best):
        for taken in (chosen, found.chosen):
            assert plans.objective[taken].sum() == pytest.approx(best)
            assert (plans.use[taken].sum(axis=0) <= right).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_found_at_or_above_a_cutoff(seed: int) -> None:
    plans, right, _, low = made(seed)
    best, chosen = best_of(plans, right, np.inf), np.full(3, -1, np.int64)
    if not np.isfinite(best):
        return
    for cutoff in (best - 1e-6, best + 1e-6):
        value, left = choose(plans, right, low, cutoff, Limits(), chosen)
        assert left > 0
        assert np.isfinite(value) == (cutoff > best)
    below = decide(plans, right, np.inf, best * 0.99)
    assert below.bound >= best * 0.99 - 1e-6
    assert not below.value < best - 1e-6


@pytest.mark.parametrize("seed", SEEDS)
def test_a_search_that_is_cut_short_says_so(seed: int) -> None:
    plans, right, _, low = made(seed, services=5)
    value, left = choose(plans, right, low, np.inf, Limits(work=3), np.full(5, -1, np.int64))
    best = best_of(plans, right, np.inf)
    assert value >= best - 1e-9
    assert left == 0 or value == pytest.approx(best)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_choice_will_do(seed: int) -> None:
    plans, right, _, low = made(seed)
    if not np.isfinite(best_of(plans, right, np.inf)):
        return
    chosen = np.full(3, -1, np.int64)
    value, left = choose(plans, right, low, np.inf, Limits(first=True), chosen)
    assert left > 0
    assert value == pytest.approx(plans.objective[chosen].sum())
    assert value >= best_of(plans, right, np.inf) - 1e-9
