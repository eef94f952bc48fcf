"""The core set-up (coral.md): answers against the plain integer program over all columns, step by step.

`CORAL_BENCH_CORE` says how many snapshots there are, 54 unless it does; some 10 s each, nearly all of it the
plain program's.
"""

import os

import pytest

from schemas.problems import Problem
from solver.allocation import solve_whole
from solver.columns import make_question
from solver.library import Library
from solver.program import Proof
from solver.snapshots import Scale
from tests.bench.allocation_rig import Run, case, fresh_and_again, machine

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

SNAPSHOTS = int(os.environ.get("CORAL_BENCH_CORE", "54"))
SCALES: tuple[Scale, ...] = ("full", "scarce", "x0.15")
GAP = 1e-3
"""What an answer's proof may leave open."""


def test_answers_equal_the_plain_optimum() -> None:
    core = case("core")
    print(f"\n{machine()}; plain: every column, Pyomo and HiGHS to a gap of 1e-6")
    seeds = range(-(-SNAPSHOTS // (2 * len(SCALES))))
    runs = [run for seed in seeds for scale in SCALES for run in fresh_and_again(core, seed, scale)]
    worst = max(compare(run, core.library) for run in runs)
    print(f"{len(runs)} snapshots: above the plain optimum by {worst:.1e} at most, relative or share")


def compare(run: Run, library: Library) -> float:
    """How far the worst step is above what the plain program reaches."""
    best = {proof.step: proof for proof in plain(run.problem, library)}
    over = 0.0
    for step in run.answer.steps:
        other = best[step.minimised]
        scale = max(other.value, 1e-9) if step.minimised == "cost" else 1.0
        over = max(over, (step.value - other.value) / scale)
        assert (step.bound - other.value) / scale <= GAP  # earlier steps leave as much to later ones
        assert step.gap <= GAP
    first = run.answer.steps[0]
    assert first.bound <= best[first.minimised].value * (1 + 1e-6) + 1e-6
    assert over <= GAP
    return over


def plain(problem: Problem, library: Library) -> tuple[Proof, ...]:
    return solve_whole(make_question(problem, library).program).proofs
