"""One client's request on its way through a router: to an instance, to another if that one fails, and back.

A request goes to another instance only while nothing of an answer has reached the client: when nobody
answers, when a door says that it drains (`agents.elsewhere`), or when the answer begins with an error of the
instance. At most `TRIES` instances may fail it; any number may drain. Where prefill and decode are apart, the
prompt goes to a prefill instance first, and what that says about its KV cache on to a decode instance; if
that one fails, both are done again, since a KV cache can be fetched only once.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web
from pydantic_core import from_json

from agents import elsewhere
from agents.affinity import Beginnings
from agents.balance import Choice, Group, Peer, Refusal
from agents.proxy import Answer, BrokenOff, Call, Unanswered, asked, error_body, pass_on
from agents.router_ask import Ask
from agents.router_metrics import Promises, RouterMetrics
from agents.router_stream import StreamTap, Usage, usage_of
from agents.router_telemetry import Counting, Tally
from agents.routing import Kind, Way
from agents.upstream import Upstreams

Got = TypeVar("Got")
Use = Callable[[Group, Peer, Answer], Awaitable[Got]]
JsonObject = dict[str, Any]

TRIES = 3
STARTING_S = 10
"""When to ask again for a model that nothing serves: an instance takes minutes to start."""
_NO_PROMPT = Beginnings()
_OWN_HEADERS = frozenset({"authorization", "x-slo-class"})
"""Meant for the router; engines have no use for a client's key."""


class Refused(Exception):
    """An error that the router answers with, in the shape of the OpenAI API."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def response(self) -> web.Response:
        response = web.json_response(
            error_body(self.status, str(self), param=self.param, code=self.code), status=self.status
        )
        if self.retry_after_s is not None:
            response.headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        return response


@dataclass(frozen=True)
class Desk:
    """What all requests of a router share."""

    upstreams: Upstreams
    counting: Counting
    metrics: RouterMetrics
    promises: Promises


@dataclass
class Trail:
    """Where a request has been among the instances of one service."""

    sent: int = 0
    failed: set[str] = field(default_factory=set)
    """Keys of those that failed it."""


class Exchange:
    """A request that was let in.

    Args:
        way: the instances that serve it, by the plan in force.
        began_s: when it arrived, on `time.monotonic`'s clock.
    """

    def __init__(
        self, desk: Desk, request: web.Request, ask: Ask, kind: Kind, way: Way, *, tenant: str, began_s: float
    ) -> None:
        self._desk = desk
        self._request = request
        self._ask = ask
        self._kind = kind
        self._way = way
        self._tenant = tenant
        self._began_s = began_s
        self._first_s = 0.0
        self._headers = {n: v for n, v in request.headers.items() if n.lower() not in _OWN_HEADERS}
        self._why = ""

    @property
    def _tally(self) -> Tally:
        return self._desk.counting.of(self._tenant, self._kind)

    async def run(self) -> web.StreamResponse:
        """Answer it.

        Raises:
            Refused: no instance did.
        """
        prompt = self._ask.beginnings(self._kind[1])
        try:
            if self._way.disaggregated:
                return await self._in_two_steps(prompt)
            return await self._send(self._way.groups[0], prompt, self._ask.whole(), self._deliver)
        except asyncio.CancelledError:
            self._tally.left += 1
            raise

    async def _in_two_steps(self, prompt: Beginnings) -> web.StreamResponse:
        prefill, decode = self._way.groups
        trail = Trail()
        while True:
            given = await self._send(prefill, prompt, self._ask.prefill(), self._prefilled)
            if isinstance(given, web.Response):
                return given
            answer = await self._send_once(decode, _NO_PROMPT, self._ask.whole(given), trail, self._deliver)
            if answer is not None:
                return answer

    # --- to an instance, or several ------------------------------------------------------------------
    async def _send(self, group: Group, prompt: Beginnings, body: bytes, use: Use[Got]) -> Got:
        """Send it to one instance after the other until one answers; `use` takes the answer."""
        trail = Trail()
        while True:
            got = await self._send_once(group, prompt, body, trail, use)
            if got is not None:
                return got

    async def _send_once(
        self, group: Group, prompt: Beginnings, body: bytes, trail: Trail, use: Use[Got]
    ) -> Got | None:
        """Send it to an instance that has not failed it; None if it may be sent again."""
        peer = self._choose(group, prompt, trail)
        trail.sent += 1
        call = Call("POST", f"http://{peer.endpoint}{self._request.path_qs}", self._headers, body)
        known = False
        try:
            async with asked(self._desk.upstreams, call) as answer:
                known = True
                again = self._judge(group, peer, answer, trail)
                if again is None:
                    return await use(group, peer, answer)
        except Unanswered as error:
            known = True
            group.failed(peer, time.monotonic())
            trail.failed.add(peer.key)
            again, self._why = "unanswered", str(error)
        finally:
            if not known:
                group.abandoned(peer)
            group.ended(peer)
        self._desk.metrics.retries.labels(again).inc()
        return None

    def _choose(self, group: Group, prompt: Beginnings, trail: Trail) -> Peer:
        now_s = time.monotonic()
        choice: Choice | Refusal = Refusal.FAILING
        if len(trail.failed) < TRIES:
            choice = group.pick(prompt, now_s, frozenset(trail.failed))
        if choice is Refusal.FAILING and trail.sent == 1 and self._why:
            choice = group.pick(prompt, now_s)  # nobody else is there: it may have been by chance
        if isinstance(choice, Choice):
            self._desk.metrics.choices.labels(choice.how).inc()
            return choice.peer
        if self._why:
            self._tally.failed += 1
            raise Refused(502, f"no instance answered: {self._why}", retry_after_s=1)
        self._tally.refused += 1
        if choice is Refusal.FULL:
            raise Refused(429, f"{self._ask.model}: {choice.value}", code="overloaded", retry_after_s=1)
        wait_s = STARTING_S if choice is Refusal.NOTHING else group.opens_in_s(now_s)
        raise Refused(503, f"{self._ask.model}: {choice.value}", code="unavailable", retry_after_s=wait_s)

    def _judge(self, group: Group, peer: Peer, answer: Answer, trail: Trail) -> str | None:
        """Note how the instance does; why to ask another, or None to take this answer."""
        if answer.status == elsewhere.STATUS and elsewhere.HEADER in answer.headers:
            group.elsewhere(peer, time.monotonic())
            return "elsewhere"
        if not answer.is_error:
            group.answered(peer)
            return None
        group.failed(peer, time.monotonic())
        trail.failed.add(peer.key)
        others = group.others(frozenset(trail.failed), time.monotonic())
        return "failed" if others and len(trail.failed) < TRIES else None

    # --- an answer -----------------------------------------------------------------------------------
    async def _prefilled(self, group: Group, peer: Peer, answer: Answer) -> web.Response | JsonObject:
        """What a decode instance needs to know; an error is the client's to see."""
        body = await self._read(group, peer, answer)
        if answer.status != 200:
            return web.Response(status=answer.status, headers=_whole(answer), body=body)
        try:
            given = from_json(body).get("kv_transfer_params")
        except (ValueError, AttributeError):
            given = None
        # Without any, the decode instance computes the prompt itself: slower, and as right.
        return given if isinstance(given, dict) else {}

    async def _deliver(self, group: Group, peer: Peer, answer: Answer) -> web.StreamResponse:
        """Pass an answer on to the client, and count it."""
        told = {
            "x-coral-instance": peer.key,
            "x-coral-slo-class": self._kind[1],
            "x-coral-plan": self._way.plan,
        }
        if answer.is_stream and answer.status == 200:
            return await self._stream(group, peer, answer, told)
        body = await self._read(group, peer, answer)
        if answer.status == 200:
            self._finished(usage_of(body) or Usage(0, 0, 0), None)
        else:
            self._tally.failed += answer.status >= 500
        return web.Response(status=answer.status, headers={**_whole(answer), **told}, body=body)

    async def _stream(
        self, group: Group, peer: Peer, answer: Answer, told: dict[str, str]
    ) -> web.StreamResponse:
        tap = StreamTap(self._first, strip=not self._ask.wants_usage)
        passed = await pass_on(self._request, answer, headers=told, tap=tap)
        if passed.broken is not None:
            group.failed(peer, time.monotonic())
        if passed.broken is not None or tap.failed:
            self._tally.failed += 1
        else:
            self._finished(tap.usage or Usage(0, 0, tap.tokens), time.monotonic())
        return passed.response

    async def _read(self, group: Group, peer: Peer, answer: Answer) -> bytes:
        try:
            return await answer.read()
        except BrokenOff as error:
            group.failed(peer, time.monotonic())
            self._tally.failed += 1
            raise Refused(502, f"the answer broke off: {error}") from error

    def _first(self) -> None:
        """The first token of a stream is here."""
        self._first_s = time.monotonic()
        self._tally.ttft_ms.append(1000 * (self._first_s - self._began_s))

    def _finished(self, usage: Usage, end_s: float | None) -> None:
        ttft_ms = tpot_ms = None
        if end_s is not None and self._first_s:
            ttft_ms = 1000 * (self._first_s - self._began_s)
            of_one = usage.output_tokens / self._ask.answers  # they come side by side
            if of_one > 1:
                tpot_ms = 1000 * (end_s - self._first_s) / (of_one - 1)
        verdicts = self._desk.promises.verdicts(self._kind, usage.input_tokens, ttft_ms, tpot_ms)
        self._tally.finish(usage, tpot_ms, verdicts)


def _whole(answer: Answer) -> dict[str, str]:
    """An answer's headers for a body that was read in full."""
    return {name: value for name, value in answer.headers.items() if name.lower() != "content-length"}
