"""The simulated engine's `/v1` door: an HTTP server inside the agent's process, on a free port.

While it drains it sends latecomers elsewhere (`agents.elsewhere`).
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Self
from uuid import uuid4

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agents.elsewhere import CODE, DRAINING, ELSEWHERE, STATUS, InFlight
from agents.openai_api import ApiError, Ask, Voice, models, parse
from agents.simulated_steps import Steps
from schemas.problems import LatencyTable

CLIENT_CLOSED = 499
"""Nobody reads it; the access log of a proxy shows it (nginx's code)."""
WORDS = ("coral", "reef", "wave", "tide", "sand", "fish", "kelp", "shell")


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the node agent's; uvicorn would take them over for as long as it serves."""
        yield


class Door:
    """Serves one model at `endpoint` (host:port) until it is drained or closed."""

    def __init__(self, model: str, latency: LatencyTable, listener: socket.socket) -> None:
        self.endpoint = f"{listener.getsockname()[0]}:{listener.getsockname()[1]}"
        self._model = model
        self._steps = Steps(latency)
        self._draining = False
        self._in_flight = InFlight()
        app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._completion, methods=["POST"]),
            ],
            exception_handlers={ApiError: _as_answer},
        )
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none", http="h11")
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))

    @classmethod
    def open(cls, model: str, latency: LatencyTable, address: str) -> Self:
        """Bind a free port of `address`; connections are taken from then on.

        Raises:
            OSError: the address is not this machine's.
        """
        return cls(model, latency, socket.create_server((address, 0), backlog=1024))

    @property
    def in_flight(self) -> int:
        return self._in_flight.count

    async def drain(self, linger_s: float) -> None:
        """Refuse latecomers, let everything in flight finish, free the port.

        Args:
            linger_s: how long an emptied door goes on refusing, for routers to look away.
        """
        self._draining = True
        await self._in_flight.none()
        await asyncio.sleep(linger_s)
        # Not forced: the last bytes may still be on their way to a slow reader.
        self._server.should_exit = True
        await asyncio.wait({self._serving})

    async def close(self) -> None:
        """Free the port now; what is still open is cut."""
        self._server.should_exit = self._server.force_exit = True
        for connection in list(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await self._serving

    async def _health(self, request: Request) -> Response:  # noqa: ARG002  the signature is Starlette's
        return Response(status_code=STATUS, headers=ELSEWHERE) if self._draining else Response()

    async def _models(self, request: Request) -> Response:  # noqa: ARG002
        return JSONResponse(models(self._model, int(time.time())))

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, chat=True)

    async def _completion(self, request: Request) -> Response:
        return await self._answer(request, chat=False)

    async def _answer(self, request: Request, *, chat: bool) -> Response:
        if self._draining:
            raise ApiError(STATUS, DRAINING, code=CODE)
        ask = parse(await request.body(), chat=chat)
        if ask.model != self._model:
            message = f"model: {ask.model!r} is not served here, expected {self._model!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
        voice = Voice(ask, f"{'chatcmpl' if chat else 'cmpl'}-{uuid4().hex}", int(time.time()))
        if ask.stream:
            return StreamingResponse(self._stream(ask, voice), media_type="text/event-stream")
        texts = []
        async for text in self._tokens(ask):
            if await request.is_disconnected():
                return Response(status_code=CLIENT_CLOSED)
            texts.append(text)
        return JSONResponse(voice.whole(texts))

    async def _stream(self, ask: Ask, voice: Voice) -> AsyncIterator[bytes]:
        for chunk in voice.first():
            yield chunk
        sent = 0
        async for text in self._tokens(ask):
            sent += 1
            yield voice.token(text, last=sent == ask.max_tokens)
        for chunk in voice.close(sent):
            yield chunk

    async def _tokens(self, ask: Ask) -> AsyncIterator[str]:
        with self._in_flight.one():
            async with self._steps.request(ask.prompt_tokens):
                for number in range(ask.max_tokens):
                    await self._steps.token()
                    yield WORDS[number % len(WORDS)] + " "


async def _as_answer(request: Request, error: Exception) -> Response:  # noqa: ARG001
    if not isinstance(error, ApiError):
        raise error
    return JSONResponse(error.body, error.status, headers=ELSEWHERE if error.status == STATUS else None)
