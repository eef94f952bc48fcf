"""HTTP/1.1 to an upstream, for exchanges that are passed on: requests whole, answers as they come.

A client of our own, since what a streamed token costs a router decides how many routers a fleet needs: what
arrives is handed on within the callback that read it, where aiohttp's client wakes a task for it
(docs/decisions/2026-11-29-own-client-for-the-proxy.md). It knows as much of HTTP as engines and doors speak,
and uses connections again. No TLS, redirects, compression or proxies.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

from multidict import CIMultiDict

from agents.framing import Framing, HeadReader, framing_of

CONNECT_S = 30.0
"""A guard only. The kernel gives up sooner (below): it does not take a late loop of ours for a dead peer."""
KEEP_ALIVE_S = 3.0
"""Idle connections are closed sooner than uvicorn's 5 s, so that one seldom dies under a request."""
AHEAD_BYTES = 64 * 1024
"""What is read ahead of whoever takes an answer."""
_OPTIONS = {
    "TCP_NODELAY": 1,
    "TCP_SYNCNT": 1,  # no answer to a second SYN: 3 s until nobody is there
    "TCP_KEEPIDLE": 15,  # a machine that vanished without a word ends its connections within 30 s
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 30_000,  # in ms, the others in s
}
"""How long the kernel waits for a peer; those that a platform has."""

Sink = Callable[[bytes], None]
Place = tuple[str, int]
"""Host and port."""


class UpstreamError(Exception):
    """An upstream that cannot be reached, hung up, or does not speak HTTP."""


# --- a connection ------------------------------------------------------------------------------------
class Connection(asyncio.Protocol):
    """One connection, for one exchange at a time: `ask`, then `more` until it is over, or `flow`.

    Whatever goes wrong is an UpstreamError of the one that waits. What came before is had first.
    """

    _transport: asyncio.Transport

    def __init__(self, place: Place) -> None:
        self.place = place
        self.status = 0
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.reusable = False
        """The answer is all here, and another request may follow."""
        self.raced = False
        """It was used before, and no byte of this answer has come. Where it dies now, it may have been closed
        while it was idle."""
        self._method = ""
        self._heads: HeadReader | None = None
        """Reads the head, once there was a request."""
        self._keeps_alive = False
        self._framing: Framing | None = None
        """Of the body, once the head is here."""
        self._ahead: deque[bytes] = deque()
        self._ahead_bytes = 0
        self._sink: Sink | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: str | None = None
        self._paused = False

    # --- for whoever asks ----------------------------------------------------------------------------
    async def ask(self, method: str, request: bytes) -> None:
        """Send a request and wait for the head of its answer: `status` and `headers`.

        Where none comes, or nobody waits for it any more, the connection is closed.
        """
        self.raced = self._heads is not None
        self._method, self._heads, self._framing, self.reusable = method, HeadReader(), None, False
        self._taken()  # whoever had the last answer may have left some of it, and paused
        self._transport.write(request)
        try:
            while self._framing is None:
                await self._news()
        except BaseException:
            self.close()
            raise

    async def more(self) -> bytes:
        """The next bytes of the body, as they come; none at its end."""
        while not self._ahead and not self.ended:
            await self._news()
        part = b"".join(self._ahead)
        self._taken()
        return part

    async def flow(self, sink: Sink) -> None:
        """Give the rest of the body to `sink`, within the callback that reads it; returns at its end."""
        if self._ahead:
            sink(await self.more())
        self._sink = sink
        try:
            while not self.ended:
                await self._news()
        finally:
            self._sink = None

    @property
    def ended(self) -> bool:
        """Whether all of the body has come."""
        return self._framing is not None and self._framing.ended

    def fail(self, why: str) -> None:
        """Let whoever waits for more have an error."""
        if not self.ended:
            self._error = self._error or why
            self._wake()

    def pause(self) -> None:
        """Read nothing more for now: whoever takes the body is slow."""
        if not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """End it at once, by which an engine that still answers stops."""
        self._transport.abort()

    def _taken(self) -> None:
        self._ahead.clear()
        self._ahead_bytes = 0
        self.resume()

    async def _news(self) -> None:
        if self._error is not None:
            raise UpstreamError(self._error)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- for the loop --------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one, though not by inheritance

    def data_received(self, data: bytes) -> None:
        try:
            framing, data = (self._framing, data) if self._framing else self._begin(data)
            if framing is not None:
                self._take(framing, data)
        except ValueError as error:
            self.fail(f"no HTTP: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        if self._framing is not None and exc is None and self._framing.hung_up():
            self._wake()
        else:
            self.fail(str(exc or "the upstream hung up"))

    def _begin(self, data: bytes) -> tuple[Framing | None, bytes]:
        """Read the head, once it is whole: the body's framing, and what has come of it."""
        if self._heads is None:
            raise ValueError("it speaks before it is asked")
        self.raced = False
        found = self._heads.feed(data)
        if found is None:
            return None, b""
        head, rest = found
        self.status, self.headers, self._keeps_alive = head.status, head.headers, head.keeps_alive
        self._framing = framing_of(head, self._method)
        self._wake()
        return self._framing, rest

    def _take(self, framing: Framing, data: bytes) -> None:
        part = framing.feed(data)
        if part and self._sink is not None:
            self._sink(part)
        elif part:
            self._ahead.append(part)
            self._ahead_bytes += len(part)
            if self._ahead_bytes > AHEAD_BYTES:
                self.pause()
            self._wake()
        if framing.ended:
            self.reusable = self._keeps_alive and not framing.overrun
            if framing.overrun:  # now or while idle: it would be taken for the next answer
                self.close()
            self._wake()


# --- connections -------------------------------------------------------------------------------------
class Upstreams:
    """Connections to any number of upstreams, used again while they are fresh."""

    def __init__(self) -> None:
        self._idle: dict[Place, dict[Connection, asyncio.TimerHandle]] = {}
        """The one used last is the last."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def ask(self, place: Place, method: str, request: bytes) -> Connection:
        """Send a request: a connection on which the head of its answer has come, to be given back.

        Where an idle connection dies under it, it is sent once more on a new one: that says nothing about the
        upstream, and as no byte of an answer came, nothing of one is lost.

        Raises:
            UpstreamError: nobody is there, or does not answer.
        """
        connection = await self.take(place)
        try:
            await connection.ask(method, request)
        except UpstreamError:
            if not connection.raced:
                raise
            connection = await _new(place)
            await connection.ask(method, request)
        return connection

    async def take(self, place: Place) -> Connection:
        """A connection that nobody else has.

        Raises:
            UpstreamError: nobody is there.
        """
        while idle := self._idle.get(place):
            connection, expiry = idle.popitem()
            expiry.cancel()
            if connection.reusable:
                return connection
        self._idle.pop(place, None)
        return await _new(place)

    def give_back(self, connection: Connection) -> None:
        """Done with it. It is closed where the answer was not taken to its end."""
        if not connection.reusable:
            connection.close()
            return
        expiry = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._expire, connection)
        self._idle.setdefault(connection.place, {})[connection] = expiry

    def _expire(self, connection: Connection) -> None:
        del self._idle[connection.place][connection]
        connection.close()

    async def close(self) -> None:
        """Close what is idle."""
        for idle in self._idle.values():
            for connection, expiry in idle.items():
                expiry.cancel()
                connection.close()
        self._idle.clear()


async def _new(place: Place) -> Connection:
    try:
        async with asyncio.timeout(CONNECT_S):
            return await _connect(place)
    except OSError as error:  # a TimeoutError is one
        said = error.strerror or type(error).__name__
        raise UpstreamError(f"{place[0]}:{place[1]}: {said}") from error


async def _connect(place: Place) -> Connection:
    loop = asyncio.get_running_loop()
    family, address = await _address(place)
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS.items():
            if hasattr(socket, name):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        await loop.sock_connect(made, address)
        _, connection = await loop.create_connection(partial(Connection, place), sock=made)
    except BaseException:
        made.close()
        raise
    return connection


async def _address(place: Place) -> tuple[int, Any]:
    """The family and address of a host; a name is looked up by a thread, a number is not."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, place[0])
        except OSError:
            continue
        return family, place
    found = await asyncio.get_running_loop().getaddrinfo(*place, type=socket.SOCK_STREAM)
    return found[0][0], found[0][4]
