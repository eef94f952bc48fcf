"""What the double of vLLM answers over HTTP, and the processes that its main one has below it.

Used by `agents.vllm_double`, which says what it is true to.
"""

import argparse
import asyncio
import hashlib
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from aiohttp import web

from agents import vllm_double_ranks as ranks
from agents.openai_api import ApiError, Ask, Voice, models, parse

WORDS = ("coral", "reef", "wave", "tide", "sand", "fish", "kelp", "shell")


def dial(name: str, default: float) -> float:
    """A setting of the double, from its environment."""
    return float(os.environ.get(f"VLLM_DOUBLE_{name}", default))


# --- the processes below -------------------------------------------------------------------------------
class RankError(RuntimeError):
    """A step got no answer within the execute time-out."""


class Ranks:
    """The processes below the main one."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.right = True
        self._given = given
        self._top: Process | None = None
        self._step: asyncio.Task[None] | None = None
        self._stale = False
        """The answer to a check whose time was up is still to be read."""
        self._within_s = float(os.environ.get("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "300"))

    async def start(self) -> None:
        """Start them, and return once all ranks have met."""
        given = self._given
        meet = ["--address", given.master_addr, "--port", str(given.master_port)]
        meet += ["--partition", os.environ.get("VLLM_PP_LAYER_PARTITION", "")]
        role = ["other"] if given.node_rank else ["head", "--others", str(given.nnodes - 1)]
        command = ranks.titled(f"Worker_PP{given.node_rank}", *role, *meet)
        if not given.headless:
            command = ranks.titled("EngineCore", "core", sys.executable, *command)
        self._top = await asyncio.create_subprocess_exec(
            *command, executable=sys.executable, stdin=PIPE, stdout=PIPE
        )
        self.right = (await self._line()) == b"right\n"

    async def ended(self) -> None:
        """Wait until the uppermost of them has ended."""
        assert self._top is not None  # noqa: S101  started
        await self._top.wait()

    async def end(self, number: int = signal.SIGTERM) -> None:
        """Signal them, and wait until the uppermost has ended."""
        if self._top is not None and self._top.returncode is None:
            self._top.send_signal(number)
            await self._top.wait()

    async def step(self, within_s: float | None = None) -> None:
        """Do a step with all ranks, or join the one that runs.

        Args:
            within_s: of a check; vLLM takes its late answer for that of the next step, and dies of it.

        Raises:
            RankError: one did not answer in time, or not to what it was asked.
        """
        if self._step is None or self._step.done():
            if self._stale and within_s is None:
                raise RankError("an answer to check_health came for a step")
            self._step = asyncio.create_task(self._all_ranks())
        try:
            await asyncio.wait_for(asyncio.shield(self._step), within_s or self._within_s)
        except TimeoutError as error:
            self._stale = within_s is not None
            raise RankError("RPC call to sample_tokens timed out.") from error

    async def _all_ranks(self) -> None:
        assert self._top is not None and self._top.stdin is not None  # noqa: S101, PT018  a pipe
        self._top.stdin.write(b"step\n")
        await self._line()

    async def _line(self) -> bytes:
        assert self._top is not None and self._top.stdout is not None  # noqa: S101, PT018  a pipe
        line = await self._top.stdout.readline()
        if not line:
            await asyncio.Event().wait()  # `ended` tells
        return line


# --- HTTP ------------------------------------------------------------------------------------------------
class Api:
    """The head's HTTP server."""

    def __init__(self, given: argparse.Namespace, below: Ranks) -> None:
        self.draining = False
        self._running = 0
        self.dead = asyncio.Event()
        self._model: str = given.served_model_name
        self._ranks = below
        self._token_s = dial("TOKEN_S", 0.01)
        self._token: asyncio.Task[None] | None = None
        self._counters = {"prompt": 0, "generation": 0, "finished": 0}
        self._going, self.idle = asyncio.Event(), asyncio.Event()
        self._going.set()
        self.idle.set()

    def application(self) -> web.Application:
        app = web.Application(middlewares=[_errors])
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/v1/models", self._models),
                web.post("/tokenize", self._tokenize),
                web.post("/v1/completions", self._completion),
                web.post("/v1/chat/completions", self._chat),
            ]
        )
        if os.environ.get("VLLM_SERVER_DEV_MODE") == "1":
            app.add_routes(
                [
                    web.post("/collective_rpc", self._collective_rpc),
                    web.post("/pause", self._pause),
                    web.post("/resume", self._resume),
                    web.get("/is_paused", self._is_paused),
                ]
            )
        return app

    async def _health(self, request: web.Request) -> web.Response:  # noqa: ARG002  the signature is aiohttp's
        return web.Response(status=503 if self.dead.is_set() else 200)

    async def _models(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return web.json_response(models(self._model, int(time.time())))

    async def _metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002
        label = f'{{engine="0",model_name="{self._model}"}}'
        finished = f'{{engine="0",finished_reason="length",model_name="{self._model}"}}'
        lines = [
            f"vllm:num_requests_running{label} {float(self._running)}",
            f"vllm:num_requests_waiting{label} 0.0",
            f"vllm:kv_cache_usage_perc{label} 0.0",
            f"vllm:prompt_tokens_total{label} {float(self._counters['prompt'])}",
            f"vllm:generation_tokens_total{label} {float(self._counters['generation'])}",
            f"vllm:request_success_total{finished} {float(self._counters['finished'])}",
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def _tokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"tokens": _ids((await request.json())["prompt"])})

    # --- development mode ------------------------------------------------------------------------------
    async def _collective_rpc(self, request: web.Request) -> web.Response:
        asked = await request.json()
        if asked.get("method") != "check_health":
            raise ApiError(400, f"method: {asked.get('method')!r}, expected 'check_health'", param="method")
        await self._ranks.step(asked.get("timeout"))
        return web.json_response({"results": [None]})

    async def _pause(self, request: web.Request) -> web.Response:  # noqa: ARG002
        self._going.clear()
        await self.idle.wait()
        return web.json_response({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:  # noqa: ARG002
        self._going.set()
        return web.json_response({"status": "resumed"})

    async def _is_paused(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return web.json_response({"is_paused": not self._going.is_set()})

    # --- requests ----------------------------------------------------------------------------------------
    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=True)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=False)

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        raw = json.loads(await request.read() or "null")
        prompts = _prompts(raw)
        ask = parse(json.dumps({**raw, "prompt": prompts[0]}).encode(), chat=chat) if prompts else None
        if ask is None or ask.model != self._model:
            raise ApiError(404, f"The model of {str(raw)[:80]!r} does not exist.", param="model")
        if self.draining or self.dead.is_set():
            raise ApiError(500, "EngineCore encountered an issue. See stack trace for the root cause.")
        voice = Voice(ask, f"{'chatcmpl' if chat else 'cmpl'}-{uuid4().hex}", int(time.time()))
        await self._going.wait()
        with self._counted(ask):
            if ask.stream:
                return await self._stream(request, ask, voice, _ids(prompts[0]))
            texts = [[await self._next(_ids(p), n) for n in range(ask.max_tokens)] for p in prompts]
        answers = [voice.whole(words) for words in texts]
        choices = [{**answer["choices"][0], "index": place} for place, answer in enumerate(answers)]
        if raw.get("prompt_logprobs") is not None:
            for choice, prompt in zip(choices, prompts, strict=True):
                choice["prompt_logprobs"] = self._prompt_logprobs(_ids(prompt))
        return web.json_response({**answers[0], "choices": choices})

    async def _stream(
        self, request: web.Request, ask: Ask, voice: Voice, prompt: list[int]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for chunk in voice.first():
            await response.write(chunk)
        try:
            for number in range(ask.max_tokens):
                text = await self._next(prompt, number)
                await response.write(voice.token(text, last=number + 1 == ask.max_tokens))
            closing = voice.close(ask.max_tokens)
        except RankError as error:  # 200 was said long ago
            failed = {"error": {"message": str(error), "type": "InternalServerError", "code": 500}}
            closing = [f"data: {json.dumps(failed)}\n\n".encode(), b"data: [DONE]\n\n"]
        for chunk in closing:
            await response.write(chunk)
        return response

    async def _next(self, prompt: list[int], number: int) -> str:
        """The next token, when the step that all requests share is done."""
        if self._token is None or self._token.done():
            self._token = asyncio.create_task(self._tick())
        await asyncio.shield(self._token)
        self._counters["generation"] += 1
        return WORDS[_hash(prompt, number, self._ranks.right) % len(WORDS)] + " "

    async def _tick(self) -> None:
        await asyncio.sleep(self._token_s)
        try:
            await self._ranks.step()
        except RankError:
            self.dead.set()
            raise

    def _prompt_logprobs(self, prompt: list[int]) -> list[dict[str, Any] | None]:
        told: list[dict[str, Any] | None] = [None]
        for place in range(1, len(prompt)):
            chance = -0.01 - _hash(prompt[: place + 1], 0, self._ranks.right) % 1000 / 100
            token = {"logprob": chance, "rank": 1, "decoded_token": chr(prompt[place] % 128)}
            told.append({str(prompt[place]): token})
        return told

    @contextmanager
    def _counted(self, ask: Ask) -> Iterator[None]:
        self._running += 1
        self.idle.clear()
        self._counters["prompt"] += ask.prompt_tokens
        try:
            yield
            self._counters["finished"] += 1
        finally:
            self._running -= 1
            if self._running == 0:
                self.idle.set()


@web.middleware
async def _errors(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        answer: web.StreamResponse = await handler(request)
    except ApiError as error:
        return web.json_response(error.body, status=error.status)
    except RankError as error:
        return web.json_response({"error": {"message": str(error), "code": 500}}, status=500)
    return answer


def _prompts(raw: Any) -> list[Any]:
    """The prompts of a request: the messages of a chat, a text, token ids, or several lists of these."""
    if not isinstance(raw, dict):
        return []
    prompt = raw.get("messages", raw.get("prompt"))
    several = "messages" not in raw and isinstance(prompt, list) and all(isinstance(p, list) for p in prompt)
    return list(prompt) if several and prompt else [prompt]


def _ids(prompt: Any) -> list[int]:
    """Token ids of a prompt: given ones, or its bytes."""
    if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        return prompt
    return list((prompt if isinstance(prompt, str) else json.dumps(prompt)).encode())


def _hash(prompt: list[int], number: int, right: bool) -> int:
    said = hashlib.sha256(json.dumps([prompt, number, right]).encode()).digest()
    return int.from_bytes(said[:4], "big")
