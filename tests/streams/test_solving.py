"""The solver process: fused, replaced, checked, and gone when it should be."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from schemas.catalog import SHIPPED_CATALOG
from schemas.performance import SHIPPED_EFFICIENCIES
from schemas.problems import Problem, Service, ServiceDemand, Stock
from streams.solving import SolveError, Solver
from tests.streams.doubles import EAST

REPO = Path(__file__).resolve().parents[2]
FUSE_S = 1.0


def problem(name: str, model: str = "m", library: str = "lib") -> Problem:
    return Problem(
        id=name,
        library=library,
        demands=(ServiceDemand(service=Service(model=model, slo_class="interactive"), rate=2.0),),
        stocks=(Stock(pool=EAST, configuration="1xL4", nodes=4, usd_per_hour=1.0),),
    )


@pytest.fixture
async def solver() -> AsyncIterator[Solver]:
    async with Solver("tests.streams.solve_doubles:moody", {}, FUSE_S) as made:
        yield made


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if _solves(p)]


def _solves(process: psutil.Process) -> bool:
    try:
        return "streams.solve_worker" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # gone, or a zombie that an earlier test of this process has yet to reap
        return False


async def test_an_answer_comes_back_whole(solver: Solver) -> None:
    assert await solver.library() == "moody"
    answer = await solver.solve(problem("p1"))
    assert answer.problem == "p1"
    assert sum(chosen.count for chosen in answer.chosen) == 2


async def test_what_the_solver_prints_stays_out_of_its_answers(solver: Solver) -> None:
    assert (await solver.solve(problem("print"))).problem == "print"


async def test_the_fuse_kills_a_solver_that_ignores_its_limit(solver: Solver) -> None:
    """HiGHS #2226: a failure on the log right after the limit, and a solver for the next problem."""
    await solver.library()
    (sleeper,) = children()
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    with pytest.raises(SolveError, match="fuse: no answer to sleep within 1 s"):
        await solver.solve(problem("sleep"))
    print(f"fuse of {FUSE_S:g} s burnt after {loop.time() - start_s:.2f} s")
    assert (await solver.solve(problem("p2"))).problem == "p2"
    assert not sleeper.is_running()
    assert len(children()) == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("exit", "crash: the solver process ended with 3"),
        ("raise", "ZeroDivisionError: no cost"),
        ("decline", "^cannot be put"),
        ("cheat", "check: demand: "),
    ],
)
async def test_every_failure_is_a_reason_and_the_next_solve_works(
    solver: Solver, name: str, reason: str
) -> None:
    with pytest.raises(SolveError, match=reason):
        await solver.solve(problem(name))
    assert (await solver.solve(problem("after"))).problem == "after"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tell-sleep", "fuse: no answer to tell-sleep within 1 s"),
        ("lie-tell-exit", "crash: the solver process ended with 3"),
        ("tell-raise", "ZeroDivisionError: no cost"),
        ("tell-cheat", "check: demand: m/interactive/both: 2.0 missing, 0.0 declared unmet"),
    ],
)
async def test_the_last_plan_told_of_stands_in_for_an_answer_that_never_comes(
    solver: Solver, name: str, reason: str
) -> None:
    """ERGO-Code/HiGHS#2226, #885: a plan all the same, and no claim that it is proven."""
    answer = await solver.solve(problem(name))
    assert sum(chosen.count for chosen in answer.chosen) == 2
    assert (answer.stopped, answer.status, answer.gap) == (reason, "feasible", 1.0)
    after = await solver.solve(problem("after"))
    assert (after.problem, after.stopped) == ("after", None)


async def test_a_plan_told_of_is_checked_like_an_answer_and_forgotten_after_it(solver: Solver) -> None:
    with pytest.raises(SolveError, match=r"crash: .* with 3; its best plan so far: check: demand: "):
        await solver.solve(problem("tell-lie-exit"))
    assert (await solver.solve(problem("tell"))).stopped is None
    with pytest.raises(SolveError, match=r"^cannot be put$"):
        await solver.solve(problem("decline"))


async def test_a_cancelled_solve_ends_its_process(solver: Solver) -> None:
    await solver.library()
    (sleeper,) = children()
    solving = asyncio.create_task(solver.solve(problem("sleep")))
    await asyncio.sleep(0)
    await asyncio.sleep(0.05)  # asked by now; if not, it is cancelled while it waits, which must do as well
    solving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await solving
    assert (await solver.solve(problem("after"))).problem == "after"
    assert not sleeper.is_running()


async def test_solves_take_turns(solver: Solver) -> None:
    answers = await asyncio.gather(*(solver.solve(problem(f"p{n}")) for n in range(5)))
    assert [answer.problem for answer in answers] == [f"p{n}" for n in range(5)]


async def test_a_solver_that_does_not_start_says_so() -> None:
    async with Solver("tests.streams.solve_doubles:broken", {}, FUSE_S) as broken:
        with pytest.raises(SolveError, match="ended with 1"):
            await broken.library()


async def test_nothing_is_left_behind(solver: Solver) -> None:
    async with Solver("tests.streams.solve_doubles:steady", {}, FUSE_S) as other:
        await other.library()
        assert await solver.library() == "moody"
        assert len(children()) == 2
    assert len(children()) == 1


def test_the_worker_dies_with_its_parent() -> None:
    """Also by SIGKILL, and while it solves."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        cwd=REPO,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        text=True,
    )
    assert parent.stdout is not None
    worker = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert psutil.wait_procs([worker], timeout=30)[1] == []


PARENT = """
import asyncio
import psutil
from streams.solving import Solver
from tests.streams.test_solving import problem

async def main():
    async with Solver("tests.streams.solve_doubles:moody", {}, 3600.0) as solver:
        await solver.library()
        solving = asyncio.create_task(solver.solve(problem("sleep")))
        await asyncio.sleep(0.2)
        print(psutil.Process().children()[0].pid, flush=True)
        await solving

asyncio.run(main())
"""


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_the_real_bench_solves_and_keeps_its_library(tmp_path: Path) -> None:
    """Pyomo and HiGHS in the process; the second start loads the library that the first built."""
    arguments = {
        "catalog": str(SHIPPED_CATALOG),
        "efficiencies": str(SHIPPED_EFFICIENCIES),
        "profiles": [],
        "levels": [("phi-4-14b", "interactive")],
        "configurations": ["1xL40S"],
        "cache": str(tmp_path),
    }
    found = []
    for _ in range(2):
        async with Solver("streams.solve_bench:open_bench", arguments, 60.0) as solver:
            library = await solver.library()
            asked = problem("p1", "phi-4-14b", library).model_copy(
                update={"stocks": (Stock(pool=EAST, configuration="1xL40S", nodes=9, usd_per_hour=1.0),)}
            )
            answer = await solver.solve(asked)
            found.append((library, answer.usd_per_hour, files(tmp_path)))
    assert found[0] == found[1]
    assert found[0][1] > 0
    assert len(found[0][2]) == 1
