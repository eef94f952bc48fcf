"""What a plan is short of weighs in the search, but is in no cost that is told, nor in what a gap is of."""

from typing import Any

import numpy as np
import pytest

from schemas.allocation import AllocationPolicy, Replicas
from schemas.problems import Answer
from solver import allocation, modelling
from solver.allocation import finish, solve
from solver.columns import make_question
from solver.explain_plan import change, outcome_of
from solver.picking import pick_all
from solver.program import Ends, Proof
from solver.verify import verify
from tests.solver.conftest import WEST, Toolbox


def answer(box: Toolbox, **policy: object) -> Answer:
    """Ten nodes in each of two regions, of which the west is dearer, and what runs there."""
    a, b = box.rated(["a"], 1.0), box.rated(["b"], 1.0)
    library = box.library(*sorted([a, b], key=lambda r: r.template.id))
    stocks = [box.stock("a", 10, 1.0), box.stock("b", 10, 0.9), box.stock("a", 10, 2.0, WEST)]
    running = [box.running(a, 2), box.running(a, 1, WEST)]
    asked = AllocationPolicy.model_validate(policy)
    problem = box.problem(library, {"m": 3.0}, stocks, running=running, policy=asked)
    found = solve(problem, library)
    assert verify(problem, found) == ()
    return found


def test_a_gap_is_relative_to_what_is_paid() -> None:
    assert Proof("cost", 10_033.0, 10_030.0, aside=10_003.0).gap == pytest.approx(0.1)
    assert Proof("cost", 10_033.0, 9_000.0, aside=10_003.0).gap == 1.0
    assert Proof("worst", 0.5, 0.4).gap == pytest.approx(0.1)


@pytest.mark.parametrize("most", [7, 1_000_000])
def test_more_regions_than_there_are_cost_what_all_of_them_do(box: Toolbox, most: int) -> None:
    all_, more = (answer(box, regions_at_least={"m": regions}) for regions in (2, most))
    assert (more.chosen, more.value, more.gap) == (all_.chosen, all_.value, all_.gap)
    assert (more.value, more.bound_usd_per_hour) == pytest.approx((3.8, 3.8))
    assert [(b.asked, b.got) for b in more.breaches] == [(most, 2)]


def test_more_replicas_than_there_is_stock_for_cost_their_nodes(box: Toolbox) -> None:
    found = answer(box, replicas=(Replicas(model="m", at_least=100_000_000),))
    assert (found.value, found.gap) == pytest.approx((39.0, 0.0))
    assert [(b.asked, b.got) for b in found.breaches] == [(100_000_000, 30)]


def test_what_runs_moves_for_a_share_of_what_is_paid(box: Toolbox) -> None:
    """4.0 is what runs, 3.8 the least: 5%, and next to nothing of a cost with breaches in it."""
    moved, kept = (answer(box, regions_at_least={"m": 7}, minimum_saving=s) for s in (0.04, 0.06))
    assert not moved.kept
    assert moved.value == pytest.approx(3.8)
    assert kept.kept
    assert (kept.value, kept.gap) == pytest.approx((4.0, 0.05))


def test_highs_goes_on_to_a_share_of_what_is_paid(box: Toolbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances take two nodes, so one of the two that three nodes might give is missing."""
    library = box.library(box.rated(["a", "a"], 1.0))
    policy = AllocationPolicy(replicas=(Replicas(model="m", at_least=2),))
    problem = box.problem(library, {"m": 1.0}, [box.stock("a", 3, 1.0)], policy=policy)
    program = make_question(problem, library).program
    run, asked = modelling.minimise, []

    def stopping_early(*args: Any, **more: Any) -> Any:
        """As relative gaps have it: 1 of 1,002 is left open."""
        results = run(*args, **more)
        asked.append(more.get("absolute", 0.0))
        if len(asked) == 1:
            results.objective_bound -= 1.0
        return results

    monkeypatch.setattr(allocation, "minimise", stopping_early)
    found = finish(program, pick_all(program), "cost", Ends(0.0, 0.0), gap=1e-3)
    assert found is not None
    assert (found.value, found.bound) == pytest.approx((1002.0, 1002.0))
    assert asked == pytest.approx([0.0, 2e-3])
    assert not np.any(found.extras > 1)


def test_a_neighbour_that_is_short_of_more_is_no_better(box: Toolbox) -> None:
    """Though it is cheaper: breaches come back at their weight where plans are compared."""
    library = box.library(box.rated(["a"], 1.0))
    policy = AllocationPolicy(regions_at_least={"m": 2})
    outcomes = []
    for west in (1, 0):
        stocks = [box.stock("a", 9, 1.0), box.stock("a", west, 2.0, WEST)]
        problem = box.problem(library, {"m": 2.0}, stocks, policy=policy)
        outcomes.append(outcome_of(problem, solve(problem, library)))
    assert [outcome.usd_per_hour for outcome in outcomes] == [3.0, 2.0]
    by = change(outcomes[0], outcomes[1])
    assert by is not None
    assert (by.found, by.at_least) == pytest.approx((999.0, 999.0))
