"""The core set-up (coral.md): answers against the plain integer program over all columns, step by step.

Some seconds a snapshot, nearly all of it the plain program's.
"""

import pytest

from schemas.problems import Problem
from solver.allocation import solve_whole
from solver.columns import make_question
from solver.library import Library
from solver.program import Proof
from solver.scarcity import Scale
from tests.bench.allocation_rig import Run, case, fresh_and_again, machine

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

SEEDS = range(9)
"""Each with all scales, fresh and again."""
SCALES: tuple[Scale, ...] = ("full", "scarce", "x0.15")
GAP = 1e-3
"""What an answer's proof may leave open."""


def test_answers_equal_the_plain_optimum() -> None:
    core = case("core")
    print(f"\n{machine()}; plain: every column, Pyomo and HiGHS to a gap of 1e-6")
    runs = [run for seed in SEEDS for scale in SCALES for run in fresh_and_again(core, seed, scale)]
    worst = max(compare(run, core.library) for run in runs)
    print(f"{len(runs)} snapshots: above the plain optimum by {worst:.1e} at most, relative or share")


def compare(run: Run, library: Library) -> float:
    """How far the first step that is not the plain program's is above it; no bound is above its value."""
    best = {proof.step: proof.value for proof in plain(run.problem, library)}
    assert {step.minimised for step in run.answer.steps} == set(best)
    assert all(step.gap <= GAP for step in run.answer.steps)
    for step in run.answer.steps:
        other = best[step.minimised]
        scale = max(other, 1e-9) if step.minimised == "cost" else 1.0
        over = (step.value - other) / scale
        assert step.bound <= other + 1e-6 * scale
        assert over <= GAP
        if over > 1e-6:
            return over  # what one step leaves open, later ones take another way from
    return 0.0


def plain(problem: Problem, library: Library) -> tuple[Proof, ...]:
    return solve_whole(make_question(problem, library).program).proofs
