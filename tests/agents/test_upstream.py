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


# --- what is left of an answer ---------------------------------------------------------------------
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("stray", [OK, OK[:20], b"x"], ids=["another answer", "half of one", "a byte"])
@pytest.mark.parametrize("late", [False, True], ids=["at once", "while idle"])
@pytest.mark.parametrize("answer", [OK, CHUNKED + b"2\r\nok\r\n0\r\n\r\n"], ids=["length", "chunks"])
async def test_more_than_an_answer_ends_its_connection(answer: bytes, late: bool, stray: bytes) -> None:
    """What came too much would be taken for the answer to the next request."""
    wire = [answer, stray] if late else answer + stray
    async with Played(wire, OK).serving() as played, Upstreams() as upstreams:
        connection = await upstreams.ask(played.place, "POST", REQUEST)
        assert await whole(connection) == b"ok"
        upstreams.give_back(connection)
        await asyncio.sleep(0.1 if late else 0.0)
        assert not connection.reusable
        assert connection._transport.is_closing()
        again = await upstreams.ask(played.place, "POST", REQUEST)
        assert (await whole(again), played.connections) == (b"ok", 2)
        again.close()


async def test_what_nobody_took_of_an_answer_is_not_the_next_ones() -> None:
    async with Played([CHUNKED, b"1\r\na\r\n0\r\n\r\n"], OK).serving() as played, Upstreams() as upstreams:
        connection = await upstreams.ask(played.place, "POST", REQUEST)
        while not connection.reusable:  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.01)
        upstreams.give_back(connection)
        again = await upstreams.ask(played.place, "POST", REQUEST)
        assert again is connection
        assert await whole(again) == b"ok"


async def test_who_was_slow_does_not_hold_up_the_next_answer() -> None:
    async with Played(CHUNKED + b"1\r\na\r\n0\r\n\r\n", OK).serving() as played, Upstreams() as upstreams:
        connection = await upstreams.ask(played.place, "POST", REQUEST)
        await whole(connection)
        connection.pause()
        upstreams.give_back(connection)
        again = await asyncio.wait_for(upstreams.ask(played.place, "POST", REQUEST), HANG_S)
        assert await whole(again) == b"ok"


# --- a connection that was closed as it was asked --------------------------------------------------
async def used(upstreams: Upstreams, place: upstream.Place, number: int) -> list[Connection]:
    """So many connections on which one answer has come."""
    made = [await upstreams.ask(place, "POST", REQUEST) for _ in range(number)]
    for connection in made:
        assert await whole(connection) == b"ok"
    return made


async def test_a_request_that_an_idle_connection_took_along_is_sent_once_more_on_a_new_one() -> None:
    async with Played(OK, OK, None, OK).serving() as played, Upstreams() as upstreams:
        for connection in await used(upstreams, played.place, 2):
            upstreams.give_back(connection)
        again = await asyncio.wait_for(upstreams.ask(played.place, "POST", REQUEST), HANG_S)
        assert (await whole(again), played.connections) == (b"ok", 3)
        assert not played.script
        again.close()


@pytest.mark.parametrize("answer", [b"H", b"HTTP/1.1 103 x\r\n\r\n"], ids=["a byte", "an interim answer"])
async def test_after_any_byte_of_an_answer_a_request_is_not_sent_again(answer: bytes) -> None:
    script = [OK, answer, None, OK]
    async with Played(*script).serving() as played, Upstreams() as upstreams:
        (connection,) = await used(upstreams, played.place, 1)
        upstreams.give_back(connection)
        asking = asyncio.ensure_future(upstreams.ask(played.place, "POST", REQUEST))
        while len(played.script) > 2:  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        connection._transport.write(REQUEST)  # lets the server go on, and hang up
        with pytest.raises(UpstreamError, match="hung up"):
            await asyncio.wait_for(asking, HANG_S)
        assert played.connections == 1


async def test_a_request_that_a_new_connection_took_along_is_not_sent_again() -> None:
    async with Played(None, OK).serving() as played, Upstreams() as upstreams:
        with pytest.raises(UpstreamError, match="hung up"):
            await asyncio.wait_for(upstreams.ask(played.place, "POST", REQUEST), HANG_S)
        assert played.connections == 1


async def test_a_request_is_not_sent_a_third_time() -> None:
    async with Played(OK, None, None, OK).serving() as played, Upstreams() as upstreams:
        (connection,) = await used(upstreams, played.place, 1)
        upstreams.give_back(connection)
        with pytest.raises(UpstreamError):
            await asyncio.wait_for(upstreams.ask(played.place, "POST", REQUEST), HANG_S)
        assert played.connections == 2


async def test_who_gives_up_waiting_leaves_no_connection_behind() -> None:
    async with Played(b"", OK).serving() as played, Upstreams() as upstreams:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(upstreams.ask(played.place, "POST", REQUEST), 0.05)
        await asyncio.sleep(0.05)
        assert all(task.done() for task in played._serving)


# --- what goes wrong -------------------------------------------------------------------------------
async def test_what_is_said_before_a_request_answers_none() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        connection = await Upstreams().take(server.sockets[0].getsockname()[:2])
        await asyncio.sleep(0.1)
        with pytest.raises(UpstreamError, match="asked"):
            await connection.ask("POST", REQUEST)


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


async def test_many_small_parts_that_nobody_takes_cost_no_more_than_large_ones() -> None:
    """Each is noted once: to count all for each of 60,000 took a minute."""
    connection = Connection(("", 0))
    reads = Reads()
    connection.connection_made(reads)
    asking = asyncio.ensure_future(connection.ask("POST", REQUEST))
    await asyncio.sleep(0)
    connection.data_received(CHUNKED)
    await asking
    async with asyncio.timeout(HANG_S):
        for _ in range(upstream.AHEAD_BYTES + 1):
            connection.data_received(b"1\r\nx\r\n")
        assert reads.did == ["pause"]
        assert len(await connection.more()) == upstream.AHEAD_BYTES + 1
    connection.data_received(b"1\r\nx\r\n")
    assert reads.did == ["pause", "resume"]


class Reads(asyncio.Transport):
    """A connection without a network."""

    def __init__(self) -> None:
        super().__init__()
        self.did: list[str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.did.append("pause")

    def resume_reading(self) -> None:
        self.did.append("resume")
