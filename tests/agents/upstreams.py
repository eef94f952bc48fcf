"""Small HTTP servers in place of an engine, and what tests of doors ask of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

EVENTS = "text/event-stream; charset=utf-8"


class Upstream:
    """Serves `/v1/*` as each test wants it, and notes what came."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        """Method, raw path, headers and body of each request."""
        self.chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        """What a stream says next; None ends it."""
        self.gone = asyncio.Event()
        """A client went away in the middle of an answer."""
        self.app = web.Application()
        self.app.add_routes(
            [
                web.get("/health", self._echo),
                web.post("/v1/stream", self._stream),
                web.post("/v1/slow", self._slow),
                web.post("/v1/half", self._half),
                web.route("*", "/{path:.*}", self._echo),
            ]
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Upstream"]:
        self.runner = web.AppRunner(
            self.app, handler_cancellation=True, auto_decompress=False, shutdown_timeout=0.01
        )
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await self.runner.cleanup()

    async def _note(self, request: web.Request) -> None:
        self.seen.append((request.method, request.raw_path, dict(request.headers), await request.read()))

    async def _echo(self, request: web.Request) -> web.Response:
        await self._note(request)
        return web.Response(body=b"\x00\xff echo", status=203, headers={"x-of-upstream": "yes"})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        await self._note(request)
        response = web.StreamResponse(headers={"content-type": EVENTS})
        await response.prepare(request)
        try:
            while (chunk := await self.chunks.get()) is not None:
                await response.write(chunk)
        except asyncio.CancelledError:
            self.gone.set()
            raise
        return response

    async def _slow(self, request: web.Request) -> web.Response:
        await self._note(request)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.gone.set()
            raise
        return web.Response()

    async def _half(self, request: web.Request) -> web.StreamResponse:
        """Half of an answer that is no stream."""
        response = web.StreamResponse(headers={"content-length": "10", "content-type": "application/json"})
        await response.prepare(request)
        await response.write(b"12345")
        await asyncio.Event().wait()
        return response
