"""The demo's clients: people who chat with the tiny model through the router, more and fewer of them.

Requests come as a Poisson process would, whatever the answers take (an open loop), and each answer is read
as a stream to its end. What is refused before an instance is ready is counted apart: that is no error.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
from pydantic import Field

from agents.load import Served, ask
from schemas.base import Count, Frozen, Rate
from schemas.catalog import Positive

BUSY = frozenset({429, 503})
"""How a router says that it has no room, or nobody to send to, for now."""
LOOK_S = 1.0
"""How often the rate is looked up anew."""
QUESTIONS = (
    "What does a reef live on?",
    "Who says that the next word comes?",
    "When does the tide turn?",
    "Which node starts when there are more requests?",
)


class Crowd(Frozen):
    """From `at_s` on, `per_s` requests a second. Seconds count from the first answer: starts take a while."""

    at_s: Rate
    per_s: Rate


class LoadPlan(Frozen):
    """Who asks what, and how often; a YAML file of the demo's."""

    model: str
    max_tokens: Count
    crowds: tuple[Crowd, ...] = Field(min_length=1)
    timeout_s: Positive = 120.0
    """An answer that takes longer is an error: nothing may hang."""

    def per_s(self, passed_s: float) -> float:
        """Requests a second so long after the first answer."""
        return next((c.per_s for c in reversed(self.crowds) if c.at_s <= passed_s), 0.0)


@dataclass
class Tally:
    """What came of the requests so far; a request is in exactly one of the first four."""

    served: int = 0
    refused: int = 0
    in_flight: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    last_words: str = ""
    """The end of the newest answer, so that one sees that they are answers."""
    began_s: float | None = None
    """When the first answer was whole, by `time.monotonic`."""

    def serve(self, words: str, tokens: int) -> None:
        self.served += 1
        self.tokens += tokens
        self.last_words = words.strip()[-60:]
        self.began_s = self.began_s or time.monotonic()

    @property
    def passed_s(self) -> float:
        """Seconds since the first answer."""
        return 0.0 if self.began_s is None else time.monotonic() - self.began_s

    def fail(self, why: str) -> None:
        self.errors[why] = self.errors.get(why, 0) + 1

    def summary(self) -> dict[str, object]:
        return {
            "requests_served": self.served,
            "requests_refused": self.refused,
            "request_errors": dict(sorted(self.errors.items())),
            "output_tokens": self.tokens,
        }


@asynccontextmanager
async def clients(plan: LoadPlan, base_url: str, tally: Tally) -> AsyncIterator[None]:
    """Clients that ask meanwhile. At the end what they wait for is waited for, unless there is an error."""
    stop = asyncio.Event()
    asking = asyncio.create_task(run_load(plan, base_url, tally, stop))
    try:
        yield
        stop.set()
        await asking
    finally:
        asking.cancel()


async def run_load(plan: LoadPlan, base_url: str, tally: Tally, stop: asyncio.Event) -> None:
    """From when the router listens, ask until `stop`; then wait for what is in flight."""
    timeout = aiohttp.ClientTimeout(total=plan.timeout_s)
    async with aiohttp.ClientSession(base_url, timeout=timeout) as session, asyncio.TaskGroup() as asking:
        await _until_it_listens(session, stop)
        chance, number = random.Random(0), 0
        while not stop.is_set():
            per_s = plan.per_s(tally.passed_s)
            pause_s = chance.expovariate(per_s) if per_s > 0 else LOOK_S
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), min(pause_s, LOOK_S))
            # A pause cut short is drawn anew: a Poisson process has no memory.
            if pause_s < LOOK_S and not stop.is_set():
                asking.create_task(_ask(session, plan, number, tally))
                number += 1


async def _until_it_listens(session: aiohttp.ClientSession, stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            async with session.get("/v1/models"):
                return
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.2)


async def _ask(session: aiohttp.ClientSession, plan: LoadPlan, number: int, tally: Tally) -> None:
    body = {
        "model": plan.model,
        "messages": [{"role": "user", "content": f"{QUESTIONS[number % len(QUESTIONS)]} ({number})"}],
        "max_tokens": plan.max_tokens,
    }
    tally.in_flight += 1
    try:
        reply = await ask(session, "/v1/chat/completions", body)
    finally:
        tally.in_flight -= 1
    if isinstance(reply, Served):
        tally.serve(reply.words, reply.output_tokens)
    elif reply.status in BUSY:
        tally.refused += 1
    else:
        tally.fail(reply.why)
