"""Probing a small server that answers as vLLM does, or does not."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest
from aiohttp import web

from agents import probe as module
from agents.engine import EngineError, Progress
from agents.probe import Probe, read_metrics
from agents.vitals import Metrics

HANG_S = 15.0
"""A guard against hangs."""
FIGURES = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 2.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 1e+06
vllm:generation_tokens_total{engine="0",model_name="tiny"} 4.0
vllm:prompt_tokens_created{engine="0",model_name="tiny"} 1.7959841903876455e+09
vllm:iteration_tokens_total_sum{engine="0",model_name="tiny"} 7.0
"""

T = TypeVar("T")


class Engine:
    """A server with vLLM's endpoints, as well or ill as a test wants it."""

    def __init__(self) -> None:
        self.health = 503
        self.ranks: int | None = 200
        """What a check gets; None for no answer."""
        self.checks: list[float] = []
        """How long each might have taken."""
        self.running = [0]
        """At each look at the figures, the last one for ever."""
        self.looks = 0
        self.tokens = 0
        self.url = ""

    async def serve(self) -> None:
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.post("/collective_rpc", self._check),
            ]
        )
        self.runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=self.health)

    async def _metrics(self, _: web.Request) -> web.Response:
        running = self.running[min(self.looks, len(self.running) - 1)]
        self.looks += 1
        text = FIGURES.replace(" 3.0", f" {running}").replace(" 2.0", " 0.0")
        return web.Response(text=text.replace(" 4.0", f" {self.tokens}"))

    async def _check(self, request: web.Request) -> web.Response:
        asked = await request.json()
        assert asked["method"] == "check_health"
        self.checks.append(asked["timeout"])
        if self.ranks is None:
            await asyncio.Event().wait()
        return web.json_response({"results": [None]}, status=self.ranks or 500)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    one = Engine()
    await one.serve()
    yield one
    await one.runner.cleanup()


@pytest.fixture
async def probe(engine: Engine) -> AsyncIterator[Probe]:
    async with Probe(engine.url) as one:
        yield one


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks in quick succession."""
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(module, "POLL_S", 0.02)
    monkeypatch.setattr("agents.vitals.CHECK_EVERY_S", 0.1)
    monkeypatch.setattr("agents.vitals.LONGEST_LOOK_S", 0.05)  # a machine that is busy starves us


async def within(wait: Awaitable[T]) -> T:
    return await asyncio.wait_for(wait, HANG_S)


async def until(test: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_S):
        while not test():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.01)


async def lasts(wait: Awaitable[object], seconds: float = 0.5) -> None:
    """It does not return."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wait, seconds)


def test_figures_are_read_by_their_whole_names() -> None:
    assert read_metrics(FIGURES) == Metrics(running=3, waiting=2, tokens=1_000_004)


@pytest.mark.parametrize("missing", ["running", "waiting{", "prompt_tokens_total", "generation"])
def test_a_missing_figure_is_not_zero(missing: str) -> None:
    assert read_metrics("\n".join(line for line in FIGURES.splitlines() if missing not in line)) is None
    assert read_metrics("") is None


async def test_what_is_there_is_told(engine: Engine, probe: Probe) -> None:
    assert await probe.health() == "dead"
    engine.health, engine.running = 200, [3]
    assert await probe.health() == "well"
    assert await probe.metrics() == Metrics(running=3, waiting=0, tokens=1_000_000)
    assert await probe.check_ranks(7.0)
    assert engine.checks == [7.0]
    await engine.runner.cleanup()
    assert await probe.health() == "refused"
    assert await probe.metrics() is None
    assert not await probe.check_ranks(7.0)


# --- admission -------------------------------------------------------------------------------------
async def test_an_engine_is_admitted_step_by_step(
    engine: Engine, probe: Probe, hurried: None, tmp_path: Path
) -> None:
    told: list[Progress] = []
    verified: list[str] = []

    async def verify(url: str) -> bool:
        verified.append(url)
        return True

    log = tmp_path / "engine.log"
    log.write_text("Starting to load model\n")
    engine.ranks = 500
    admission = asyncio.create_task(probe.admit(told.append, verify, log=log))
    await asyncio.sleep(0.1)
    assert told == []
    with log.open("a") as more:
        more.write("Loading weights took 0.03 seconds\n")
    await until(lambda: told)
    assert [step.phase for step in told] == ["compiling"]
    engine.health = 200
    await until(lambda: len(engine.checks) > 1)
    assert not verified  # not all of its ranks answer
    engine.ranks = 200
    assert await within(admission) is True
    assert verified == [engine.url]
    assert [step.phase for step in told] == ["compiling", "verifying", "verifying"]


async def test_wrong_answers_are_not_admitted(engine: Engine, probe: Probe, hurried: None) -> None:
    async def verify(url: str) -> bool:
        raise EngineError("log-probabilities are 3.1 off")

    engine.health = 200
    with pytest.raises(EngineError, match=r"3\.1 off"):
        await within(probe.admit(lambda _: None, verify))


async def test_an_engine_that_cannot_be_checked_is_not_admitted(
    engine: Engine, probe: Probe, hurried: None
) -> None:
    async def verify(url: str) -> bool:
        raise AssertionError

    engine.health, engine.ranks = 200, 404
    with pytest.raises(EngineError, match="no development mode"):
        await within(probe.admit(lambda _: None, verify))


# --- watching --------------------------------------------------------------------------------------
async def test_a_dead_rank_is_found_though_all_seems_well(
    engine: Engine, probe: Probe, hurried: None
) -> None:
    engine.health, engine.ranks = 200, None
    assert await within(probe.stuck(0.5)) == "no token and no answer of all ranks for 0.5 s"
    assert engine.checks == [1.0]  # one, and with more time than a step may take


async def test_an_engine_that_is_well_or_makes_tokens_is_left_alone(
    engine: Engine, probe: Probe, hurried: None
) -> None:
    engine.health = 200
    await lasts(probe.stuck(0.3), 1.0)
    assert len(engine.checks) > 2
    engine.ranks = 500

    async def work() -> None:
        while True:
            engine.tokens += 1
            await asyncio.sleep(0.02)

    working = asyncio.create_task(work())
    await lasts(probe.stuck(0.3), 1.0)
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


async def test_an_engine_that_says_so_is_dead_at_once(engine: Engine, probe: Probe, hurried: None) -> None:
    assert await within(probe.stuck(600.0)) == "its /health says that it is dead"
    await engine.runner.cleanup()
    assert await within(probe.stuck(600.0)) == "nothing listens where it served"


# --- quiet -----------------------------------------------------------------------------------------
async def test_quiet_waits_until_nothing_has_run_for_a_while(
    engine: Engine, probe: Probe, hurried: None
) -> None:
    engine.running = [1, 0, 1, 0]
    await within(probe.quiet(0.2))
    assert engine.looks >= 3 + 2  # idle once is no end


async def test_the_dead_are_not_quiet(engine: Engine, probe: Probe, hurried: None) -> None:
    """Requests that they took along would count as finished."""
    await engine.runner.cleanup()
    await lasts(probe.quiet(0.05))
