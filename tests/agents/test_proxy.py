"""What passes through one exchange, and what happens when either end goes away."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from agents import proxy

HANG_S = 30.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """`handler` for every path, at the URL that is given."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = proxy.new_runner(app)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def proxied(upstream: Handler, tap: proxy.Tap | None = None) -> AsyncIterator[str]:
    """A proxy before `upstream`; an unanswered request is a 502."""
    async with proxy.new_session() as session, serving(upstream) as url:

        async def handle(request: web.Request) -> web.StreamResponse:
            call = proxy.Call(request.method, f"{url}{request.path}", request.headers, await request.read())
            try:
                async with proxy.asked(session, call) as answer:
                    return (await proxy.pass_on(request, answer, headers={"x-hop": "1"}, tap=tap)).response
            except proxy.Unanswered as error:
                return web.json_response(proxy.error_body(502, str(error)), status=502)

        async with serving(handle) as front:
            yield front


async def sse(request: web.Request, *events: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    for event in events:
        await response.write(f"data: {event}\n\n".encode())
        await asyncio.sleep(0)
    return response


async def test_a_request_arrives_as_it_was_sent_but_for_what_is_one_hops() -> None:
    seen: dict[str, str] = {}

    async def upstream(request: web.Request) -> web.Response:
        seen.update({name.lower(): value for name, value in request.headers.items()})
        return web.Response(body=b"got " + await request.read(), headers={"X-Kept": "1", "Keep-Alive": "9"})

    async with proxied(upstream) as url, aiohttp.ClientSession() as client:
        sent = {"X-Mine": "a", "Connection": "X-Named", "X-Named": "b", "User-Agent": "me"}
        async with client.post(f"{url}/v1/x", data=b"body", headers=sent) as answer:
            assert await answer.read() == b"got body"
            assert (answer.headers["X-Kept"], answer.headers["x-hop"]) == ("1", "1")
            assert "Keep-Alive" not in answer.headers
            assert answer.headers["Content-Length"] == "8"
    assert (seen["x-mine"], seen["user-agent"]) == ("a", "me")
    assert {"x-named", "accept-encoding"}.isdisjoint(seen)


async def test_events_come_through_while_the_stream_goes_on() -> None:
    go_on = asyncio.Event()

    async def upstream(request: web.Request) -> web.StreamResponse:
        response = await sse(request, "one")
        await go_on.wait()
        await response.write(b"data: two\n\n")
        return response

    async with proxied(upstream) as url, aiohttp.ClientSession() as client, client.post(url) as answer:
        assert await asyncio.wait_for(answer.content.readany(), HANG_S) == b"data: one\n\n"
        go_on.set()
        assert await answer.read() == b"data: two\n\n"


@pytest.mark.parametrize("streaming", [True, False], ids=["mid-stream", "before the first byte"])
async def test_a_client_that_goes_away_takes_the_upstreams_request_with_it(streaming: bool) -> None:
    here, gone = asyncio.Event(), asyncio.Event()

    async def upstream(request: web.Request) -> web.StreamResponse:
        try:
            response = await sse(request, "one") if streaming else web.Response()
            here.set()
            await asyncio.sleep(HANG_S)
        except asyncio.CancelledError:
            gone.set()
            raise
        return response

    async with proxied(upstream) as url, aiohttp.ClientSession() as client:
        asking = asyncio.create_task(client.post(url))
        await asyncio.wait_for(here.wait(), HANG_S)
        if streaming:
            (await asking).close()
        else:
            asking.cancel()
        await asyncio.wait_for(gone.wait(), 3.0)


async def test_what_died_before_its_first_byte_is_unanswered() -> None:
    async def upstream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"")  # The head goes out alone
        assert request.transport is not None
        request.transport.abort()
        return response

    async with proxied(upstream) as url, aiohttp.ClientSession() as client, client.post(url) as answer:
        assert answer.status == 502
        assert (await answer.json())["error"]["type"] == "service_unavailable"


async def test_nobody_listening_is_unanswered() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    async with proxy.new_session() as session:
        with pytest.raises(proxy.Unanswered):
            async with proxy.asked(session, proxy.Call("GET", f"http://127.0.0.1:{port}/", {}, b"")):
                pass


async def test_a_stream_that_breaks_off_ends_with_an_error_event() -> None:
    async def upstream(request: web.Request) -> web.StreamResponse:
        response = await sse(request, "one")
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.abort()
        return response

    async with proxied(upstream) as url, aiohttp.ClientSession() as client, client.post(url) as answer:
        events = (await answer.read()).split(b"\n\n")
    assert events[0] == b"data: one"
    assert events[1].startswith(b'data: {"error"')


async def test_any_other_body_that_breaks_off_is_cut_short() -> None:
    async def upstream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.abort()
        return response

    async with proxied(upstream) as url, aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.ClientError):
            async with client.post(url) as answer:
                await answer.read()


async def test_a_tap_sees_and_changes_the_body() -> None:
    class Upper:
        def feed(self, chunk: bytes) -> bytes:
            return chunk.upper()

        def end(self) -> bytes:
            return b"the end"

    async def upstream(request: web.Request) -> web.StreamResponse:
        return await sse(request, "one", "two")

    async with proxied(upstream, Upper()) as url, aiohttp.request("POST", url) as answer:
        assert await answer.read() == b"DATA: ONE\n\nDATA: TWO\n\nthe end"


async def test_a_slow_client_makes_the_upstream_wait() -> None:
    sent = 0

    async def upstream(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = await sse(request, "begin")
        for _ in range(1000):
            await response.write(bytes(64_000))
            sent += 64_000
        return response

    async with proxied(upstream) as url, aiohttp.request("POST", url, read_bufsize=1000) as answer:
        await answer.content.readexactly(13)
        await asyncio.sleep(0.5)
        assert sent < 32_000_000, "half of it would lie in this process"
        assert len(await answer.read()) == 64_000_000


# --- no HTTP ---------------------------------------------------------------------------------------
@asynccontextmanager
async def saying(wire: bytes) -> AsyncIterator[str]:
    """An upstream that answers every request with these bytes, and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(wire)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}/"


async def test_an_answer_by_chunks_is_not_passed_on_with_a_length() -> None:
    """Whoever believes the length would take the rest for another answer."""
    wire = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    )
    async with (
        saying(wire) as url,
        proxy.new_session() as session,
        proxy.asked(session, proxy.Call("POST", url, {}, b"")) as answer,
    ):
        assert "Content-Length" not in answer.headers
        assert await answer.read() == b"hello"


@pytest.mark.parametrize(
    "field",
    [
        b"A: b\nSet-Cookie: evil",
        b"A: b\0",
        b": b",
        b"Content-Length : 2",
        b"Content-Length: -2",
        b"A: b\r\n c",
    ],
)
async def test_a_head_that_cannot_be_passed_on_is_no_answer(field: bytes) -> None:
    async with saying(b"HTTP/1.1 200 OK\r\n" + field + b"\r\n\r\n{}") as url, proxy.new_session() as session:
        with pytest.raises(proxy.Unanswered, match="no HTTP"):
            async with proxy.asked(session, proxy.Call("POST", url, {}, b"")):
                pass


async def to_raw(url: str, wire: bytes) -> bytes:
    """All that a server says to these bytes."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(wire)
    said = await asyncio.wait_for(reader.read(), HANG_S)
    writer.close()
    return said


async def well(request: web.Request) -> web.Response:
    return web.Response()


async def ill(request: web.Request) -> web.Response:
    raise RuntimeError("a fault of ours")


@pytest.mark.parametrize(
    "wire",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\nx",
        b"GET / HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
    ],
)
async def test_what_strangers_say_is_no_error_of_ours(wire: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving(well) as url:
        assert (await to_raw(url, wire)).split(b" ", 2)[1] == b"400"
    assert [(r.levelname, r.exc_info, "\n" in r.getMessage()) for r in caplog.records] == [
        ("INFO", None, False)
    ]


async def test_an_error_of_ours_is_one(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ill) as url:
        wire = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert (await to_raw(url, wire)).split(b" ", 2)[1] == b"500"
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert "a fault of ours" in caplog.text
