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

from agents.framing import ByChunks, ByLength, Framing, ToTheEnd

CONNECT_S = 30.0
"""A guard only. The kernel gives up sooner (below): it does not take a late loop of ours for a dead peer."""
KEEP_ALIVE_S = 3.0
"""Idle connections are closed sooner than uvicorn's 5 s, so that one seldom dies under a request."""
HEAD_BYTES = 64 * 1024
"""A longer head is no HTTP."""
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
        self._method = ""
        self._head = b""
        self._keeps_alive = False
        self._framing: Framing | None = None
        """Of the body, once the head is here."""
        self._ahead: deque[bytes] = deque()
        self._sink: Sink | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: str | None = None
        self._paused = False

    # --- for whoever asks ----------------------------------------------------------------------------
    async def ask(self, method: str, request: bytes) -> None:
        """Send a request and wait for the head of its answer: `status` and `headers`."""
        self._method, self._framing, self.reusable = method, None, False
        self._transport.write(request)
        while self._framing is None:
            await self._news()

    async def more(self) -> bytes:
        """The next bytes of the body, as they come; none at its end."""
        while not self._ahead and not self.ended:
            await self._news()
        part = b"".join(self._ahead)
        self._ahead.clear()
        self.resume()
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
        head, found, rest = (self._head + data).partition(b"\r\n\r\n")
        if not found:
            self._head = head
            if len(head) > HEAD_BYTES:
                raise ValueError("a head has no end")
            return None, b""
        self._head = b""
        first, *lines = head.decode("utf-8", "surrogateescape").split("\r\n")
        version, status, *_ = first.split(" ", 2)
        if not version.startswith("HTTP/1."):
            raise ValueError(first[:80])
        self.status = int(status)
        if self.status < 200:  # an interim answer; the one that counts follows
            return self._begin(rest)
        self.headers = CIMultiDict(map(_field, lines))
        kept = self.headers.get("Connection", "").lower()
        self._keeps_alive = "close" not in kept if version == "HTTP/1.1" else "keep-alive" in kept
        self._framing = self._framing_of()
        self._wake()
        return self._framing, rest

    def _framing_of(self) -> Framing:
        length = self.headers.get("Content-Length")
        if self._method == "HEAD" or self.status in {204, 304}:
            return ByLength(0)
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            return ByChunks()
        return ToTheEnd() if length is None else ByLength(int(length))

    def _take(self, framing: Framing, data: bytes) -> None:
        part = framing.feed(data)
        if part and self._sink is not None:
            self._sink(part)
        elif part:
            self._ahead.append(part)
            if sum(map(len, self._ahead)) > AHEAD_BYTES:
                self.pause()
            self._wake()
        if framing.ended:
            self.reusable = self._keeps_alive
            self._wake()


def _field(line: str) -> tuple[str, str]:
    name, found, value = line.partition(":")
    if not found:
        raise ValueError(f"header {line[:80]!r}")
    return name, value.strip()


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
        try:
            async with asyncio.timeout(CONNECT_S):
                return await _connect(place)
        except OSError as error:  # a TimeoutError is one
            said = error.strerror or type(error).__name__
            raise UpstreamError(f"{place[0]}:{place[1]}: {said}") from error

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
