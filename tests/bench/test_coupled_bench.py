"""Programs that couple by more than stock at a fleet's scale: gap of every step and processor seconds.

Paper rows have their own bench (`test_allocation_bench`); of these the issue asks to print the gap reached.
`BENCH_COUPLED` names the fleets, all if it is not set; `BENCH_SEEDS` how many seeds, 1 if not.
"""

import os
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from schemas.problems import Answer, Problem
from solver.allocation import NoAnswerError, solve
from solver.library import Library
from solver.verify import verify
from tests.bench.allocation_rig import machine, peak_gb
from tests.bench.coupled_rig import ASKS, FACTORS, FLEETS, Ask, Case, Fleet, case, later, question

pytestmark = pytest.mark.bench

ASKED_FLEETS: list[str] = os.environ.get("BENCH_COUPLED", ",".join(FLEETS)).split(",")
SEEDS = range(int(os.environ.get("BENCH_SEEDS", "1")))


class Run(NamedTuple):
    """One solve; no answer where none was found."""

    problem: Problem
    answer: Answer | None
    cpu_s: float
    wall_s: float

    @property
    def gap(self) -> float:
        """The largest of all steps."""
        return 1.0 if self.answer is None else max(step.gap for step in self.answer.steps)


@pytest.mark.parametrize("fleet", [fleet for fleet in FLEETS if fleet in ASKED_FLEETS])
def test_coupled(fleet: Fleet) -> None:
    made = case(fleet)
    templates = sum(map(len, made.library.arrays))
    print(f"\n{machine()}; one thread; {fleet}: {templates:,} templates")
    for ask in ("plain", "spread", "budget"):  # the first solves load HiGHS, and compile
        timed(question(made, ask, "scarce", 99, bill=100.0), made.library)
    runs = [
        run
        for seed in SEEDS
        for scale in FACTORS
        for ask in ASKS
        for run in fresh_and_later(made, ask, scale, seed)
    ]
    cpus, gaps = [run.cpu_s for run in runs], [run.gap for run in runs]
    print(
        f"{fleet}: {len(runs)} solves"
        f" | processor median {statistics.median(cpus):.2f} worst {max(cpus):.2f} s"
        f" | gap median {statistics.median(gaps):.1e} worst {max(gaps):.1e},"
        f" {sum(g > 1e-3 for g in gaps)} above 0.1%, {sum(g > 1e-2 for g in gaps)} above 1%"
        f" | peak memory {peak_gb():.2f} GB"
    )
    assert all(run.answer is not None for run in runs)


def fresh_and_later(made: Case, ask: Ask, scale: str, seed: int) -> Iterator[Run]:
    """A moment at which nothing runs, and the next one."""
    bill = None
    if ask in ("budget", "all"):
        without = timed(question(made, "plain" if ask == "budget" else "spot", scale, seed), made.library)
        bill = without.answer.usd_per_hour if without.answer else None
    fresh = timed(question(made, ask, scale, seed, bill), made.library)
    yield told(fresh)
    if fresh.answer is not None:
        again = later(fresh.problem, fresh.answer, seed, pinned=ask in ("pinned", "all"))
        yield told(timed(again, made.library))


def timed(problem: Problem, library: Library) -> Run:
    """Solve and check; seconds are from the question to the answer, not of the check."""
    wall, cpu = time.perf_counter(), time.process_time()
    answer: Answer | None
    try:
        answer = solve(problem, library)
    except NoAnswerError:
        answer = None
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert answer is None or verify(problem, answer) == ()
    return Run(problem, answer, cpu, wall)


def told(run: Run) -> Run:
    """Print a line of it."""
    if run.answer is None:
        print(f"{run.problem.id:<36} no plan found, processor {run.cpu_s:.2f} s", flush=True)
        return run
    steps = ", ".join(f"{s.minimised} {s.value:.4g} gap {s.gap:.1e}" for s in run.answer.steps)
    print(
        f"{run.problem.id:<36} {run.answer.columns:>9,} columns | processor {run.cpu_s:6.2f} "
        f"wall {run.wall_s:6.2f} s | {steps}",
        flush=True,
    )
    return run
