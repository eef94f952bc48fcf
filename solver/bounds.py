"""The allocation's answer with its proof (solver.md, "Stage 2"): which search a program is for.

One whose rows are only drawn on (stock) goes the fast way, step by step of the order (`solver.stock_steps`);
so does one that a budget limits beside (`solver.budgets`). Any other (nodes bought to be sliced, policies
that couple) goes by the relaxation's own bound, reduced costs and an integer program over what they leave
(`solver.coupled`).
"""

from collections.abc import Callable
from dataclasses import replace

from solver.board import packs
from solver.budgets import BudgetSteps, without_budget
from solver.choice import Decide
from solver.coupled import solve_coupled
from solver.program import Better, Finish, Program, Solved
from solver.stock_steps import GAP, StockSteps

__all__ = ["GAP", "solve"]


def solve(
    program: Program,
    finish: Finish,
    decide: Decide,
    clock: Callable[[], float] | None = None,
    better: Better | None = None,
) -> Solved:
    """The best plan found and what is proven of it; without proofs if no plan was found.

    Args:
        finish: the integer program over some columns (`solver.allocation.finish`).
        decide: the integer program over plans (`solver.allocation.decide`).
        clock: seconds, to time the parts of the search with.
        better: is told of plans on the way.
    """
    steps: StockSteps
    if packs(program):
        steps = StockSteps(program, finish, decide, clock)
    elif (stock := without_budget(program)) is not None:
        steps = BudgetSteps(program, stock, finish, decide, clock)
    else:
        return solve_coupled(program, finish, better)
    steps.better = better
    solved = steps.met() or steps.short()
    return replace(solved, seconds=steps.seconds)
