"""One HTTP exchange, passed on: a request to an upstream, its answer back as it comes.

The router and the door of an instance both stand on it. They keep their own rules (who may ask, which
upstream, what is counted) and use it so:

    async with proxy.asked(session, proxy.Call("POST", url, headers, body)) as answer:  # may raise Unanswered
        passed = await proxy.pass_on(request, answer)
    return passed.response

`session` comes from `new_session`, the server from `new_runner`: with it a client that goes away cancels the
handler, and leaving `asked` closes the upstream's connection at once, by which a vLLM aborts the request.
Bodies are passed chunk by chunk as they are read, so the events of a stream are never framed anew.
"""

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from pydantic_core import from_json
from yarl import URL

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
CONNECT_S = 30.0
"""A guard only. The kernel gives up sooner (below): it does not take a late loop of ours for a dead peer."""
KEEP_ALIVE_S = 3.0
"""Idle connections are closed sooner than uvicorn's 5 s, so that one seldom dies under a request."""
_DEAD_PEER = {
    "TCP_SYNCNT": 1,  # no answer to a second SYN: 3 s until nobody is there
    "TCP_KEEPIDLE": 15,  # a machine that vanished without a word ends its connections within 30 s
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 30_000,  # in ms, the others in s
}
"""How long the kernel waits for a peer, on Linux."""


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

    def __init__(self, response: aiohttp.ClientResponse, first: bytes) -> None:
        self.status = response.status
        self.headers = end_to_end(response.headers)
        self.first = first
        self._response = response

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
        content = self._response.content
        try:
            while chunk := await content.readany():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            raise BrokenOff(_text(error)) from error

    def break_off(self, why: str) -> None:
        """Let `chunks` raise BrokenOff now, unless all of the body is here."""
        if not self._response.content.is_eof():
            self._response.content.set_exception(aiohttp.ClientPayloadError(why))

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
def new_session() -> aiohttp.ClientSession:
    """A client for any number of upstreams: no cookies, and no limit but on the time to connect."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, socket_factory=_socket),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
    )


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
        shutdown_timeout=max(shutdown_s, 0.01),  # aiohttp takes 0 for no limit
    )


def allow_many_connections() -> None:
    """Let this process open as many files as it may: an exchange takes two, and 1,024 is a usual limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# --- the exchange ----------------------------------------------------------------------------------
@asynccontextmanager
async def asked(session: aiohttp.ClientSession, call: Call) -> AsyncIterator[Answer]:
    """Send `call` and wait for the first bytes of the answer; leaving closes or returns the connection.

    Raises:
        Unanswered: no byte of an answer's body came; the request may be sent elsewhere.
    """
    response = None
    try:
        try:
            response = await session.request(
                call.method,
                URL(call.url, encoded=True),
                data=call.body,
                headers=forwarded(call.headers),
                allow_redirects=False,
            )
            first = await response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise Unanswered(_text(error)) from error
        yield Answer(response, first)
    finally:
        if response is not None:
            response.release()  # closes the connection where the body was not read to its end


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
    try:
        await response.prepare(request)
        if answer.first:
            await response.write(answer.first if tap is None else tap.feed(answer.first))
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
def end_to_end(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Headers without those of one connection, and without those that `Connection` names."""
    named = {name.strip().lower() for line in headers.getall("Connection", ()) for name in line.split(",")}
    dropped = HOP_BY_HOP | named
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)


def forwarded(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """A client's headers as the upstream gets them."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    dropped = _NOT_FORWARDED | named
    return [(name, value) for name, value in headers.items() if name.lower() not in dropped]


def _socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _DEAD_PEER.items():
        if hasattr(socket, name):  # Linux's
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
