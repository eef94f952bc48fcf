"""Load on an endpoint: what is counted, what fails how, and how long what took at the least."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from agents.load import Failed, Load, Reply, Served, Tally, ask, run
from agents.load_endpoint import (
    EndpointError,
    Target,
    connect,
    figures,
    prepare,
    prompts,
    version,
)
from agents.simulated_door import Door
from schemas.problems import LatencyTable

HANG_S = 60.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(answer: Handler, path: str = "/v1/completions") -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await answer(request)

    async def tell_version(_: web.Request) -> web.StreamResponse:
        return web.json_response({"version": "9.9"})

    app = web.Application()
    app.router.add_post(path, handle)
    app.router.add_get("/version", tell_version)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def streamed(request: web.Request, *data: object) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for each in data:
        line = each if isinstance(each, str) else json.dumps(each)
        await response.write(f"data: {line}\n\n".encode())
    return response


def token(text: str = "x") -> dict[str, object]:
    return {"choices": [{"index": 0, "text": text}]}


USAGE: dict[str, object] = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


async def asked(answer: Handler, path: str = "/v1/completions") -> Reply:
    async with serving(answer, path) as url, connect(None, 5.0) as session:
        return await ask(session, f"{url}{path}", {"model": "m"})


# --- one request -----------------------------------------------------------------------------------
async def test_an_answer_is_timed_from_its_request_to_its_first_and_last_token() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        await asyncio.sleep(0.05)
        response = await streamed(request, token("a"))
        await asyncio.sleep(0.1)
        for each in (token("b"), token(""), USAGE, "[DONE]"):
            line = each if isinstance(each, str) else json.dumps(each)
            await response.write(f"data:{line}\n\n".encode())
        return response

    reply = await asked(answer)
    assert isinstance(reply, Served)
    assert (reply.words, reply.input_tokens, reply.output_tokens) == ("ab", 7, 3)
    assert reply.ttft_s >= 0.05  # a sleep never ends early
    assert reply.tpot_s is not None
    assert reply.tpot_s >= 0.09 / 2


async def test_a_chats_role_is_no_token() -> None:
    def delta(**said: object) -> dict[str, object]:
        return {"choices": [{"index": 0, "delta": said}]}

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await streamed(request, delta(role="assistant", content=""))
        await asyncio.sleep(0.05)
        for each in (delta(reasoning_content="hm "), delta(content="yes"), delta(), USAGE):
            await response.write(f"data: {json.dumps(each)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    reply = await asked(answer)
    assert isinstance(reply, Served)
    assert reply.words == "hm yes"
    assert reply.ttft_s >= 0.05


def test_a_lone_token_has_no_pace() -> None:
    assert Served(0.0, 1.0, 1.0, 5, 1, "x").tpot_s is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ((token(),), "the stream was cut"),
        ((token(), {"error": {"message": "engine died"}}), "in the stream: engine died"),
        ((token(), {"error": "out of memory"}), "in the stream: out of memory"),
        (("{no json",), "JSONDecodeError"),
        (("[DONE]",), "an answer without a token"),
        (({"choices": [None]},), "no stream of the OpenAI API"),
        (({"choices": 5},), "no stream of the OpenAI API"),
        ((token(), {"choices": [], "usage": [1]}, "[DONE]"), "no stream of the OpenAI API"),
        ((token(), '{"usage": {"prompt_tokens": NaN}}', "[DONE]"), "usage that is no count of tokens"),
    ],
)
async def test_what_was_not_served_says_why(data: tuple[object, ...], why: str) -> None:
    assert await asked(lambda request: streamed(request, *data)) == Failed(why)


async def test_a_status_is_told_with_what_came_with_it() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=400, text="max_tokens is too large")

    assert await asked(answer) == Failed("HTTP 400", 400, "max_tokens is too large")


async def test_nobody_there_is_told_too() -> None:
    async with connect(None, 5.0) as session:
        assert await ask(session, "http://127.0.0.1:9/v1/completions", {}) == Failed("ClientConnectorError")


# --- loads -----------------------------------------------------------------------------------------
TAKES_S = 0.02


def pretending(
    flying: list[int], fails: Callable[[int], bool] = lambda _: False
) -> Callable[[], Awaitable[Reply]]:
    """Requests that take `TAKES_S`; `flying` notes how many are in flight at each one's start."""
    number, now = itertools.count(), 0

    async def one() -> Reply:
        nonlocal now
        now += 1
        flying.append(now)
        began_s = asyncio.get_running_loop().time()
        await asyncio.sleep(TAKES_S)
        now -= 1
        if fails(next(number)):
            return Failed("made to")
        end_s = asyncio.get_running_loop().time()
        return Served(began_s, end_s, end_s, 10, 5, "x")

    return one


async def loaded(
    load: Load, asking: Callable[[], Awaitable[Reply]], stop: asyncio.Event | None = None
) -> Tally:
    async with asyncio.timeout(HANG_S):
        return await run(load, asking, stop or asyncio.Event())


async def test_a_closed_loop_keeps_so_many_in_flight_and_is_no_faster_than_they_are() -> None:
    flying: list[int] = []
    load = Load(concurrency=4, per_s=None, seconds=0.5, warmup_s=0.1, stagger_s=TAKES_S)
    tally = await loaded(load, pretending(flying))
    assert max(flying) == 4
    assert tally.whole
    assert tally.failures == {}
    assert 0 < tally.throughput <= 4 / TAKES_S
    # Little's law holds for whole requests of whole clients, however slow this machine is.
    mean_s = sum(r.ttft_s for r in tally.served) / len(tally.served)
    assert tally.throughput * mean_s <= 4 * 1.01


async def test_each_client_is_measured_even_in_no_time() -> None:
    load = Load(concurrency=8, per_s=None, seconds=0.001, warmup_s=0.0)
    assert len((await loaded(load, pretending([]))).served) >= 8


async def test_an_open_loop_asks_whatever_the_answers_take() -> None:
    flying: list[int] = []
    load = Load(concurrency=None, per_s=300.0, seconds=0.5, warmup_s=0.1)
    tally = await loaded(load, pretending(flying))
    assert max(flying) > 2  # 300 a second for 20 ms each: six in flight
    assert tally.served
    assert 0 < tally.throughput <= len(tally.served) / 0.5


async def test_failures_are_counted_by_name_and_are_no_throughput() -> None:
    load = Load(concurrency=2, per_s=None, seconds=0.3, warmup_s=0.0)
    tally = await loaded(load, pretending([], lambda number: number % 2 == 1))
    assert set(tally.failures) == {"made to"}
    assert tally.served
    nothing = await loaded(load, pretending([], lambda _: True))
    assert nothing.served == ()
    assert nothing.throughput == 0.0
    assert nothing.whole


@pytest.mark.parametrize("load", [(4, None), (None, 50.0)])
async def test_asked_to_stop_it_gives_what_it_has(load: tuple[int | None, float | None]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.3, stop.set)
    tally = await loaded(Load(*load, seconds=HANG_S, warmup_s=0.05), pretending([]), stop)
    assert not tally.whole
    assert tally.served
    stop.set()
    assert (await loaded(Load(*load, seconds=HANG_S, warmup_s=0.05), pretending([]), stop)).served == ()


async def test_a_load_is_one_of_both() -> None:
    with pytest.raises(ValueError, match="concurrency or per_s"):
        await loaded(Load(None, None, 1.0, 0.0), pretending([]))


# --- an endpoint -----------------------------------------------------------------------------------
@pytest.fixture
async def simulated() -> AsyncIterator[str]:
    table = LatencyTable(batch=(1, 4), step_ms=(5.0, 10.0), prefill_ms_per_token=0.2, startup_s=1.0)
    door = Door.open("tiny", table, "127.0.0.1")
    yield f"http://{door.endpoint}"
    await door.close()


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("suffix", ["", "/", "/v1"])
async def test_prompts_have_the_length_that_was_asked_for(simulated: str, chat: bool, suffix: str) -> None:
    target = Target(simulated + suffix, "tiny", input_tokens=200, output_tokens=6, chat=chat)
    async with connect(None, HANG_S) as session:
        ready = await prepare(session, target)
        reply = await ready.asking()
    assert isinstance(reply, Served)
    assert reply.input_tokens == pytest.approx(200, rel=0.1)
    assert reply.output_tokens == 6
    assert ready.alone_s >= 0.2 * 180 / 1000
    assert reply.ttft_s >= 0.2 * 180 / 1000
    assert reply.tpot_s is not None
    assert reply.tpot_s >= 0.004  # steps of 5 ms, the first of them begun before


async def test_what_cannot_be_measured_is_told(simulated: str) -> None:
    async def told(**changed: Any) -> str:
        target = Target(
            **{"url": simulated, "model": "tiny", "input_tokens": 99, "output_tokens": 2, **changed}
        )
        async with connect(None, HANG_S) as session:
            with pytest.raises(ValueError, match=r".+") as refused:
                await prepare(session, target)
        return str(refused.value)

    assert "HTTP 404" in await told(model="other")
    assert "expected a stream for model 'other'" in await told(model="other")
    assert "--input-tokens: 1, expected more" in await told(input_tokens=1)
    assert "ClientConnectorError" in await told(url="http://127.0.0.1:9")
    assert "expected an http or https URL" in await told(url="127.0.0.1:8000")


async def test_an_endpoint_that_does_not_count_tokens_is_refused() -> None:
    async with (
        serving(lambda request: streamed(request, token(), "[DONE]")) as url,
        connect(None, HANG_S) as session,
    ):
        with pytest.raises(EndpointError, match="no `usage` at a stream's end"):
            await prepare(session, Target(url, "m", 10, 2))
    async with (
        serving(lambda request: streamed(request, token(), USAGE, "[DONE]")) as url,
        connect(None, HANG_S) as session,
    ):
        with pytest.raises(EndpointError, match="7 and 7 prompt tokens for 8 and 72 words"):
            await prepare(session, Target(url, "m", 10, 2))


async def test_the_version_is_asked_for_and_the_key_is_sent(simulated: str) -> None:
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("Authorization"))
        return web.Response(status=401)

    async with serving(answer) as url, connect("s3cret", HANG_S) as session:
        target = Target(url, "m", 10, 2)
        assert await version(session, target) == "vllm-9.9"
        assert await ask(session, target.path, {}) == Failed("HTTP 401", 401)
        assert await version(session, Target(simulated, "tiny", 10, 2)) is None
    assert seen == ["Bearer s3cret"]


def test_no_two_prompts_begin_alike() -> None:
    made = [prompt(20) for prompt in (prompts(), prompts()) for _ in range(50)]
    assert len({text.split()[0] for text in made}) == 100
    assert {len(text.split()) for text in made} == {20}


def test_figures_have_vllms_names() -> None:
    served = tuple(Served(0.0, ttft, ttft + 0.4, 100, 5, "x") for ttft in (0.1, 0.2, 0.3))
    told = figures(Tally(served, {"HTTP 500": 2}, throughput=1.5, whole=True))
    assert told["duration"] == pytest.approx(2.0)
    assert (told["completed"], told["failed"]) == (3, 2)
    assert (told["total_input_tokens"], told["total_output_tokens"]) == (300, 15)
    assert told["output_throughput"] == pytest.approx(7.5)
    assert told["mean_ttft_ms"] == pytest.approx(200)
    assert told["median_ttft_ms"] == pytest.approx(200)
    assert told["p90_ttft_ms"] == pytest.approx(280)
    assert told["mean_tpot_ms"] == pytest.approx(100)
    short = figures(Tally((Served(0.0, 0.1, 0.1, 100, 1, "x"),), {}, throughput=1.0, whole=True))
    assert short["mean_tpot_ms"] is None
