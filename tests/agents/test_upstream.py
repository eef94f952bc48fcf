"""Connections to an upstream that does as it is told, byte by byte."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from agents import upstream
from agents.upstream import Connection, UpstreamError, Upstreams

HANG_S = 30.0
REQUEST = b"POST /x HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"
OK = b"HTTP/1.1 200 OK\r\nX-Kept: 1\r\nContent-Length: 2\r\n\r\nok"


class Played:
    """A server that answers each request on a connection with the next part of its script.

    An answer is bytes, or a list of bytes written one by one; None hangs up.
    """

    def __init__(self, *script: bytes | list[bytes] | None) -> None:
        self.script = list(script)
        self.connections = 0
        self.place = ("", 0)
        self._serving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Played"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.place = server.sockets[0].getsockname()[:2]
        try:
            yield self
        finally:
            server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while self.script and await reader.read(len(REQUEST)):
                answer = self.script.pop(0)
                if answer is None:
                    break
                for part in [answer] if isinstance(answer, bytes) else answer:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.005)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def asked(*script: bytes | list[bytes] | None, method: str = "POST") -> AsyncIterator[Connection]:
    """A connection on which the head of the script's first answer has come."""
    async with Played(*script).serving() as played:
        connection = await Upstreams().take(played.place)
        try:
            await asyncio.wait_for(connection.ask(method, REQUEST), HANG_S)
            yield connection
        finally:
            connection.close()
            await asyncio.sleep(0)


async def whole(connection: Connection) -> bytes:
    body = b""
    while part := await asyncio.wait_for(connection.more(), HANG_S):
        body += part
    return body


@pytest.mark.parametrize(
    "answer",
    [
        OK,
        [OK[n : n + 1] for n in range(len(OK))],
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        [b"HTTP/1.1 200 OK\r\nX-Kept: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"2\r\nok\r\n", b"0\r\n\r\n"],
        b"HTTP/1.0 200 OK\r\nX-Kept: 1\r\n\r\nok",
    ],
    ids=["at once", "byte by byte", "after an interim answer", "in chunks", "to the end"],
)
async def test_an_answer_is_read(answer: bytes | list[bytes]) -> None:
    async with asked(answer) as connection:
        assert (connection.status, connection.headers["x-kept"]) == (200, "1")
        assert await whole(connection) == b"ok"


async def test_a_sink_gets_what_came_before_and_what_comes() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with asked([head + b"1\r\na\r\n", b"1\r\nb\r\n", b"1\r\nc\r\n0\r\n\r\n"]) as connection:
        got: list[bytes] = []
        await asyncio.wait_for(connection.flow(got.append), HANG_S)
        assert b"".join(got) == b"abc"
        assert connection.reusable


async def test_no_body_where_there_is_none() -> None:
    async with asked(b"HTTP/1.1 204 No Content\r\n\r\n") as connection:
        assert await whole(connection) == b""
    async with asked(b"HTTP/1.1 200 OK\r\nContent-Length: 70\r\n\r\n", OK, method="HEAD") as connection:
        assert await whole(connection) == b""
        assert connection.reusable


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (OK, 1),
        (OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), 2),
        (OK.replace(b"1.1", b"1.0"), 2),
    ],
    ids=["kept", "closed", "of HTTP/1.0"],
)
async def test_connections_are_used_again(answer: bytes, kept: int) -> None:
    async with Played(answer, answer).serving() as played, Upstreams() as upstreams:
        for _ in range(2):
            connection = await upstreams.take(played.place)
            await connection.ask("POST", REQUEST)
            assert await whole(connection) == b"ok"
            upstreams.give_back(connection)
        assert played.connections == kept


async def differs(upstreams: Upstreams, old: Connection) -> None:
    """Whoever asks now gets another connection."""
    new = await upstreams.take(old.place)
    assert new is not old
    new.close()
    await asyncio.sleep(0)


async def test_an_answer_that_was_not_read_to_its_end_ends_its_connection() -> None:
    async with Played([OK[:-1]], OK).serving() as played, Upstreams() as upstreams:
        connection = await upstreams.take(played.place)
        await connection.ask("POST", REQUEST)
        upstreams.give_back(connection)
        await differs(upstreams, connection)


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "KEEP_ALIVE_S", 0.01)
    async with Played(OK, OK).serving() as played, Upstreams() as upstreams:
        connection = await upstreams.take(played.place)
        await connection.ask("POST", REQUEST)
        await whole(connection)
        upstreams.give_back(connection)
        await asyncio.sleep(0.1)
        await differs(upstreams, connection)


async def test_a_connection_that_was_closed_while_idle_is_not_used_again() -> None:
    async with Played(OK).serving() as played, Upstreams() as upstreams:
        connection = await upstreams.take(played.place)
        await connection.ask("POST", REQUEST)
        await whole(connection)
        upstreams.give_back(connection)
        await asyncio.sleep(0.1)  # the script is over: the server hangs up
        await differs(upstreams, connection)


# --- what goes wrong -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"",
        b"HTTP/1.1 200",
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 x OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx\r\n\r\n",
    ],
)
async def test_no_answer_is_an_error(answer: bytes | None) -> None:
    with pytest.raises(UpstreamError):
        async with asked(answer):
            pass


@pytest.mark.parametrize("taking", ["more", "flow"])
async def test_half_an_answer_is_had_before_the_error(taking: str) -> None:
    async with asked(OK.replace(b"Length: 2", b"Length: 9")) as connection:
        got = [await connection.more()]
        with pytest.raises(UpstreamError, match="hung up"):
            await asyncio.wait_for(
                connection.more() if taking == "more" else connection.flow(got.append), HANG_S
            )
        assert got == [b"ok"]


async def test_nobody_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()[:2]
    with pytest.raises(UpstreamError, match=f"127.0.0.1:{place[1]}"):
        await Upstreams().take(place)
    with pytest.raises(UpstreamError):
        await Upstreams().take(("no.such.host.invalid", 1))


async def test_an_error_can_be_told_from_outside() -> None:
    async with asked(OK[:-1], OK) as connection:
        await connection.more()
        connection.fail("the instance has died")
        with pytest.raises(UpstreamError, match="the instance has died"):
            await connection.more()


async def test_what_nobody_takes_is_not_read_on_and_on() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 16000000\r\n\r\n"
    async with asked([head, *[bytes(1_000_000)] * 16]) as connection:
        await asyncio.sleep(0.5)
        assert sum(map(len, connection._ahead)) < 2 * upstream.AHEAD_BYTES + 1_000_000
        assert len(await whole(connection)) == 16_000_000
