"""Cuts: a bound that no choice is below, slacks that say no more than is true, no plan that is missed."""

import itertools

import numpy as np
import pytest

from solver.choice import Plans
from solver.cuts import nearest, tighten
from solver.program import Ints
from tests.solver.test_choice import best_of, made

SEEDS = range(24)


def choices(plans: Plans, right: Ints, total: float) -> list[list[int]]:
    ranges = [range(a, b) for a, b in itertools.pairwise(plans.begin.tolist())]
    return [
        list(chosen)
        for chosen in itertools.product(*ranges)
        if (plans.use[list(chosen)].sum(axis=0) <= right).all()
        and plans.unmet[list(chosen)].sum() <= total + 1e-12
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("total", [np.inf, 0.4])
@pytest.mark.parametrize("enough", [0.2, 1.0])
def test_no_choice_below_the_cutoff_is_lost_or_undersold(seed: int, total: float, enough: float) -> None:
    plans, right, _, low = made(seed)
    best = best_of(plans, right, total)
    cutoff = best + 1.0 if np.isfinite(best) else 1e3
    tight = tighten(plans, right, total, cutoff - 1.0 + enough, cutoff)
    assert tight.bound <= best + 1e-9
    slack = np.full(len(plans.slack), np.inf)
    slack[tight.at] = tight.plans.slack
    assert (slack >= 0).all()
    for chosen in choices(plans, right, total):
        objective = plans.objective[chosen].sum()
        assert objective >= cutoff - 1e-9 or tight.bound + slack[chosen].sum() <= objective + 1e-9
    for s, (a, b) in enumerate(itertools.pairwise(tight.plans.begin.tolist())):
        assert (np.diff(tight.plans.slack[a:b]) >= 0).all()
        assert ((tight.at[a:b] >= plans.begin[s]) & (tight.at[a:b] < plans.begin[s + 1])).all()
    assert tight.bound >= low - 1e-6 or not len(tight.at)


def test_three_plans_of_which_any_two_need_the_same_node() -> None:
    """The relaxation takes a half of each; one cut says that only one is to be had."""
    use = np.array([[1, 1, 0], [0, 0, 0], [0, 1, 1], [0, 0, 0], [1, 0, 1], [0, 0, 0]])
    objective = np.array([1.0, 2.0, 1.0, 2.0, 1.0, 2.0])
    slack = np.array([0.0, 1.0] * 3)
    plans = Plans(use, slack, objective, np.zeros(6), np.array([0, 2, 4, 6]))
    tight = tighten(plans, np.ones(3, np.int64), np.inf, 10.0, 10.0)
    assert tight.bound == pytest.approx(5.0)  # 4.5 without


def test_a_service_without_plans_has_no_choice() -> None:
    plans = Plans(np.ones((1, 1), np.int64), np.zeros(1), np.ones(1), np.zeros(1), np.array([0, 1, 1]))
    assert tighten(plans, np.ones(1, np.int64), np.inf, 10.0, 10.0).bound == np.inf


@pytest.mark.parametrize("seed", SEEDS)
def test_a_choice_with_a_plan_that_is_not_among_the_nearest_is_no_less_than_told(seed: int) -> None:
    plans, right, _, _ = made(seed)
    tight = tighten(plans, right, np.inf, 1e3, 1e3)
    few, least = nearest(tight, 5)
    assert len(few.at) <= 5
    assert np.isin(few.at, tight.at).all()
    for chosen in choices(plans, right, np.inf):
        if not np.isin(chosen, few.at).all():
            assert plans.objective[chosen].sum() >= least - 1e-9
