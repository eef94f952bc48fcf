"""One HTTP exchange, passed on: a request to an upstream, its answer back as it comes.

The router and the door of an instance both stand on it. They keep their own rules (who may ask, which
upstream, what is counted) and use it so:

    async with proxy.asked(upstreams, proxy.Call("POST", url, headers, body)) as answer:  # or Unanswered
        passed = await proxy.pass_on(request, answer)
    return passed.response

`upstreams` comes from `new_session`, the server from `new_runner`: with it a client that goes away cancels
the handler, and leaving `asked` closes the upstream's connection at once, by which a vLLM aborts the request.
Bodies are passed chunk by chunk as they are read, so the events of a stream are never framed anew.
"""

import asyncio
import json
import logging
import resource
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from pydantic_core import from_json

from agents.upstream import Connection, Place, UpstreamError, Upstreams

HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers that hold for one connection only (RFC 9110, section 7.6.1), in lower case."""
_NOT_FORWARDED = HOP_BY_HOP | {
    *("host", "content-length", "expect"),  # the next hop's own
    "accept-encoding",  # compressed events would sit in a compressor's buffer
}
_ERROR_EVENT = b'data: {"error"'
"""How a vLLM whose engine died begins a stream, with status 200."""
UPLOAD_S = 60.0
"""The longest that a client may take to send a request; 16 MB in it are 2 Mbit/s."""
SLOW_BYTES = 64 * 1024
"""Unsent bytes of a body that make its upstream wait."""


class Unanswered(Exception):
    """The upstream failed before the first byte of an answer's body: nothing has reached the client yet."""


class BrokenOff(Exception):
    """The upstream's answer ended in the middle of its body."""


@dataclass(frozen=True)
class Call:
    """A request for an upstream, its body read in full; `headers` as the client sent them."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


class Answer:
    """An upstream's answer whose head and first bytes are here; `first` is empty if there is no body."""

    def __init__(self, connection: Connection, first: bytes) -> None:
        self.status = connection.status
        self.headers = end_to_end(connection.headers)
        self.first = first
        self._connection = connection

    @property
    def is_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return self.headers.get("Content-Type", "").startswith("text/event-stream")

    @property
    def is_error(self) -> bool:
        """Whether it is the instance's failure: a 5xx, or a stream that begins with the event of one."""
        if self.status >= 500 or not (self.is_stream and self.first.startswith(_ERROR_EVENT)):
            return self.status >= 500
        try:
            code = from_json(self.first.partition(b"\n\n")[0].removeprefix(b"data:"))["error"]["code"]
        except (ValueError, KeyError, TypeError):
            return True
        return not isinstance(code, int) or code >= 500

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body after `first`, as it comes.

        Raises:
            BrokenOff: it does not come to its end.
        """
        try:
            while chunk := await self._connection.more():
                yield chunk
        except UpstreamError as error:
            raise BrokenOff(str(error)) from error

    async def flow(self, sink: Callable[[bytes], None]) -> None:
        """Give the body after `first` to `sink`, chunk by chunk, without waking this task for each.

        Raises:
            BrokenOff: it does not come to its end.
        """
        try:
            await self._connection.flow(sink)
        except UpstreamError as error:
            raise BrokenOff(str(error)) from error

    def pause(self) -> None:
        """Let the upstream wait."""
        self._connection.pause()

    def resume(self) -> None:
        self._connection.resume()

    def break_off(self, why: str) -> None:
        """Let `chunks` and `flow` raise BrokenOff now, unless all of the body is here."""
        self._connection.fail(why)

    async def read(self) -> bytes:
        """The whole body, `first` included. Raises BrokenOff as `chunks` does."""
        return self.first + b"".join([chunk async for chunk in self.chunks()])


class Tap(Protocol):
    """Sees every chunk of an answer on its way, and may change it."""

    def feed(self, chunk: bytes) -> bytes:
        """What goes to the client for this chunk; empty for nothing."""

    def end(self) -> bytes:
        """What is left to say once the answer has ended."""


@dataclass(frozen=True)
class Passed:
    """An answer that was passed on. `broken` says why it did not come to its end; the client was told."""

    response: web.StreamResponse
    broken: str | None = None


# --- both ends -------------------------------------------------------------------------------------
def new_session() -> Upstreams:
    """A client for any number of upstreams, which keeps connections for a while."""
    return Upstreams()


def new_runner(app: web.Application, *, shutdown_s: float = 0.0) -> web.AppRunner:
    """A server for `app` that cancels the handler of a client that went away.

    Args:
        shutdown_s: how long `cleanup` lets open requests finish before it cuts them.
    """
    return web.AppRunner(
        app,
        handler_cancellation=True,
        auto_decompress=False,  # a compressed request is passed on as it is
        access_log=None,
        logger=_ServerLog(logging.getLogger("aiohttp.server")),
        shutdown_timeout=max(shutdown_s, 0.01),  # aiohttp takes 0 for no limit
    )


class _ServerLog(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's log, in which strangers that speak no HTTP are no errors of ours; they are answered 400."""

    def exception(self, msg: object, *args: object, **kwargs: Any) -> None:
        error = kwargs.get("exc_info")
        if isinstance(error, HttpProcessingError):
            self.info(f"{msg}: %.200s", *args, " ".join(error.message.split()))
        else:
            super().exception(msg, *args, **kwargs)


def allow_many_connections() -> None:
    """Let this process open as many files as it may: an exchange takes two, and 1,024 is a usual limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class SlowUpload(Exception):
    """A client that does not send the body it announced."""

    def __init__(self) -> None:
        super().__init__(f"body: not here within {UPLOAD_S:g} s")


async def whole_body(request: web.Request) -> bytes:
    """The body of a client's request: whoever takes longer holds up a drain.

    A malformed chunk is as one that never comes. The parser of aiohttp 3.14 tells its server, which keeps an
    answer 400 for after this request; it never tells `read`, nor anything else that is public.

    Raises:
        SlowUpload: it is not here in time.
        aiohttp.web.HTTPRequestEntityTooLarge: it is larger than the server allows.
    """
    try:
        async with asyncio.timeout(UPLOAD_S):
            return await request.read()
    except TimeoutError as error:
        raise SlowUpload from error


# --- the exchange ----------------------------------------------------------------------------------
@asynccontextmanager
async def asked(upstreams: Upstreams, call: Call) -> AsyncIterator[Answer]:
    """Send `call` and wait for the first bytes of the answer; leaving closes or returns the connection.

    Raises:
        Unanswered: no byte of an answer's body came; the request may be sent elsewhere.
    """
    place, request = _written(call)
    try:
        connection = await upstreams.ask(place, call.method, request)
    except UpstreamError as error:
        raise Unanswered(str(error)) from error
    try:
        try:
            first = await connection.more()
        except UpstreamError as error:
            raise Unanswered(str(error)) from error
        yield Answer(connection, first)
    finally:
        upstreams.give_back(connection)


async def pass_on(
    request: web.Request, answer: Answer, *, headers: Mapping[str, str] | None = None, tap: Tap | None = None
) -> Passed:
    """Pass an answer on to the client, byte for byte unless a `tap` changes it.

    A stream that breaks off ends with an event that holds an error in OpenAI's shape; any other body is cut
    short, which HTTP tells the client.

    Args:
        headers: added to the upstream's.
        tap: sees the body; what it returns is sent.
    """
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    response.headers.update(headers or {})
    if tap is not None:
        response.headers.popall("Content-Length", None)
    if "Content-Length" not in response.headers and request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    try:
        writer = await response.prepare(request)
        if answer.first:
            await response.write(answer.first if tap is None else tap.feed(answer.first))
        if response.chunked and writer is not None:
            await answer.flow(_Pipe(request, writer, answer, tap))
        else:
            async for chunk in answer.chunks():
                await response.write(chunk if tap is None else tap.feed(chunk))
        if tap is not None:
            await response.write(tap.end())
    except BrokenOff as error:
        await _tell(request, response, answer, str(error))
        return Passed(response, str(error))
    except aiohttp.ClientConnectionResetError as error:
        raise asyncio.CancelledError("the client is gone") from error  # as aiohttp's server is about to
    return Passed(response)


class _Pipe:
    """Writes the chunks of an answer straight to the client's connection: the way of every streamed token.

    aiohttp's writer does the same for one chunk after the other, each from a task that must be woken for it.
    """

    def __init__(
        self, request: web.Request, writer: AbstractStreamWriter, answer: Answer, tap: Tap | None
    ) -> None:
        self._transport = request.transport
        self._writer = writer
        self._answer = answer
        self._tap = tap
        self._draining: asyncio.Task[None] | None = None

    def __call__(self, chunk: bytes) -> None:
        if self._tap is not None:
            chunk = self._tap.feed(chunk)
        transport = self._transport
        if not chunk or transport is None or transport.is_closing():
            return  # where the client is gone, aiohttp's server is about to say so
        transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        if self._draining is None and transport.get_write_buffer_size() > SLOW_BYTES:
            self._answer.pause()
            self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError:
            return  # the client is gone
        finally:
            self._draining = None
        self._answer.resume()


async def _tell(request: web.Request, response: web.StreamResponse, answer: Answer, why: str) -> None:
    if answer.is_stream:
        await response.write(error_event(f"the answer broke off: {why}"))
    elif request.transport is not None:
        request.transport.abort()


def error_body(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """An error in the shape of the OpenAI API."""
    kind = "invalid_request_error" if status < 500 else "service_unavailable"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_event(message: str) -> bytes:
    """The last event of a stream that cannot go on; OpenAI's clients raise it."""
    return b"data: " + json.dumps(error_body(502, message)).encode() + b"\n\n"


# --- headers ---------------------------------------------------------------------------------------
def end_to_end(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    """Headers without those of one connection, and without those that `Connection` names.

    A length beside a transfer coding goes as well: the coding counts (RFC 9112, section 6.3).
    """
    named = {name.strip().lower() for line in headers.getall("Connection", ()) for name in line.split(",")}
    dropped = HOP_BY_HOP | named
    if "Transfer-Encoding" in headers:
        dropped |= {"content-length"}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)


def forwarded(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """A client's headers as the upstream gets them."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    dropped = _NOT_FORWARDED | named
    return [(name, value) for name, value in headers.items() if name.lower() not in dropped]


def _written(call: Call) -> tuple[Place, bytes]:
    """Where a call goes, and what is written there."""
    scheme, _, rest = call.url.partition("://")
    authority, slash, path = rest.partition("/")
    host, _, port = authority.rpartition(":")
    if scheme != "http" or not port.isdecimal():
        raise ValueError(f"url: {call.url!r}, expected http://host:port/...")
    lines = [f"{call.method} {slash or '/'}{path} HTTP/1.1", f"Host: {authority}"]
    lines += [f"{name}: {value}" for name, value in forwarded(call.headers)]
    lines += [f"Content-Length: {len(call.body)}", "", ""]
    return (host.strip("[]"), int(port)), "\r\n".join(lines).encode("utf-8", "surrogateescape") + call.body
