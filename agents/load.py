"""A load on an OpenAI-compatible endpoint, and what came of it: first tokens, their pace, requests a second.

`ask` reads one answer as a stream to its end. `run` asks again and again: with so many requests in flight (a
closed loop), or as a Poisson process would, whatever the answers take (an open loop). Times are the client's,
by the event loop's clock.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

OK = 200
DETAIL_BYTES = 200
LOOK_S = 0.02
"""How often it is looked whether a load has lasted long enough."""
PAUSE_S = 0.1
"""After a request that failed, so that an endpoint that refuses is not hammered."""


@dataclass(frozen=True)
class Served:
    """An answer that was read to its end; tokens as the server counts them."""

    began_s: float
    first_s: float
    """When the first token came."""
    last_s: float
    """When the last one did."""
    input_tokens: int
    output_tokens: int
    words: str

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.began_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first; None if there was no other."""
        others = self.output_tokens - 1
        return (self.last_s - self.first_s) / others if others > 0 else None


@dataclass(frozen=True)
class Failed:
    """An answer that was none."""

    why: str
    status: int | None = None
    """HTTP's, where it was not 200."""
    detail: str = ""
    """The beginning of what came with that status."""


Reply = Served | Failed


# ------------------------------------------------------------------------------------------- one request


async def ask(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> Reply:
    """One request, streamed to its end. What goes wrong is told as why, never raised."""
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    began_s = asyncio.get_running_loop().time()
    try:
        async with session.post(url, json=streamed) as response:
            if response.status != OK:
                detail = (await response.content.read(DETAIL_BYTES)).decode(errors="replace")
                return Failed(f"HTTP {response.status}", response.status, detail)
            return await _read(response, began_s)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        return Failed(type(error).__name__)
    except (AttributeError, TypeError):  # what the stream's JSON is made of is not what it should be
        return Failed("no stream of the OpenAI API")


async def _read(response: aiohttp.ClientResponse, began_s: float) -> Reply:
    """A stream that stops before `[DONE]`, or says `error`, was not served."""
    clock = asyncio.get_running_loop().time
    first_s = last_s = 0.0
    words: list[str] = []
    usage: Mapping[str, Any] = {}
    async for line in response.content:
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            if not words:
                return Failed("an answer without a token")
            read, written = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
            if not (isinstance(read, int) and isinstance(written, int)):
                return Failed("usage that is no count of tokens")
            return Served(began_s, first_s, last_s, read, written, "".join(words))
        chunk = json.loads(data) if data.startswith(b"{") else {}
        if error := chunk.get("error"):
            message = error.get("message", "") if isinstance(error, dict) else error
            return Failed(f"in the stream: {str(message)[:60]}")
        for text in _tokens(chunk):
            last_s = clock()
            first_s = first_s or last_s
            words.append(text)
        usage = chunk.get("usage") or usage
    return Failed("the stream was cut")


def _tokens(chunk: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a chunk's tokens. A chat opens with a role, which is none."""
    for choice in chunk.get("choices", ()):
        delta = choice.get("delta")
        if delta is None:
            yield choice.get("text") or ""
        elif text := delta.get("content") or delta.get("reasoning_content"):
            yield text
        elif "role" not in delta:
            yield ""  # a part of a character has no text yet


# ----------------------------------------------------------------------------------------------- a load


@dataclass(frozen=True)
class Load:
    """How to ask: exactly one of `concurrency` and `per_s`."""

    concurrency: int | None
    """Requests always in flight: each that is answered is followed by the next."""
    per_s: float | None
    """Requests a second in the mean, at times drawn from a Poisson process."""
    seconds: float
    """How long to measure."""
    warmup_s: float
    """How long to ask before that; each client of a closed loop finishes at least one request meanwhile."""
    stagger_s: float = 0.0
    """Over how long those clients begin. About the time of an answer, or they would go in step."""


@dataclass(frozen=True)
class Tally:
    """What was measured; the warm-up is not in it."""

    served: tuple[Served, ...]
    failures: Mapping[str, int]
    """Why -> how often."""
    throughput: float
    """Requests served a second."""
    whole: bool
    """Whether it lasted as long as it should; stopped before, it may be empty."""


Asking = Callable[[], Awaitable[Reply]]


async def run(load: Load, asking: Asking, stop: asyncio.Event) -> Tally:
    """Ask as `load` says, until it has lasted or `stop` is set; what is in flight then is given up."""
    if load.concurrency is not None:
        return await _closed(load, load.concurrency, asking, stop)
    if load.per_s is None:
        raise ValueError("a load needs concurrency or per_s")
    return await _open(load, load.per_s, asking, stop)


@dataclass
class _Client:
    """One of a closed loop: measured from the beginning of a request to the end of another."""

    asked: int = 0
    replies: list[Reply] = field(default_factory=list)
    began_s: float = 0.0
    ended_s: float = 0.0

    async def keep_asking(self, asking: Asking, after_s: float, measuring: asyncio.Event) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(after_s)
        while True:
            measured, began_s = measuring.is_set(), clock()
            reply = await asking()
            self.asked += 1
            if isinstance(reply, Failed):
                await asyncio.sleep(PAUSE_S)
            if measured:
                self.began_s = self.began_s or began_s
                self.ended_s = clock()
                self.replies.append(reply)

    @property
    def throughput(self) -> float:
        served = sum(isinstance(reply, Served) for reply in self.replies)
        return served / (self.ended_s - self.began_s) if served else 0.0


async def _closed(load: Load, concurrency: int, asking: Asking, stop: asyncio.Event) -> Tally:
    """Each client's whole requests are measured, so that no edge of the time cuts one in two."""
    clients, measuring = [_Client() for _ in range(concurrency)], asyncio.Event()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(client.keep_asking(asking, load.stagger_s * place / concurrency, measuring))
            for place, client in enumerate(clients)
        ]
        warm = await _lasted(stop, load.warmup_s, lambda: all(client.asked for client in clients))
        measuring.set()
        whole = warm and await _lasted(stop, load.seconds, lambda: all(client.replies for client in clients))
        for task in tasks:
            task.cancel()
    if not all(client.replies for client in clients):  # stopped so early that it was no such load yet
        return _tally([], 0.0, whole=False)
    replies = [reply for client in clients for reply in client.replies]
    return _tally(replies, sum(client.throughput for client in clients), whole=whole)


async def _open(load: Load, per_s: float, asking: Asking, stop: asyncio.Event) -> Tally:
    """What ends within the time is measured, whenever it began: too much load does not all end."""
    clock, chance = asyncio.get_running_loop().time, random.Random(0)
    measuring, replies = asyncio.Event(), list[Reply]()

    async def one() -> None:
        reply = await asking()
        if measuring.is_set():
            replies.append(reply)

    async def arrive() -> None:
        due_s = clock()
        while True:
            due_s += chance.expovariate(per_s)
            await asyncio.sleep(due_s - clock())
            tasks.add(group.create_task(one()))

    tasks: set[asyncio.Task[None]] = set()
    async with asyncio.TaskGroup() as group:
        tasks.add(group.create_task(arrive()))
        warm = await _lasted(stop, load.warmup_s, lambda: True)
        measuring.set()
        began_s = clock()
        whole = warm and await _lasted(stop, load.seconds, lambda: True)
        lasted_s = clock() - began_s
        for task in tasks:
            task.cancel()
    served = sum(isinstance(reply, Served) for reply in replies)
    return _tally(replies, served / lasted_s if served else 0.0, whole=whole)


async def _lasted(stop: asyncio.Event, seconds: float, enough: Callable[[], bool]) -> bool:
    """Wait so long, and until it is enough; False if `stop` is set before."""
    clock = asyncio.get_running_loop().time
    end_s = clock() + seconds
    while (left_s := end_s - clock()) > 0 or not enough():
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), min(left_s, LOOK_S) if left_s > 0 else LOOK_S)
            return False
    return not stop.is_set()


def _tally(replies: Iterable[Reply], throughput: float, *, whole: bool) -> Tally:
    served, failures = [], Counter[str]()
    for reply in replies:
        if isinstance(reply, Served):
            served.append(reply)
        else:
            failures[reply.why] += 1
    return Tally(tuple(served), dict(sorted(failures.items())), throughput, whole)
