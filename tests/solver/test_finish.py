"""The integer program over some columns: cutoffs, promises of earlier steps, and what is left open."""

import math
from typing import Any

import numpy as np
import pytest

from solver.allocation import finish, solve_whole
from solver.columns import make_question
from solver.picking import pick, pick_all
from solver.program import Ends, Program
from tests.solver.programs import paper_program


@pytest.fixture
def program(box: Any) -> Program:
    """Two templates for 10 requests/s: one a at 1 USD gives 2, two b at 3 USD give 7; stock for all of it."""
    library = box.library(box.rated(["a"], 2.0), box.rated(["b", "b"], 7.0))
    stocks = [box.stock("a", 4, 1.0), box.stock("b", 4, 1.5)]
    return make_question(box.problem(library, {"m": 10.0}, stocks, ratio={"m": 0.5}), library).program


def test_the_best_is_found_and_proven(program: Program) -> None:
    found = finish(program, pick_all(program), "cost", Ends(0.0, 0.0))
    assert found is not None
    assert found.value == pytest.approx(7.5)  # two a and one b, half as much again to start them
    assert found.bound == pytest.approx(7.5)


def test_nothing_below_a_cutoff_is_none(program: Program) -> None:
    columns = pick_all(program)
    assert finish(program, columns, "cost", Ends(0.0, 0.0), 7.4) is None
    below = finish(program, columns, "cost", Ends(0.0, 0.0), 7.6)
    assert below is not None
    assert below.value == pytest.approx(7.5)


def test_too_few_columns_leave_demand_unmet(program: Program) -> None:
    (a,) = (f for f, family in enumerate(program.families) if family.cover[0] == 0.2)
    only = pick(program, [0], [a])
    assert finish(program, only, "cost", Ends(0.0, 0.0)) is None
    worst = finish(program, only, "worst", Ends())
    assert worst is not None
    assert worst.value == pytest.approx(0.2)
    assert worst.counts.tolist() == [4]


def test_later_steps_keep_what_earlier_ones_reached(box: Any) -> None:
    library = box.library(box.rated(["a"], 1.0, "m"), box.rated(["a"], 1.0, "n"))
    problem = box.problem(library, {"m": 4.0, "n": 8.0}, [box.stock("a", 6, 1.0)])
    program = make_question(problem, library).program
    solved = solve_whole(program)
    assert [proof.step for proof in solved.proofs] == ["worst", "total", "cost"]
    assert solved.unmet.tolist() == [0.5, 0.5]
    assert all(proof.gap <= 1e-6 for proof in solved.proofs)


def test_where_the_work_limit_ends_the_search_the_bound_is_left(program: Program) -> None:
    found = finish(program, pick_all(program), "cost", Ends(0.0, 0.0), node_limit=0)
    assert found is not None
    assert found.bound <= 7.5 + 1e-6
    if math.isinf(found.value):
        assert not np.any(found.counts)


def test_an_answer_that_highs_itself_refuses_is_looked_for_again() -> None:
    """Of this program it says that its optimum breaks a row by more than its tolerance, by the last digit."""
    program = paper_program(
        uses=[[[1, 0]], [[0, 1], [1, 1], [1, 2], [1, 1]]],
        cover=[[0.34], [0.25, 0.5, 1.0, 0.25]],
        price=[[1.0, 1.0]],
        stock=[[2, 2]],
        weight=[7.051714772918896, 32.89854172420423],
    )
    found = finish(program, pick_all(program), "worst", Ends())
    assert found is not None
    assert found.value == pytest.approx(7.05171477 * 0.66)
