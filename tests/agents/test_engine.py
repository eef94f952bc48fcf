"""The simulated engine: the timing of a latency table behind a real OpenAI door."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from agents.engine import End, EngineSpec, Progress, spec_of
from agents.ledger import RankKey
from agents.openai_api import ApiError, parse
from agents.simulated import SimulatedEngine
from agents.simulated_steps import Steps, step_ms
from schemas.problems import LatencyTable
from tests.agents.making import LATENCY, instance, plan, rank

HANG_S = 30.0


def spec(stage: int = 0) -> EngineSpec:
    wish = plan(1, instance("i1", rank(device=0), rank(device=1)))
    return spec_of(wish, RankKey("i1", 1, stage, 0), "127.0.0.1")


@pytest.fixture
async def engine() -> AsyncIterator[SimulatedEngine]:
    made = SimulatedEngine(time_scale=0.1, linger_s=0.1)
    yield made
    await made.stop()
    await asyncio.wait_for(made.gone(), HANG_S)


@pytest.fixture
async def client(engine: SimulatedEngine) -> AsyncIterator[httpx.AsyncClient]:
    await engine.start(spec())
    up = await asyncio.wait_for(engine.ready(), HANG_S)
    async with httpx.AsyncClient(base_url=f"http://{up.endpoint}", timeout=HANG_S) as made:
        yield made


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "four" * 5}], **more}


async def events(response: httpx.Response) -> list[Any]:
    """The data of a stream's events; `[DONE]` as text."""
    lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


# --- timing ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("batch", "expected"), [(1, 10.0), (3, 20.0), (5, 30.0), (9, 30.0)])
def test_a_step_takes_what_the_table_says(batch: int, expected: float) -> None:
    table = LatencyTable(batch=(1, 5), step_ms=(10.0, 30.0), prefill_ms_per_token=1.0, startup_s=1.0)
    assert step_ms(table, batch) == expected


def test_below_the_table_a_step_is_as_its_first_point() -> None:
    table = LatencyTable(batch=(4, 8), step_ms=(10.0, 30.0), prefill_ms_per_token=1.0, startup_s=1.0)
    assert step_ms(table, 1) == 10.0


async def test_requests_beyond_the_largest_batch_wait() -> None:
    steps, inside, most = Steps(LATENCY), 0, 0

    async def one() -> None:
        nonlocal inside, most
        async with steps.request(1):
            inside += 1
            most = max(most, inside)
            await steps.token()
            inside -= 1

    await asyncio.wait_for(asyncio.gather(*(one() for _ in range(12))), HANG_S)
    assert most == LATENCY.batch[-1]


async def test_a_request_that_goes_away_does_not_stop_the_clock() -> None:
    steps = Steps(LATENCY)
    leaving, staying = asyncio.create_task(steps.token()), asyncio.create_task(steps.token())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait_for(staying, HANG_S)


# --- the door ----------------------------------------------------------------------------------------
async def test_answers_a_chat(client: httpx.AsyncClient) -> None:
    body = (await client.post("/v1/chat/completions", json=chat(max_tokens=3))).json()
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "coral reef wave "}
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


async def test_answers_a_completion(client: httpx.AsyncClient) -> None:
    body = (await client.post("/v1/completions", json={"model": "tiny", "prompt": [1, 2, 3]})).json()
    assert body["object"] == "text_completion"
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 16, "total_tokens": 19}


async def test_streams_a_chat(client: httpx.AsyncClient) -> None:
    ask = chat(max_completion_tokens=3, stream=True, stream_options={"include_usage": True})
    async with client.stream("POST", "/v1/chat/completions", json=ask) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        *chunks, usage, done = await events(response)
    assert done == "[DONE]"
    assert usage["usage"]["completion_tokens"] == 3
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == "coral reef wave "
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, None, "length"]


async def test_streams_a_completion_without_usage(client: httpx.AsyncClient) -> None:
    ask = {"model": "tiny", "prompt": "hello", "max_tokens": 2, "stream": True}
    async with client.stream("POST", "/v1/completions", json=ask) as response:
        said = await events(response)
    assert [c["choices"][0]["text"] for c in said[:-1]] == ["coral ", "reef "]
    assert said[-1] == "[DONE]"


async def test_health_and_models(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).status_code == 200
    assert [m["id"] for m in (await client.get("/v1/models")).json()["data"]] == ["tiny"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"no json", None),
        (b'{"messages": []}', "model"),
        (b'{"model": "tiny", "messages": []}', "messages"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": 7}]}', "messages.0.content.str"),
        (b'{"model": "tiny", "messages": [{"role": "u", "content": ""}], "max_tokens": 0}', "max_tokens"),
        (b'{"model": "tiny", "messages": [{"role": "u", "content": ""}], "n": 2}', "n"),
        (b'{"model": "tiny", "messages": [{"role": "u", "content": ""}], "stream": "yes"}', "stream"),
    ],
)
def test_bad_input_names_its_field(body: bytes, param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        parse(body, chat=True)
    assert caught.value.status == 400
    assert caught.value.body["error"]["param"] == param
    assert caught.value.body["error"]["message"].startswith(f"{param or 'body'}: ")


async def test_errors_have_the_apis_shape(client: httpx.AsyncClient) -> None:
    bad = await client.post("/v1/completions", json={"model": "tiny"})
    assert bad.status_code == 400
    assert bad.json()["error"]["type"] == "invalid_request_error"
    other = await client.post("/v1/completions", json={"model": "huge", "prompt": "x"})
    assert other.status_code == 404
    assert other.json()["error"]["code"] == "model_not_found"


# --- life and end ------------------------------------------------------------------------------------
async def test_a_drain_finishes_streams_and_sends_latecomers_elsewhere(
    engine: SimulatedEngine, client: httpx.AsyncClient
) -> None:
    async with client.stream(
        "POST", "/v1/chat/completions", json=chat(max_tokens=150, stream=True)
    ) as stream:
        lines = stream.aiter_lines()
        first = await anext(lines)
        assert engine.in_flight == 1
        await engine.drain()
        await asyncio.sleep(0)
        late = await client.post("/v1/chat/completions", json=chat())
        rest = [line async for line in lines if line]
    assert first.startswith("data: {")
    assert rest[-1] == "data: [DONE]"
    assert len(rest) == 151
    assert late.status_code == 503
    assert late.headers["x-coral-elsewhere"] == "1"
    assert int(late.headers["retry-after"]) > 0
    assert late.json()["error"]["code"] == "draining"
    assert await asyncio.wait_for(engine.gone(), HANG_S) == End()
    assert engine.in_flight == 0
    with pytest.raises(httpx.ConnectError):  # the port is free
        await client.get("/health")


async def test_a_stop_cuts(engine: SimulatedEngine, client: httpx.AsyncClient) -> None:
    async with client.stream(
        "POST", "/v1/chat/completions", json=chat(max_tokens=100_000, stream=True)
    ) as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        await engine.stop()
        with pytest.raises(httpx.RemoteProtocolError):
            [line async for line in lines]
    assert await asyncio.wait_for(engine.gone(), HANG_S) == End()


async def test_a_client_that_leaves_ends_its_request(
    engine: SimulatedEngine, client: httpx.AsyncClient
) -> None:
    async with client.stream(
        "POST", "/v1/chat/completions", json=chat(max_tokens=100_000, stream=True)
    ) as stream:
        await anext(stream.aiter_lines())
    async with asyncio.timeout(HANG_S):
        while engine.in_flight:  # noqa: ASYNC110  a count to poll, not an event
            await asyncio.sleep(0.01)


async def test_a_stage_without_the_head_has_no_door(engine: SimulatedEngine) -> None:
    await engine.start(spec(stage=1))
    progress = [engine.progress]
    up = await asyncio.wait_for(engine.ready(), HANG_S)
    progress.append(engine.progress)
    assert (up.endpoint, up.verified) == (None, None)
    assert progress == [Progress("loading", "loading (simulated)"), None]
    await engine.drain()
    assert await asyncio.wait_for(engine.gone(), HANG_S) == End()


async def test_a_cancelled_start_never_becomes_ready(engine: SimulatedEngine) -> None:
    await engine.start(spec())
    await engine.stop()
    assert await asyncio.wait_for(engine.gone(), HANG_S) == End()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.ready(), 0.01)


async def test_a_crash_says_why(engine: SimulatedEngine) -> None:
    await engine.start(spec())
    await engine.crash("killed by signal 9")
    assert await asyncio.wait_for(engine.gone(), HANG_S) == End("killed by signal 9")


async def test_an_address_of_another_machine_is_a_reason() -> None:
    engine = SimulatedEngine(time_scale=0.0)
    elsewhere = spec_of(plan(1, instance("i1")), RankKey("i1", 1, 0, 0), "192.0.2.1")
    await engine.start(elsewhere)
    end = await asyncio.wait_for(engine.gone(), HANG_S)
    assert end.reason is not None
    assert end.reason.startswith("OSError: ")


def test_a_rank_that_the_plan_lacks_is_a_lookup_error() -> None:
    with pytest.raises(LookupError, match="plan 1-1-1 has no"):
        spec_of(plan(1, instance("i1")), RankKey("i1", 1, 7, 0), "127.0.0.1")
