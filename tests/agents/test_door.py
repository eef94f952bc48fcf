"""The door of an instance before a small upstream: what passes, what does not, and how it all ends."""

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import aiohttp
import pytest

from agents import proxy
from agents.door import Door
from tests.agents.upstreams import EVENTS, Upstream

HANG_S = 15.0
"""A guard against hangs."""
SOON_S = 3.0
"""A client's disconnect is passed on within 1 s; three times that fails."""

T = TypeVar("T")


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with Upstream().serving() as one:
        yield one


@pytest.fixture
async def door(upstream: Upstream) -> AsyncIterator[Door]:
    one = await Door.open("127.0.0.1", upstream.url)
    yield one
    async with asyncio.timeout(HANG_S):
        await one.close()


@pytest.fixture
async def client(door: Door) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://{door.endpoint}", auto_decompress=False) as session:
        yield session


async def within(wait: Awaitable[T], seconds: float = HANG_S) -> T:
    return await asyncio.wait_for(wait, seconds)


async def until(test: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_S):
        while not test():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.01)


def post(client: aiohttp.ClientSession, path: str) -> asyncio.Task[aiohttp.ClientResponse]:
    """A request on its way."""

    async def answered() -> aiohttp.ClientResponse:
        return await client.post(path)

    return asyncio.create_task(answered())


async def begun(client: aiohttp.ClientSession, upstream: Upstream) -> aiohttp.ClientResponse:
    """A stream whose first event has come."""
    await upstream.chunks.put(b"data: 0\n\n")
    response = await within(client.post("/v1/stream"))
    assert await within(response.content.readany()) == b"data: 0\n\n"
    return response


def told(body: bytes) -> str:
    """The message of an error in OpenAI's shape, alone or as the last event of a stream."""
    last = body.strip().rpartition(b"data: ")[2]
    message: str = json.loads(last)["error"]["message"]
    return message


# --- what passes -----------------------------------------------------------------------------------
async def test_requests_and_answers_pass_byte_for_byte(
    client: aiohttp.ClientSession, upstream: Upstream
) -> None:
    body = gzip.compress(b"{}")
    sent = {"content-encoding": "gzip", "authorization": "Bearer k", "x-of-client": "\u00fc"}
    async with client.post("/v1/a%2Fb?c=%20d", data=body, headers=sent) as response:
        assert (response.status, response.headers["x-of-upstream"]) == (203, "yes")
        assert await response.read() == b"\x00\xff echo"
    ((method, path, headers, came),) = upstream.seen
    assert (method, path, came) == ("POST", "/v1/a%2Fb?c=%20d", body)
    assert {name: headers.get(name.title()) or headers.get(name) for name in sent} == sent


async def test_a_stream_passes_event_by_event(
    client: aiohttp.ClientSession, upstream: Upstream, door: Door
) -> None:
    response = await begun(client, upstream)
    assert response.headers["content-type"] == EVENTS
    assert door.in_flight == 1
    for number in range(1, 50):
        event = b"data: %d\n\n" % number
        await upstream.chunks.put(event)
        assert await within(response.content.readany()) == event  # before there is a next one
    await upstream.chunks.put(None)
    assert await within(response.content.readany()) == b""
    await until(lambda: door.in_flight == 0)


@pytest.mark.parametrize("path", ["/health", "/metrics"])
async def test_what_watches_need_is_shown(path: str, client: aiohttp.ClientSession) -> None:
    async with client.get(path) as response:
        assert response.status == 203  # the upstream's


@pytest.mark.parametrize(
    "target",
    [
        *("/collective_rpc", "/metrics/x", "/", "/v1", "/v2/models", "//v1/models", "/health/../metrics"),
        *("/v1/../collective_rpc", "/v1/%2e%2e/collective_rpc", "/v1/..%2fcollective_rpc", "/v1%2f..%2fx"),
        *("/v1/x/..", "/v1\\..\\x", "http://127.0.0.1/collective_rpc", "http://127.0.0.1/v1/models"),
    ],
)
async def test_nothing_else_is_shown(target: str, door: Door, upstream: Upstream) -> None:
    """Raw, since clients tidy such paths."""
    host, port = door.endpoint.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
    )
    answer = await within(reader.read())
    writer.close()
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400", b"HTTP/1.0 400"))
    assert upstream.seen == []


# --- drain -----------------------------------------------------------------------------------------
async def test_a_drain_lets_streams_finish_and_sends_latecomers_elsewhere(
    client: aiohttp.ClientSession, upstream: Upstream, door: Door
) -> None:
    response = await begun(client, upstream)
    draining = asyncio.create_task(door.drain())
    await asyncio.sleep(0)
    for late in (client.post("/v1/slow"), client.get("/health")):
        async with late as refused:
            assert (refused.status, refused.headers["x-coral-elsewhere"]) == (503, "1")
            assert refused.headers["retry-after"] == "1"
            assert told(await refused.read()) == "this instance is draining; send the request elsewhere"
    async with client.get("/metrics") as figures:  # what finishes now counts, too
        assert figures.status == 203
    assert not draining.done()
    await upstream.chunks.put(b"data: [DONE]\n\n")
    await upstream.chunks.put(None)
    assert await within(response.read()) == b"data: [DONE]\n\n"
    await within(draining)
    async with client.post("/v1/slow") as refused:  # for as long as it is open
        assert refused.status == 503
    await within(door.drain())


# --- disconnects -----------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["/v1/stream", "/v1/slow"])
async def test_a_clients_disconnect_is_passed_on(path: str, upstream: Upstream, door: Door) -> None:
    """A vLLM aborts a request whose connection closes."""
    async with aiohttp.ClientSession(f"http://{door.endpoint}") as leaving:
        waiting = post(leaving, path)
        await until(lambda: upstream.seen)
        waiting.cancel()
    await within(upstream.gone.wait(), SOON_S)
    await until(lambda: door.in_flight == 0)


async def test_a_clients_disconnect_in_mid_stream_is_passed_on(
    client: aiohttp.ClientSession, upstream: Upstream, door: Door
) -> None:
    (await begun(client, upstream)).close()
    await within(upstream.gone.wait(), SOON_S)
    await until(lambda: door.in_flight == 0)


# --- ends ------------------------------------------------------------------------------------------
async def test_a_cut_ends_every_open_request_with_an_error(
    client: aiohttp.ClientSession, upstream: Upstream, door: Door
) -> None:
    stream = await begun(client, upstream)
    unanswered = post(client, "/v1/slow")
    half = await within(client.post("/v1/half"))
    await until(lambda: len(upstream.seen) == 2)
    door.cut("worker 77 is gone")
    assert told(await within(stream.read())) == "the answer broke off: worker 77 is gone"
    response = await within(unanswered)
    assert (response.status, told(await response.read())) == (502, "worker 77 is gone")
    with pytest.raises(aiohttp.ClientPayloadError):
        await within(half.read())
    async with client.post("/v1/slow") as late:
        assert (late.status, late.headers["x-coral-elsewhere"]) == (503, "1")
        assert told(await late.read()) == "worker 77 is gone"
    await within(door.drain())
    await within(upstream.gone.wait(), SOON_S)


async def test_a_cut_may_come_again(client: aiohttp.ClientSession, upstream: Upstream, door: Door) -> None:
    unanswered = post(client, "/v1/slow")
    await until(lambda: upstream.seen)
    while door.in_flight:
        door.cut("worker 77 is gone")
        await asyncio.sleep(0)
    assert (await within(unanswered)).status == 502


async def test_a_cut_adds_nothing_to_a_whole_answer(
    client: aiohttp.ClientSession, upstream: Upstream, door: Door
) -> None:
    response = await begun(client, upstream)
    await upstream.chunks.put(b"data: [DONE]\n\n")
    await upstream.chunks.put(None)
    await until(lambda: door.in_flight == 0)
    door.cut("worker 77 is gone")
    assert await within(response.read()) == b"data: [DONE]\n\n"


async def test_an_engine_that_dies_in_mid_stream_is_told(
    client: aiohttp.ClientSession, upstream: Upstream, door: Door
) -> None:
    response = await begun(client, upstream)
    unanswered = post(client, "/v1/slow")
    await until(lambda: len(upstream.seen) == 2)
    await within(upstream.runner.cleanup())
    assert "the answer broke off" in told(await within(response.read()))
    answer = await within(unanswered)
    assert (answer.status, answer.headers.get("x-coral-elsewhere")) == (502, None)
    async with client.post("/v1/slow") as late:  # nothing listens any more
        assert late.status == 502
        assert "did not answer" in told(await late.read())


async def test_closing_cuts_what_is_open_and_frees_the_port(upstream: Upstream) -> None:
    door = await Door.open("127.0.0.1", upstream.url)
    port = int(door.endpoint.rpartition(":")[2])
    async with aiohttp.ClientSession(f"http://{door.endpoint}") as client:
        response = await begun(client, upstream)
        await within(door.close())
        assert "the instance has ended" in told(await within(response.read()))
    socket.create_server(("127.0.0.1", port)).close()
    await within(upstream.gone.wait(), SOON_S)


async def test_an_address_of_another_machine_is_an_error(upstream: Upstream) -> None:
    with pytest.raises(OSError, match="192"):
        await Door.open("192.0.2.1", upstream.url)


async def test_a_client_that_does_not_read_holds_up_no_end(upstream: Upstream) -> None:
    door = await Door.open("127.0.0.1", upstream.url)
    host, port = door.endpoint.split(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1)
    writer.write(b"POST /v1/stream HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    for _ in range(100):
        await upstream.chunks.put(bytes(1_000_000))
    await until(lambda: upstream.seen)
    await asyncio.sleep(0.2)  # until no buffer takes any more
    await within(door.close())
    writer.close()


@pytest.mark.parametrize(
    ("framing", "body"),
    [(b"Content-Length: 100", b"{"), (b"Transfer-Encoding: chunked", b"zz\r\n")],
    ids=["no more comes", "no chunk"],
)
async def test_an_upload_that_stalls_does_not_hold_up_a_drain(
    framing: bytes, body: bytes, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "UPLOAD_S", 0.2)
    host, _, port = door.endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n\r\n")
    await until(lambda: door.in_flight == 1)
    writer.write(body)
    await within(door.drain())
    assert (await within(reader.readline())).startswith(b"HTTP/1.1 408 ")
    writer.close()
