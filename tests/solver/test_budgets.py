"""Programs of stock under a budget against the whole integer program.

Above all: no bound is above what can be reached, and no plan costs more than the budget.
"""

from dataclasses import replace

import numpy as np
import pytest

from schemas.allocation import AllocationPolicy
from solver import fewest
from solver.allocation import decide, finish, solve, solve_whole
from solver.board import packs
from solver.bounds import solve as search
from solver.budgets import without_budget
from solver.program import Block, Program, Rows, Solved, Step, Term
from solver.verify import verify
from tests.solver.conftest import WEST, Toolbox
from tests.solver.programs import random_program

SEEDS = (1, 3, 4, 5, 6, 7, 11, 12, 15, 18)
"""Every kind of budget, two to four services, the largest share first and left out; few that are slow."""


def under_budget(program: Program, usd: float, *steps: Step) -> Program:
    """The same with a bill of so much at most."""
    last = len(program.rows.right)

    def limited(block: Block) -> Block:
        surcharge = 0.03 * np.arange(len(program.families[block.family]), dtype=np.float64)
        return replace(block, terms=(Term(last, usd=1.0),), surcharge=surcharge)

    return replace(
        program,
        blocks=tuple(map(limited, program.blocks)),
        rows=Rows((*program.rows.name, "budget"), np.append(program.rows.right, usd)),
        steps=steps or program.steps,
    )


def bill_of(program: Program, solved: Solved) -> float:
    """Of all nodes, without what starting them and policies add."""
    total = 0.0
    for number, row, instances in solved.counts:
        block = program.blocks[number]
        nodes = program.families[block.family].nodes[row]
        total += instances * float(block.price[nodes[nodes >= 0]].sum())
    return total


@pytest.mark.parametrize("seed", SEEDS)
def test_each_step_reaches_the_optimum_and_no_bound_is_above_it(seed: int) -> None:
    """Stock ample and short, budgets from next to nothing to more than is asked for."""
    free = random_program(seed, services=2 + seed % 3, templates=3 + seed % 5)
    usd = (0.1, 0.4, 0.7, 0.95, 1.2)[seed % 5] * bill_of(free, search(free, finish, decide)) + 0.01
    program = under_budget(free, usd, *(("total", "cost") if seed % 4 == 3 else ()))
    whole, found = solve_whole(program), search(program, finish, decide)
    assert [proof.step for proof in found.proofs] == [proof.step for proof in whole.proofs]
    assert len(found.row_price) == len(program.rows.right)
    assert bill_of(program, found) <= usd + 1e-6
    for best, proof in zip(whole.proofs, found.proofs, strict=True):
        slack = 1e-6 + 1e-6 * abs(best.value)
        assert proof.gap <= 1e-3
        assert proof.bound <= best.value + slack
        assert proof.value >= best.value - slack
        if abs(proof.value - best.value) > slack:
            break  # what follows is another question


@pytest.mark.parametrize("most", [4_000, 0])
@pytest.mark.parametrize("seed", [6, 12])
def test_a_search_cut_short_goes_to_the_integer_program_or_says_what_is_open(
    seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fewest, "LOOK", 0)
    monkeypatch.setattr(fewest, "MANY", most)
    free = random_program(seed, services=2 + seed % 3, templates=3 + seed % 5)
    program = under_budget(free, 0.6 * bill_of(free, search(free, finish, decide)), "total", "cost")
    whole, found = solve_whole(program), search(program, finish, decide)
    best, total = whole.proofs[0].value, found.proofs[0]
    assert total.bound <= best + 1e-6
    assert total.value >= best - 1e-6
    assert total.gap <= 1e-3 if most else total.gap > 1e-3


def test_a_budget_is_found_where_nothing_else_couples() -> None:
    free = random_program(1)
    program = under_budget(free, 1.0)
    stock = without_budget(program)
    assert stock is not None
    assert packs(stock)
    assert stock.rows.name == free.rows.name
    assert without_budget(free) is None
    counted = replace(program.blocks[0], terms=(*program.blocks[0].terms, Term(0, instance=1.0)))
    assert without_budget(replace(program, blocks=(counted, *program.blocks[1:]))) is None


@pytest.mark.parametrize("scarcity", ["worst-first", "most-met"])
def test_an_answer_under_a_budget_passes_the_check(box: Toolbox, scarcity: str) -> None:
    rated = [
        box.rated(names, 0.6 * len(names), model) for model in ("m", "n") for names in (["a"], ["a", "b"])
    ]
    library = box.library(*sorted(rated, key=lambda r: r.template.id))
    stocks = [box.stock("a", 4, 1.0), box.stock("b", 2, 0.7), box.stock("a", 3, 1.2, WEST)]
    policy = AllocationPolicy(budget_usd_per_hour=3.5, scarcity=scarcity, surcharge_per_step=0.01)  # type: ignore[arg-type]
    problem = box.problem(library, {"m": 1.5, "n": 1.5}, stocks, ratio={"m": 0.2}, policy=policy)
    told: list[float] = []
    answer = solve(problem, library, better=lambda plan: told.append(plan.usd_per_hour))
    assert verify(problem, answer) == ()
    assert answer.usd_per_hour <= 3.5
    assert max(told) <= 3.5
    assert all("budget" in unmet.binding for unmet in answer.unmet)
