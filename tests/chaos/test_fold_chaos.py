"""Two `fold` workers under a steady stream, one of them killed, ended or stopped again and again.

Every window must be on the log, and its first record exact (house.md, law 10).
"""

import asyncio
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer

from agents.broker import LocalBroker
from agents.bus import Bus
from schemas import codec, topics
from schemas.events import DemandClosed
from schemas.settings import Settings
from schemas.telemetry import TelemetrySample
from tests.kafka.fold_rig import (
    Worker,
    bus_with_topics,
    dead_letters,
    fold_worker,
    following,
    sample,
    settings_for,
)

pytestmark = [pytest.mark.kafka, pytest.mark.chaos, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("CORAL_CHAOS_ROUNDS", "3"))
MODELS = [f"m{n}" for n in range(6)]
SOURCES = ("r1", "r2")
WINDOW_MS, LATENESS_MS = 1_000, 500
STOPPED_S = 8.0
"""Longer than the group's session time-out: the stopped worker is evicted, and wakes as a stranger."""
GUARD_S = 90.0

Window = tuple[str, int]
"""Model and start of the window, milliseconds."""


@dataclass
class Truth:
    """What was sent, and what the log says."""

    sent: Counter[Window] = field(default_factory=Counter)
    first: dict[Window, DemandClosed] = field(default_factory=dict)
    copies: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def newest(self) -> dict[str, int]:
        """Model -> the end of its newest window on the log."""
        ends = dict.fromkeys(MODELS, 0)
        for (model, _), closed in self.first.items():
            ends[model] = max(ends[model], closed.end_ms)
        return ends


async def send_steadily(bus: Bus, truth: Truth) -> None:
    """Ten samples a second of every model and source, event times jittered within the lateness.

    It does not wait for the broker: what is said while that is away arrives when it is back, in order. (A
    producer whose batch is full lets a newcomer pass those that wait for the next one, and fold takes what
    was passed for late.)
    """
    chance = random.Random(1)
    ids: set[tuple[str, str, int]] = set()
    said: asyncio.Queue[TelemetrySample] = asyncio.Queue()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_send_in_order(bus, said))
        while True:
            for model, source in itertools.product(MODELS, SOURCES):
                at_ms = now_ms() - chance.randint(0, LATENESS_MS - 100)
                while (model, source, at_ms) in ids:
                    at_ms -= 1
                ids.add((model, source, at_ms))
                one = sample(model=model, source=source, at_ms=at_ms, offered=chance.randint(0, 5))
                truth.sent[model, at_ms - at_ms % WINDOW_MS] += one.offered
                said.put_nowait(one)
            await asyncio.sleep(0.1)


async def _send_in_order(bus: Bus, said: asyncio.Queue[TelemetrySample]) -> None:
    while True:
        batch = [await said.get()]
        while not said.empty():
            batch.append(said.get_nowait())
        await asyncio.gather(*(bus.send(topics.TELEMETRY, one, key=one.model) for one in batch))


async def follow(control: AIOKafkaConsumer, truth: Truth) -> None:
    async for record in control:
        event = codec.decode(topics.CONTROL, record.value, record.headers)
        if isinstance(event, DemandClosed):
            window = (event.model, event.start_ms)
            truth.copies += window in truth.first
            async with truth.changed:
                truth.first.setdefault(window, event)
                truth.changed.notify_all()


async def all_closed_after(truth: Truth, moment_ms: int) -> float:
    """Wait until every model has a window that began after the moment; seconds since then."""
    async with asyncio.timeout(GUARD_S), truth.changed:
        await truth.changed.wait_for(lambda: min(truth.newest().values()) >= moment_ms + WINDOW_MS)
    return (now_ms() - moment_ms) / 1000


@asynccontextmanager
async def background(*jobs: Coroutine[None, None, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def mistreat(worker: Worker, number: signal.Signals) -> None:
    """Kill, end or stop it; a stopped one goes on after it was evicted."""
    if number is not signal.SIGSTOP:
        assert await asyncio.to_thread(worker.end, number) == (0 if number is signal.SIGTERM else -number)
        return
    worker.send(signal.SIGSTOP)
    await asyncio.sleep(STOPPED_S)
    worker.send(signal.SIGCONT)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def chaos_settings(kafka: str, prefix: str) -> Settings:
    return settings_for(
        kafka,
        prefix,
        partitions={"telemetry": 4},
        window_ms=WINDOW_MS,
        lateness_ms=LATENESS_MS,
        source_idle_ms=3_000,
    )


async def test_every_window_once_and_right(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    settings = chaos_settings(kafka, topic_prefix)
    truth = Truth()
    recovery: dict[str, list[float]] = {}
    logs = (tmp_path / f"fold-{n}.log" for n in itertools.count())
    workers = [Worker(settings, next(logs)) for _ in range(2)]
    try:
        async with (
            bus_with_topics(settings) as bus,
            following(settings, topics.CONTROL) as control,
            background(follow(control, truth), send_steadily(bus, truth)),
        ):
            await all_closed_after(truth, now_ms())
            kinds = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
            for victim, number in zip(itertools.cycle((0, 1)), kinds * ROUNDS, strict=False):
                moment_ms = now_ms()
                abuse = asyncio.create_task(mistreat(workers[victim], number))
                took = await all_closed_after(truth, moment_ms)
                recovery.setdefault(number.name, []).append(took)
                await abuse
                if workers[victim].process.poll() is not None:
                    workers[victim] = Worker(settings, next(logs))
                await all_closed_after(truth, now_ms() + 3_000)  # the new one has joined
            last_ms = now_ms()
            await all_closed_after(truth, last_ms)
        check(truth, last_ms)
        assert await dead_letters(settings) == []
        for worker in workers:
            assert await asyncio.to_thread(worker.end) == 0
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
    print(f"\nwindows={len(truth.first)} copies_dropped={truth.copies} rounds={ROUNDS} of each")
    for kind, seconds in recovery.items():
        print(f"{kind}: first new window of every model after {min(seconds):.1f}-{max(seconds):.1f} s")


async def test_a_broker_that_is_away_is_waited_out(
    own_broker: LocalBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """The broker is killed and started again, under one worker that lives on."""
    settings = chaos_settings(own_broker.bootstrap, topic_prefix)
    truth = Truth()
    with fold_worker(settings, tmp_path / "fold.log") as worker:
        async with (
            bus_with_topics(settings) as bus,
            following(settings, topics.CONTROL) as control,
            background(follow(control, truth), send_steadily(bus, truth)),
        ):
            await all_closed_after(truth, now_ms())
            await asyncio.to_thread(own_broker.kill)
            await asyncio.to_thread(own_broker.start)
            took = await all_closed_after(truth, now_ms())
            last_ms = now_ms()
            await all_closed_after(truth, last_ms)
        assert await asyncio.to_thread(worker.end) == 0
    check(truth, last_ms)
    print(f"\nwindows={len(truth.first)}: new ones of every model {took:.1f} s after the broker's return")


def check(truth: Truth, last_ms: int) -> None:
    """Every window of every model that ended by then, but the first: the stream began within it."""
    begin_ms = min(start_ms for _, start_ms in truth.sent) + WINDOW_MS
    due = {w: offered for w, offered in truth.sent.items() if begin_ms <= w[1] <= last_ms - WINDOW_MS}
    missing = sorted(set(due) - set(truth.first))
    wrong = {
        w: (truth.first[w].offered, offered)
        for w, offered in due.items()
        if w in truth.first and truth.first[w].offered != offered
    }
    assert (missing, wrong) == ([], {})
    assert all(closed.late_samples == 0 for closed in truth.first.values())
