"""Snapshots of the paper's set-ups, and what a solve of one took."""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from agents.traces import SHIPPED_TRACES, StepTrace, read_steps
from schemas.base import digest
from schemas.catalog import PAPER_CATALOG, load_catalog
from schemas.performance import load_efficiencies
from schemas.problems import Answer, Problem
from solver.answers import METHOD
from solver.figures import Figures
from solver.library import Library
from solver.library_file import load_library
from solver.methods import method
from solver.scarcity import Scale
from solver.setups import Setup, paper_setup
from solver.snapshots import later, snapshot
from solver.verify import verify

CACHE = Path(__file__).parents[2] / ".cache" / "bench"
PLAIN_LIMIT_S = 60.0
OVERRUN_S = 60.0
"""The plain program is killed so long after its limit."""
HEAD = (
    "| snapshots | solves | wall, median | worst | processor, median | worst | gap, at most | short | "
    "instances |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)
"""Of the table whose rows `said` makes; the pages show it as it is printed."""


class Case(NamedTuple):
    """A set-up with its library and the shape of its stock."""

    setup: Setup
    library: Library
    file: Path
    trace: StepTrace

    def snapshot(self, seed: int, scale: Scale) -> Problem:
        return snapshot(self.setup, self.library, self.trace, seed, scale)


class Run(NamedTuple):
    """One solve."""

    problem: Problem
    answer: Answer
    wall_s: float
    cpu_s: float


class Plain(NamedTuple):
    """What the plain integer program reached; None where it found nothing in time."""

    value: float | None
    """USD per hour, and what unmet demand is priced at."""
    bound: float | None
    unmet: float | None
    """All shares together."""
    seconds: float
    columns: int

    @property
    def gap(self) -> float | None:
        if self.value is None or self.bound is None:
            return None
        return (self.value - self.bound) / self.value if self.value else 0.0


def case(name: str) -> Case:
    """A paper's set-up, its library built in another process, whose memory is not ours."""
    CACHE.mkdir(parents=True, exist_ok=True)
    file = CACHE / f"{name}.templates"
    coral = str(Path(sys.executable).with_name("coral"))
    command = [coral, "templates", "build", "--setup", name, "--cores", "1", "-o", str(file), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    catalog = load_catalog(PAPER_CATALOG)
    library = load_library(file, Figures(catalog, load_efficiencies(), None))
    trace = read_steps(SHIPPED_TRACES / "bamboo_2020_g4dn.csv.gz")
    return Case(paper_setup(name, catalog), library, file, trace)


def timed(problem: Problem, library: Library) -> Run:
    """Solve and check; seconds include the model's build, not the check."""
    wall, cpu = time.perf_counter(), time.process_time()
    answer = method(METHOD)(problem, library, clock=time.perf_counter)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert list(verify(problem, answer)) == []
    return Run(problem, answer, wall, cpu)


def fresh_and_again(case: Case, seed: int, scale: Scale) -> tuple[Run, Run]:
    """A snapshot at which nothing runs, and the next one, at which its plan does and demand has moved."""
    fresh = timed(case.snapshot(seed, scale), case.library)
    return fresh, timed(later(fresh.problem, fresh.answer, seed), case.library)


def said(title: str, runs: Sequence[Run]) -> str:
    """A row of figures of some solves: how many were short, and the median of their largest unmet shares."""
    gaps = [step.gap for run in runs for step in run.answer.steps] or [run.answer.gap for run in runs]
    cells = [title, str(len(runs))]
    for name in ("wall_s", "cpu_s"):
        took = [getattr(run, name) for run in runs]
        cells += [f"{statistics.median(took):.3f} s", f"{max(took):.3f} s"]
    worst = [max(u.share for u in run.answer.unmet) for run in runs if run.answer.unmet]
    short = f"{len(worst)}, by {statistics.median(worst):.0%}" if worst else "0"
    instances = statistics.median(sum(c.count for c in run.answer.chosen) for run in runs)
    return row(*cells, f"{max(gaps):.3%}", short, f"{instances:g}")


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def parts(runs: Sequence[Run]) -> Iterator[str]:
    """Median seconds by part of the search."""
    names = list(dict.fromkeys(name for run in runs for name in run.answer.timings))
    for name in names:
        seconds = [run.answer.timings.get(name, 0.0) for run in runs]
        yield f"  {name:<20} median {statistics.median(seconds):.3f} worst {max(seconds):.3f} s"


def peak_gb() -> float:
    """Of this process so far, test runner and all."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def machine() -> str:
    names = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
    return f"{names[0].partition(': ')[2]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def plain(case: Case, problem: Problem, limit_s: float = PLAIN_LIMIT_S) -> Plain:
    """The integer program over every column, by HiGHS alone, in a process that can be killed.

    Kept in a file by what was asked, since it takes minutes and nothing of ours is in it.
    """
    asked = {"limit_s": limit_s, "problem": problem.model_dump(mode="json")}
    file = CACHE / "plain" / f"{digest([asked, version('highspy')])}.json"
    if file.exists():
        return Plain(**json.loads(file.read_text()))
    command = [sys.executable, "-m", "tests.bench.plain_program"]
    text = json.dumps({**asked, "library": str(case.file)})
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, check=True, timeout=limit_s + OVERRUN_S
        )
        found = Plain(**json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        found = Plain(None, None, None, time.perf_counter() - began, 0)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found._asdict()))
    return found


def only(known: Sequence[str]) -> list[str]:
    """Those that `BENCH_ONLY` names (set-ups, scales), or all where it names none of them."""
    named = os.environ.get("BENCH_ONLY", "").split()
    return [name for name in known if name in named] or list(known)
