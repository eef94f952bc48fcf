"""A router in this process before engines that misbehave on demand."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
from aiohttp import web

from agents.elsewhere import ELSEWHERE
from agents.proxy import new_runner
from agents.router_door import RouterDoor
from agents.routing import Kind
from schemas.catalog import Phase, ServiceLevel
from schemas.plans import Instance, Plan
from schemas.problems import LatencyTable, Service
from schemas.settings import RouterSettings
from schemas.telemetry import TelemetrySample
from tests.agents.making import instance, plan, rank, template

Mood = Literal[
    "well", "elsewhere", "500", "dies", "breaks off", "error event", "dead engine", "silent", "400"
]
HANG_S = 30.0
ROOMY = template(latency=LatencyTable(batch=(64,), step_ms=(1.0,), prefill_ms_per_token=0.01, startup_s=1.0))


@dataclass(eq=False)
class FakeEngine:
    """Answers every prompt with `words`, and tells its usage if it is asked to, as vLLM does."""

    name: str
    mood: Mood = "well"
    words: Sequence[str] = ("a ", "b ", "c")
    endpoint: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    """A stream waits for it after its first token."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """The client of a request went away."""
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    async def asked_for(self, requests: int = 1) -> None:
        """Wait until so many requests have come."""
        async with asyncio.timeout(HANG_S):
            while len(self.seen) < requests:
                self._came.clear()
                await self._came.wait()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeEngine"]:
        self.go_on.set()
        app = web.Application()
        app.router.add_post("/v1/{kind:.*}", self._answer)
        runner = new_runner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.endpoint = f"127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.read())
        self.seen.append(asked)
        self._came.set()
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.mood == "elsewhere":
            return web.json_response({}, status=503, headers=ELSEWHERE)
        if self.mood in {"500", "400"}:
            return web.json_response({"error": {"message": self.name}}, status=int(self.mood))
        if self.mood == "dies":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        try:
            if self.mood == "silent":
                await asyncio.Event().wait()
            if asked.get("stream"):
                return await self._stream(request, asked)
        except asyncio.CancelledError:
            self.left.set()
            raise
        return web.json_response(
            self._body({"message": {"content": "".join(self.words)}}, usage=True, of=asked)
        )

    async def _stream(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        if self.mood == "dead engine":
            await self._say(response, {"error": {"message": "EngineDeadError", "code": 500}})
            await response.write(b"data: [DONE]\n\n")
            return response
        await self._say(response, self._body({"delta": {"role": "assistant", "content": ""}}))
        for number, word in enumerate(self.words):
            await self._say(response, self._body({"delta": {"content": word}}))
            if number == 0:
                await self.go_on.wait()
                if self.mood == "breaks off":
                    await asyncio.sleep(0.05)
                    assert request.transport is not None
                    request.transport.abort()
                    return response
        if self.mood == "error event":
            await self._say(response, {"error": {"message": "EngineDeadError"}})
        if (asked.get("stream_options") or {}).get("include_usage"):
            body = self._body({}, usage=True, of=asked)
            await self._say(response, {**body, "choices": []})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _say(self, response: web.StreamResponse, body: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")

    def _body(
        self, choice: dict[str, Any], *, usage: bool = False, of: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"model": "tiny", "choices": [{"index": 0, **choice}]}
        if usage:
            details = {"cached_tokens": 4}
            body["usage"] = {
                "prompt_tokens": 10,
                "completion_tokens": len(self.words),
                "prompt_tokens_details": details,
            }
        given = (of or {}).get("kv_transfer_params") or {}
        if given.get("do_remote_decode"):
            body["kv_transfer_params"] = {"do_remote_prefill": True, "remote_engine_id": self.name}
        return body


def planned(
    sequence: int,
    *engines: FakeEngine,
    weights: Sequence[float] = (),
    phases: Sequence[Phase] = (),
    slo_class: str = "chat",
    demand: dict[str, float] | None = None,
) -> Plan:
    """A plan in which each of these serves."""
    made: list[Instance] = []
    for number, engine in enumerate(engines):
        weight = weights[number] if weights else 1.0
        phase = phases[number] if phases else "both"
        base = instance(engine.name, rank(device=number), of=ROOMY)
        made.append(
            base.model_copy(
                update={
                    "endpoint": engine.endpoint,
                    "rating": base.rating.model_copy(update={"throughput": weight}),
                    "service": Service(model="tiny", slo_class=slo_class, phase=phase),
                }
            )
        )
    whole = plan(sequence, *made, templates=())
    templates = tuple(ROOMY if t.id == ROOMY.id else t for t in whole.templates)
    target = whole.target.model_copy(update={"demand": demand or {}})
    return whole.model_copy(update={"templates": templates, "target": target})


@dataclass
class Rig:
    """The router at `url`, and a client."""

    door: RouterDoor
    url: str
    client: aiohttp.ClientSession
    engines: list[FakeEngine]

    async def ask(
        self, *, stream: bool = False, headers: dict[str, str] | None = None, **fields: Any
    ) -> "Told":
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hello"}],
            "stream": stream,
            **fields,
        }
        async with self.client.post(
            f"{self.url}/v1/chat/completions", json=body, headers=headers or {}
        ) as answer:
            return Told(answer.status, dict(answer.headers), await answer.read())

    def samples(self) -> list[TelemetrySample]:
        """Everything said so far, and not sent since no Kafka is there."""
        self.door.close_second()
        return list(self.door.outbox._waiting)

    def total(self, name: str) -> int:
        return sum(int(getattr(sample, name)) for sample in self.samples())


@dataclass
class Told:
    """An answer as a client has it."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The events of a stream, `[DONE]` as text."""
        lines = self.body.decode().split("\n\n")
        assert lines.pop() == ""
        data = [line.removeprefix("data: ") for line in lines]
        return [said if said == "[DONE]" else json.loads(said) for said in data]

    @property
    def text(self) -> str:
        choices = [
            event["choices"] for event in self.events if isinstance(event, dict) and "choices" in event
        ]
        return "".join(choice[0]["delta"]["content"] for choice in choices if choice)


@asynccontextmanager
async def routed(
    *engines: FakeEngine,
    settings: RouterSettings | None = None,
    levels: dict[Kind, ServiceLevel] | None = None,
    plans: bool = True,
    **shape: Any,
) -> AsyncIterator[Rig]:
    """The engines, and a router that has a plan of them unless `plans` is False."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine.serving())
        door = RouterDoor(settings or RouterSettings(), "r1", levels)
        if plans:
            door.take(planned(1, *engines, **shape))
        runner = new_runner(door.app)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        client = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        yield Rig(door, f"http://127.0.0.1:{runner.addresses[0][1]}", client, list(engines))
