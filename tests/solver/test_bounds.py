"""The search against the whole integer program and plain arithmetic, on small programs.

Above all: no bound is ever above what can be reached, at no price and at no place of the search.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from solver import worst
from solver.allocation import decide, finish, solve_whole
from solver.board import make_board, packs
from solver.bounds import GAP, solve
from solver.column_lp import relax
from solver.existing import existing
from solver.knapsacks import Ask
from solver.picking import pick_all
from solver.pricing import Asked, Effort, Prices, Pricing, free_prices
from solver.program import Ints, Program, Special, Term
from tests.solver.programs import paper_program, random_program

SEEDS = range(16)


def sized(seed: int) -> Program:
    return random_program(seed, services=2 + seed % 3, templates=4 + seed % 9)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_step_reaches_the_optimum_and_no_bound_is_above_it(seed: int) -> None:
    program = sized(seed)
    whole, found = solve_whole(program), solve(program, finish, decide)
    assert [p.step for p in found.proofs] == [p.step for p in whole.proofs]
    for best, proof in zip(whole.proofs, found.proofs, strict=True):
        slack = 1e-6 + 1e-6 * abs(best.value)
        near = GAP * (best.value if proof.step == "cost" else 1.0)
        assert proof.bound <= best.value + slack
        assert best.value - slack - near <= proof.value <= best.value + near + slack
        if abs(proof.value - best.value) > slack:
            break  # what follows is another question


def test_the_same_question_has_the_same_answer() -> None:
    first, again = (solve(sized(8), finish, decide) for _ in range(2))
    assert (first.counts, first.proofs, first.nodes) == (again.counts, again.proofs, again.nodes)


def test_what_runs_is_kept_where_starting_costs_more_than_it_saves() -> None:
    program = paper_program(
        uses=[[[1, 0], [0, 1]]], cover=[[1.0, 1.0]], price=[[1.0, 1.1]], stock=[[1, 1]], ratio=0.5
    )
    assert solve(program, finish, decide).counts[0].row == 0
    running = replace(program, specials=(Special(0, 1, running=1),))
    solved = solve(running, finish, decide)
    assert (solved.counts[0].row, solved.penalty) == (1, 0.0)
    assert solved.value == pytest.approx(1.1)


def test_a_running_instance_is_cheaper_only_once() -> None:
    program = paper_program([[[1]]], [[0.5]], [[2.0]], [[3]], [Special(0, 0, running=1)], ratio=0.25)
    solved = solve(program, finish, decide)
    assert solved.cost == pytest.approx(4.0)
    assert solved.penalty == pytest.approx(0.5)
    assert solved.bound == pytest.approx(4.5, rel=GAP)


def test_without_any_stock_all_is_unmet() -> None:
    solved = solve(paper_program([[[1]]], [[1.0]], [[1.0]], [[0]]), finish, decide)
    assert (solved.counts, solved.unmet.tolist(), solved.proofs[0].value) == ((), [1.0], 1.0)


def test_a_program_that_couples_goes_by_the_relaxation() -> None:
    program = paper_program([[[1, 0], [0, 1]]], [[0.5, 0.5]], [[1.0, 3.0]], [[4, 4]])
    at_most_one = Term(row=0, instance=1.0)
    blocks = (replace(program.blocks[0], draws=program.blocks[0].draws[1:], terms=(at_most_one,)),)
    coupled = replace(program, blocks=blocks)
    coupled.rows.right[0] = 1.0
    assert not packs(coupled)
    assert solve(coupled, finish, decide).proofs == solve_whole(coupled).proofs


@pytest.mark.parametrize("seed", SEEDS)
def test_columns_that_exist_are_those_that_one_instance_of_fits(seed: int) -> None:
    program = sized(seed)
    every, columns = pick_all(program), existing(program)
    fits = every.limit > 0
    assert columns.block.tolist() == every.block[fits].tolist()
    assert columns.row.tolist() == every.row[fits].tolist()
    np.testing.assert_allclose(columns.cost, (every.price + every.start)[fits])


@pytest.mark.parametrize("seed", SEEDS)
def test_column_generation_reaches_the_relaxation_over_all_columns(seed: int) -> None:
    program = replace(sized(seed), specials=())
    columns, services = existing(program), len(program.services)
    if not len(columns):
        return
    dear, every = np.full(services, 50.0), pick_all(program)
    rows = np.zeros((len(program.rows.right) + services, len(every) + services))
    rows[every.term_row, every.term_column] = every.term_amount
    rows[len(program.rows.right) + every.service, np.arange(len(every))] = -every.cover
    rows[len(program.rows.right) :, len(every) :] = -np.eye(services)
    whole = linprog(
        np.append(every.price + every.start, dear),
        A_ub=rows,
        b_ub=np.append(program.rows.right, -np.ones(services)),
        bounds=[(0, n) for n in every.limit] + [(0, 1)] * services,
    )
    relaxed = relax(columns, columns.cost, dear, np.ones(services))
    assert relaxed.whole
    assert relaxed.value == pytest.approx(whole.fun, rel=1e-6)


@pytest.mark.parametrize("dear", [20.0, 2e3, 1e6])
def test_stock_may_leave_a_service_plans_that_cost_any_more_than_its_cheapest_columns(dear: float) -> None:
    """One that cost a thousand times as much was taken for none, and its question for settled."""
    program = paper_program([[[1, 0], [0, 1]]], [[0.5, 1.0]], [[0.001, dear]], [[1, 1]])
    board, none = make_board(program), np.zeros(1)
    everything = Pricing(board, Asked(Ask(np.ones(1), none, none), program.weight), Effort())
    assert 0.0 < everything.look(free_prices(1, 2)).bound <= dear + 1e-9
    leaving = Ask(np.ones(1), np.ones(1), np.full(1, dear))
    some = Pricing(board, Asked(leaving, program.weight), Effort())
    assert some.look(free_prices(1, 2)).bound <= 0.001 + 0.5 * dear + 1e-9


@pytest.mark.parametrize("seed", [50, 56])
def test_a_share_that_cannot_be_had_is_a_bound_whatever_was_not_settled_below(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = random_program(seed, services=2 + seed % 3, templates=4 + seed % 9)
    plan, asked = worst._Shares.plan, list[float]()

    def not_settled_at_first(shares: worst._Shares, share: float, prices: Prices) -> tuple[Ints | None, bool]:
        asked.append(share)
        return (None, False) if len(asked) == 1 else plan(shares, share, prices)

    monkeypatch.setattr(worst._Shares, "plan", not_settled_at_first)
    first, best = solve(program, finish, decide).proofs[0], solve_whole(program).proofs[0]
    assert first.step == best.step == "worst"
    assert best.value - GAP <= first.bound <= best.value + 1e-6
