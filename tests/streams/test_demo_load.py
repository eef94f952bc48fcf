"""The demo's clients against a router that answers, refuses and cuts: each request is counted once."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from streams.demo.load import Crowd, LoadPlan, Tally, clients, run_load

PLAN = LoadPlan(model="tiny", max_tokens=5, crowds=(Crowd(at_s=0, per_s=40.0),), timeout_s=5.0)
HANG_S = 60.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(answer: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def streamed(request: web.Request, *data: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for line in data:
        await response.write(f"data: {line}\n\n".encode())
    return response


def chunk(**given: object) -> str:
    return json.dumps({"choices": [], **given})


async def tallied(answer: Handler, seen: Callable[[Tally], bool]) -> Tally:
    """What the clients counted, ended as soon as `seen`."""
    tally, stop = Tally(), asyncio.Event()
    async with serving(answer) as url, asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(run_load(PLAN, url, tally, stop))
        while not seen(tally):  # noqa: ASYNC110  a tally says nothing; the time-out above ends it
            await asyncio.sleep(0.01)
        stop.set()
    assert tally.in_flight == 0
    return tally


async def test_answers_are_read_to_their_end() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert (body["model"], body["max_tokens"], body["stream"]) == ("tiny", 5, True)
        said = [chunk(choices=[{"delta": {"content": word}}]) for word in ("the ", "reef")]
        return await streamed(request, *said, chunk(usage={"completion_tokens": 2}), "[DONE]")

    tally = await tallied(answer, lambda t: t.served >= 3)
    assert tally.tokens == 2 * tally.served
    assert tally.last_words == "the reef"
    assert tally.summary()["request_errors"] == {}


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_is_no_error(status: int) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, headers={"Retry-After": "1"})

    tally = await tallied(answer, lambda t: t.refused >= 2)
    assert (tally.served, tally.errors) == (0, {})


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ((chunk(),), "the stream was cut"),
        ((chunk(), json.dumps({"error": {"message": "engine died"}})), "in the stream: engine died"),
        (("{no json",), "JSONDecodeError"),
    ],
)
async def test_an_answer_that_does_not_end_well_is_an_error(data: tuple[str, ...], why: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await streamed(request, *data)

    tally = await tallied(answer, lambda t: bool(t.errors))
    assert set(tally.errors) == {why}
    assert tally.served == 0


async def test_another_status_is_an_error() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=500)

    assert set((await tallied(answer, lambda t: bool(t.errors))).errors) == {"HTTP 500"}


async def test_nobody_is_asked_before_the_router_listens() -> None:
    tally, stop = Tally(), asyncio.Event()
    async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(run_load(PLAN, "http://127.0.0.1:9", tally, stop))
        await asyncio.sleep(0.3)
        stop.set()
    assert tally == Tally()


async def test_what_fails_beside_the_clients_is_told_as_it_is_and_at_once() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(HANG_S)
        raise AssertionError

    async def fail_beside(url: str) -> None:
        tally = Tally()
        async with clients(PLAN, url, tally):
            while tally.in_flight == 0:  # noqa: ASYNC110  as above
                await asyncio.sleep(0.01)
            raise LookupError

    async with serving(answer) as url, asyncio.timeout(HANG_S / 2):
        with pytest.raises(LookupError):
            await fail_beside(url)


def test_the_rate_follows_the_plan() -> None:
    plan = PLAN.model_copy(update={"crowds": (Crowd(at_s=2, per_s=1.0), Crowd(at_s=5, per_s=3.0))})
    assert [plan.per_s(t) for t in (0, 2, 4.9, 5, 100)] == [0.0, 1.0, 1.0, 3.0, 3.0]
