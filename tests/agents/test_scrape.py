"""Telemetry from vLLM's counters: differences, new starts, engines that do not answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from agents.proxy import new_runner
from agents.scrape import Engine, Scraper, Target, targets_of
from agents.vllm_metrics import Differences, NoVllm, Reading, merged, read, sketch
from tests.agents.router_rig import FakeEngine, planned

INF = float("inf")


def text(
    finished: int = 0,
    running: int = 0,
    waiting: int = 0,
    aborted: int = 0,
    prompt: int = 0,
    generated: int = 0,
    cached: int = 0,
    ttft: tuple[int, int, int] = (0, 0, 0),
    model: str = "tiny",
) -> str:
    """What vLLM 0.32 says of these, as far as it matters; `ttft` counts up to 0.1 s, 1 s and any."""
    label = f'engine="0",model_name="{model}"'
    bounds = zip(("0.1", "1.0", "+Inf"), ttft, strict=True)
    lines = [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{label}}} {running}.0",
        f"vllm:num_requests_waiting{{{label}}} {waiting}.0",
        f'vllm:num_requests_waiting_by_reason{{{label},reason="capacity"}} 77.0',
        f'vllm:request_success_total{{{label},finished_reason="stop"}} {finished}.0',
        f'vllm:request_success_total{{{label},finished_reason="abort"}} {aborted}.0',
        f"vllm:request_prompt_tokens_sum{{{label}}} {prompt}.0",
        f"vllm:request_generation_tokens_sum{{{label}}} {generated}.0",
        f"vllm:prefix_cache_hits_total{{{label}}} {cached}.0",
        *(f'vllm:time_to_first_token_seconds_bucket{{{label},le="{b}"}} {n}.0' for b, n in bounds),
        "python_gc_objects_collected_total 4.0",
    ]
    return "\n".join(lines) + "\n"


def reading(**counts: object) -> Reading:
    return read(text(**counts))["tiny"]  # type: ignore[arg-type]


# --- two readings ----------------------------------------------------------------------------------
def test_a_difference_is_what_happened() -> None:
    between = Differences()
    assert between.to(reading(finished=5, running=2, prompt=100, generated=50, ttft=(3, 5, 5))) is None
    now = reading(
        finished=8, aborted=1, running=3, waiting=1, prompt=190, generated=80, cached=20, ttft=(5, 8, 9)
    )
    told = between.to(now)
    assert told is not None
    assert told["offered"] == 4 + 2, "four ended and two more run or wait"
    assert (told["finished"], told["input_tokens"], told["output_tokens"]) == (3, 90, 30)
    assert told["cached_input_tokens"] == 20
    assert told["ttft_ms"].count == 4
    assert between.to(now) is not None
    assert between._last == now


def test_nothing_happened_is_zero() -> None:
    between = Differences()
    between.to(reading(finished=5))
    told = between.to(reading(finished=5))
    assert told is not None
    assert (told["offered"], told["finished"], told["ttft_ms"].count) == (0, 0, 0)


def test_an_engine_that_began_anew_began_at_zero() -> None:
    between = Differences()
    between.to(reading(finished=500, running=9, prompt=9000, ttft=(400, 500, 500)))
    told = between.to(reading(finished=2, running=1, prompt=30, ttft=(1, 2, 2)))
    assert told is not None
    assert (told["offered"], told["finished"], told["input_tokens"]) == (3, 2, 30)
    assert told["ttft_ms"].count == 2


def test_gauges_read_late_are_made_up_for() -> None:
    """A request ended between the gauge and the counter: counted once in the end."""
    between = Differences()
    between.to(reading(running=1))
    offered = []
    for now in (reading(running=0), reading(finished=1, running=0), reading(finished=1, running=1)):
        told = between.to(now)
        assert told is not None
        offered.append(told["offered"])
    assert offered == [0, 0, 1]


@given(runs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=20))
def test_arrivals_add_up(runs: list[tuple[int, int]]) -> None:
    """However the readings fall: what was offered is what ended and what still runs."""
    between, finished, offered = Differences(), 0, 0
    between.to(reading())
    for ends, running in runs:
        finished += ends
        told = between.to(reading(finished=finished, running=running))
        assert told is not None
        offered += told["offered"]
    assert offered >= finished + runs[-1][1]
    told = between.to(reading(finished=finished + 100, running=0))
    assert told is not None
    assert offered + told["offered"] == finished + 100


def test_prefill_and_decode_count_a_request_once() -> None:
    def of(phase: str) -> dict[str, object]:
        between = Differences(phase)  # type: ignore[arg-type]
        between.to(reading())
        return between.to(reading(finished=2, prompt=20, generated=8)) or {}

    assert (of("prefill")["offered"], of("prefill")["input_tokens"]) == (2, 20)
    assert "finished" not in of("prefill")
    assert (of("decode")["offered"], of("decode")["finished"], of("decode")["output_tokens"]) == (0, 2, 8)
    assert "input_tokens" not in of("decode")


def test_values_are_spread_over_their_bucket() -> None:
    told = sketch({0.1: 1, 1.0: 1, INF: 1}, {0.1: 1, 1.0: 101, INF: 103})
    assert told.count == 102
    middle = told.quantile(0.5)
    assert middle == pytest.approx(1000 * 0.1 * 10**0.5, rel=0.05)
    assert told.quantile(1.0) == pytest.approx(1000.0, rel=0.05), "above the last bound nothing is known"
    assert sketch({}, {INF: 5}).count == 0


def test_models_and_engine_cores_add_up() -> None:
    both = text(finished=1, running=2) + text(finished=3, model="other")
    again = text(finished=10).replace('engine="0"', 'engine="1"')
    found = read(both + again)
    assert {name: r.finished for name, r in found.items()} == {"tiny": 11, "other": 3}
    assert (merged(found).finished, merged(found).in_flight) == (14, 2)


@pytest.mark.parametrize(
    "odd", ["", "<html>", "vllm:num_requests_running{", "vllm:num_requests_running 1.0\n"]
)
def test_what_is_no_reading_of_vllm_says_so(odd: str) -> None:
    with pytest.raises(NoVllm, match=r"expected vLLM's|expected vllm:num_requests_running"):
        read(odd)


# --- engines ---------------------------------------------------------------------------------------
def test_the_first_reading_and_one_after_a_long_silence_tell_nothing() -> None:
    engine = Engine(Target("i1.1", "http://h/metrics", "chat", "tiny"), "s.i1.1")
    assert engine.samples(read(text(finished=5)), 1000) == []
    (told,) = engine.samples(read(text(finished=7)), 2000)
    assert (told.source, told.at_ms, told.interval_ms, told.finished) == ("s.i1.1", 1000, 1000, 2)
    (late,) = engine.samples(read(text(finished=8)), 4000)
    assert (late.at_ms, late.interval_ms, late.finished) == (2000, 2000, 1)
    assert engine.samples(read(text(finished=90)), 60_000) == []
    assert engine.samples(read(text(finished=91)), 61_000)[0].finished == 1


def test_given_addresses_are_completed() -> None:
    found = targets_of(["h:1", "http://h:2/", "https://h/metrics"], "chat")
    assert [t.url for t in found] == ["http://h:1/metrics", "http://h:2/metrics", "https://h/metrics"]
    assert [t.name for t in found] == ["h:1", "h:2", "h"]


class FakeMetrics:
    """`/metrics` of an engine."""

    def __init__(self) -> None:
        self.text: str | None = text()
        self.endpoint = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeMetrics"]:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        runner = new_runner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.endpoint = f"127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        if self.text is None:
            await asyncio.Event().wait()
        return web.Response(text=self.text)


async def test_a_dead_endpoint_is_missing_and_the_others_go_on() -> None:
    async with (
        FakeMetrics().serving() as one,
        FakeMetrics().serving() as other,
        aiohttp.ClientSession() as session,
    ):
        scraper = Scraper("s", session)
        dead = FakeEngine("i3", endpoint="127.0.0.1:1")
        plan = planned(
            1, FakeEngine("i1", endpoint=one.endpoint), FakeEngine("i2", endpoint=other.endpoint), dead
        )
        scraper.take(plan)
        await scraper.scrape()
        one.text, other.text = text(finished=4, prompt=40), None
        await asyncio.sleep(0.01)
        await scraper.scrape()
        told = [(s.source, s.model, s.slo_class, s.finished) for s in scraper.outbox._waiting]
        assert told == [("s.i1.1", "tiny", "chat", 4)]
        scraper.take(plan)  # again, which forgets nothing
        other.text = text(finished=1)
        await asyncio.sleep(0.01)
        await scraper.scrape()
        assert {s.source: s.finished for s in list(scraper.outbox._waiting)[1:]} == {"s.i1.1": 0, "s.i2.1": 1}
