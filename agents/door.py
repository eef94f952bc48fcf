"""The instance's `/v1` door at its head's guard: the only way in from other machines.

vLLM listens on loopback, in development mode, where anything can be asked of it. The door shows `/v1/*`,
`/health` and `/metrics` of it and nothing else, byte for byte and chunk by chunk. It tells clients what vLLM
does not: that the instance drains (`agents.elsewhere`), or that it has died under their request.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote

from aiohttp import web

from agents.elsewhere import CODE, DRAINING, ELSEWHERE, STATUS, InFlight
from agents.proxy import (
    Answer,
    Call,
    SlowUpload,
    Unanswered,
    asked,
    error_body,
    new_runner,
    new_session,
    pass_on,
    whole_body,
)

MAX_BODY_BYTES = 256 * 1024 * 1024
"""Above any limit that a router would set; a bound on memory only."""
BACKLOG = 1024
HEALTH, METRICS = "/health", "/metrics"


@dataclass(eq=False)
class _Open:
    """A request in flight: how to end it, before its answer has begun and after."""

    patience: asyncio.Timeout
    answer: Answer | None = None

    def cut(self, why: str) -> None:
        if self.answer is not None:
            self.answer.break_off(why)
        elif not self.patience.expired():
            self.patience.reschedule(0.0)


class Door:
    """Serves at `endpoint` (host:port) what an engine serves on loopback, until it is closed."""

    def __init__(self, upstream: str) -> None:
        self.endpoint = ""
        self._upstream = upstream
        self._session = new_session()
        self._in_flight = InFlight()
        self._open: set[_Open] = set()
        self._shut: str | None = None
        """Why nothing new is taken."""
        self._cut = "the instance has ended"
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = new_runner(app)

    @classmethod
    async def open(cls, address: str, upstream: str) -> Self:
        """Listen on a free port of `address`.

        Args:
            address: of this node, as routers reach it.
            upstream: the engine's base URL, such as `http://127.0.0.1:41234`.

        Raises:
            OSError: the address is not this machine's.
        """
        door = cls(upstream)
        await door._runner.setup()
        try:
            await web.TCPSite(door._runner, address, 0, backlog=BACKLOG).start()
        except OSError:
            await door.close()
            raise
        port = door._runner.addresses[0][1]
        door.endpoint = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        return door

    @property
    def in_flight(self) -> int:
        """Requests accepted and not finished."""
        return self._in_flight.count

    async def drain(self) -> None:
        """Answer newcomers 503 with `x-coral-elsewhere: 1` from now on; return when nothing is in flight.

        The door stays and goes on refusing until it is closed. May be called twice.
        """
        self._shut = self._shut or DRAINING
        await self._in_flight.none()

    def cut(self, reason: str) -> None:
        """End every open request with an error now, and answer newcomers as in `drain`.

        A stream gets an error event and its end, an answer not begun a 502 in OpenAI's shape, an answer
        begun and not streamed a broken connection.
        """
        self._shut = self._cut = reason
        for request in self._open:
            request.cut(reason)

    async def close(self) -> None:
        """Free the port and every connection; what is still open is cut."""
        self.cut(self._cut)
        await self._runner.cleanup()
        await self._session.close()

    # --- a request ---------------------------------------------------------------------------------
    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if not _shown(request.raw_path):
            return _error(404, f"there is no {request.path} here, expected /v1/...")
        if request.path == METRICS:  # to the end: what finishes in a drain counts, too
            return await self._exchange(request)
        if self._shut is not None:
            return _error(STATUS, self._shut, code=CODE, headers=ELSEWHERE)
        with self._in_flight.one():
            return await self._exchange(request)

    async def _exchange(self, request: web.Request) -> web.StreamResponse:
        try:
            async with asyncio.timeout(None) as patience:
                with self._cuttable(patience) as this:
                    body = await whole_body(request)
                    call = Call(request.method, self._upstream + request.raw_path, request.headers, body)
                    async with asked(self._session, call) as answer:
                        this.answer = answer
                        return (await pass_on(request, answer)).response
        except SlowUpload as error:
            return _error(408, str(error))
        except TimeoutError:
            return _error(502, self._cut)
        except Unanswered as error:
            return _error(502, f"the engine did not answer: {error}")

    @contextmanager
    def _cuttable(self, patience: asyncio.Timeout) -> Iterator[_Open]:
        this = _Open(patience)
        self._open.add(this)
        try:
            yield this
        finally:
            self._open.remove(this)


def _shown(raw_path: str) -> bool:
    """Whether a path lies under /v1 however anybody reads it, or is for whoever watches."""
    path = unquote(raw_path.partition("?")[0])
    under_v1 = path.startswith("/v1/") and ".." not in path.split("/") and "\\" not in path
    return under_v1 or path in {HEALTH, METRICS}


def _error(
    status: int, message: str, *, code: str | None = None, headers: dict[str, str] | None = None
) -> web.Response:
    return web.json_response(error_body(status, message, code=code), status=status, headers=headers)
