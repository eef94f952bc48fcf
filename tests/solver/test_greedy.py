"""A plan at once: it fits, and there is one where a search has come to nothing yet, or to little."""

import numpy as np
import pytest

from solver import rounds
from solver.allocation import decide, finish, solve_whole
from solver.board import make_board
from solver.bounds import solve
from solver.greedy import greedy_plan
from solver.program import Special
from tests.solver.programs import paper_program, random_program


@pytest.mark.parametrize("seed", range(20))
def test_it_keeps_to_the_stock_and_leaves_nothing_that_fits_where_something_is_missing(seed: int) -> None:
    program = random_program(seed)
    board = make_board(program)
    plan, columns, services = greedy_plan(board, program.weight), board.columns, len(program.services)
    places = [np.flatnonzero(board.at == column)[0] for column in plan.tolist()]
    used = np.bincount(board.items.use[places].ravel(), minlength=len(board.right) + 1)[:-1]
    assert (used <= board.right).all()
    lacks = 1.0 - np.bincount(columns.service[plan], columns.cover[plan], services)
    for item in range(len(board)):
        more = np.bincount(board.items.use[item], minlength=len(board.right) + 1)[:-1]
        if lacks[columns.service[board.at[item]]] > 1e-6 and board.items.most[item] > 1:
            assert (used + more > board.right).any()


def test_a_demand_beyond_all_measure_takes_nothing_from_the_others() -> None:
    """Ten million times what an instance gives: no step of a grid, and no proof, sees so little of it."""
    program = paper_program(
        uses=[[[1]], [[1]]], cover=[[1e-7], [0.5]], price=[[1.0]], stock=[[5]], weight=[1.0, 1.0]
    )
    solved = solve(program, finish, decide)
    assert solved.unmet == pytest.approx([1.0, 0.0], abs=1e-5)


def test_more_that_runs_than_there_is_stock_for_is_no_more_work() -> None:
    program = paper_program(
        uses=[[[1]]], cover=[[0.2]], price=[[1.0]], stock=[[9]], specials=[Special(0, 0, 10**12)], ratio=0.5
    )
    assert len(make_board(program)) == 10
    solved = solve(program, finish, decide)
    assert (solved.cost, solved.penalty) == (5.0, 0.0)


@pytest.mark.parametrize("seed", range(30))
def test_a_bound_holds_where_prices_are_climbed_to_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "CLIMBS", 1)
    monkeypatch.setattr(rounds, "SMALL", 2)
    monkeypatch.setattr(rounds, "NEAR", 1e-3)
    program = random_program(seed, services=3)
    best = {proof.step: proof.value for proof in solve_whole(program).proofs}
    for proof in solve(program, finish, decide).proofs:
        assert proof.bound <= best[proof.step] + 1e-6
        if proof.value > best[proof.step] + 1e-6:
            break  # later steps take another way from here


def test_a_service_that_only_what_runs_could_serve_and_cannot_is_no_puzzle() -> None:
    """Nothing new of it may start, and what runs covers a part."""
    program = paper_program(
        uses=[[[1, 0]], [[0, 1]]],
        cover=[[0.3], [0.6]],
        price=[[1.0, 1.0]],
        stock=[[4, 4]],
        specials=[Special(0, 0, running=1, limit=1)],
    )
    solved = solve(program, finish, decide)
    assert solved.unmet == pytest.approx([0.7, 0.0])
