"""Two control workers, one of them killed, ended or stopped in each round, while demand moves.

No plan may be lost, none older than one that was seen may be accepted, a replay is equal, and in the
end nothing is pending. CORAL_CHAOS_ROUNDS sets the rounds of each kind.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from statistics import median

import pytest

from agents.admin import create_topics
from agents.bus import Bus, follow_plans, read_to_end
from schemas import codec, topics
from schemas.events import Leading, Published
from schemas.plans import Order, Plan
from streams import log
from streams.core.effects import Publish
from streams.core.state import State
from streams.core.step import step
from streams.replay import replay_live
from tests.control_rig import Eye, Fleet, Worker, make_settings

ROUNDS = int(os.environ.get("CORAL_CHAOS_ROUNDS", "3"))
PERIOD_S = 0.25
"""Between two closed windows."""
STOPPED_S = 9.0
"""Longer than the session time-out of 6 s, so that the group moves on without it."""
SENT_WITHIN_MS = 10_000
"""A guard against hangs: a leader left alone sends and confirms a plan in less."""

pytestmark = [pytest.mark.kafka, pytest.mark.chaos, pytest.mark.timeout(300 + 120 * ROUNDS)]


@dataclass
class Pair:
    """The two workers, and how long the lead was vacant in each round."""

    workers: list[Worker]
    eye: Eye
    vacant_s: dict[str, list[float]] = field(default_factory=dict)

    def leader(self) -> Worker:
        token = self.eye.state.leader
        return next((w for w in self.workers if token is not None and w.has_led_with(token)), self.workers[0])

    async def hit(self, kind: str, blow: Callable[[Worker], None]) -> Worker:
        """Strike the leader; returns once another leads."""
        await self.eye.look()
        struck, before = self.leader(), self.eye.state.offset
        start_s = time.monotonic()
        blow(struck)
        await self.eye.until_led(after=before)
        self.vacant_s.setdefault(kind, []).append(time.monotonic() - start_s)
        return struck


@pytest.fixture
def close_all() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


async def test_no_plan_is_lost_or_goes_back(
    kafka: str, topic_prefix: str, tmp_path: Path, close_all: contextlib.ExitStack
) -> None:
    settings = make_settings(kafka, topic_prefix, tmp_path, snapshot_every=50)
    await create_topics(settings)
    async with Bus(settings.kafka, settings.topic_prefix, "test") as bus:
        workers = [Worker(settings, tmp_path, name) for name in ("one", "two")]
        pair = Pair(workers, Eye(bus))
        for worker in workers:
            close_all.callback(worker.close)
            worker.start()
            await pair.eye.until_led(after=pair.eye.state.offset)
        fleet = Fleet(bus, time.time_ns() // 1_000_000)
        await fleet.offer()
        async with asyncio.TaskGroup() as tasks:
            seen: list[Order] = []
            watching = tasks.create_task(watch(bus, seen))
            driving = tasks.create_task(drive(fleet))
            await rounds(pair)
            driving.cancel()
            await fleet.demand(80)
            await pair.eye.until_rest()
            watching.cancel()
        # Judged before the workers end: the last one would lead for a moment, and be cut off.
        await judge(bus, seen)
        for worker in workers:
            assert worker.end() == 0
        print(f"\n{fleet.told} records told, {len(seen)} plans seen")
        for kind, spans in pair.vacant_s.items():
            print(f"{kind}: another led after {', '.join(f'{s:.1f}' for s in spans)} s")


async def rounds(pair: Pair) -> None:
    for _ in range(ROUNDS):
        struck = await pair.hit("SIGKILL", lambda worker: worker.signal(SIGKILL))
        struck.wait()
        await back(pair, struck.start)
        struck = await pair.hit("SIGTERM", lambda worker: worker.signal(SIGTERM))
        assert struck.wait() == 0
        await back(pair, struck.start)
        struck = await pair.hit("SIGSTOP", lambda worker: worker.signal(SIGSTOP))
        await asyncio.sleep(max(0.0, STOPPED_S - pair.vacant_s["SIGSTOP"][-1]))
        await back(pair, lambda struck=struck: struck.signal(SIGCONT))  # type: ignore[misc]


async def back(pair: Pair, action: Callable[[], None]) -> None:
    """Bring the struck worker back; its joining rebalances the group, so somebody leads anew."""
    await pair.eye.look()
    before = pair.eye.state.offset
    action()
    await pair.eye.until_led(after=before)


async def drive(fleet: Fleet) -> None:
    """Demand up and down, so that every few records want another plan."""
    for turn in range(10**9):
        await fleet.demand(40 if turn % 4 < 2 else 5)
        await fleet.alive()
        await asyncio.sleep(PERIOD_S)


async def watch(bus: Bus, seen: list[Order]) -> None:
    async for plan in follow_plans(bus):
        seen += [plan.order]


async def judge(bus: Bus, seen: list[Order]) -> None:
    assert seen == sorted(set(seen)), "a subscriber went back"
    report = await replay_live(bus)
    assert report.difference is None
    lost, state, decided = await fold(bus)
    assert lost == []
    assert state.pending_publish is None
    assert state.pending_solve is None
    assert state.put_aside == {}
    assert decided > 3 * ROUNDS, "demand moved too few plans for this to say much"
    assert state.plan is not None
    assert max(seen) == state.plan.order
    written = [
        codec.decode(topics.PLANS, r.value, r.headers)
        for r in await read_to_end(bus.kafka, bus.name(topics.PLANS))
    ]
    late = sum(
        isinstance(b, Plan) and isinstance(a, Plan) and b.order < a.order for a, b in pairwise(written)
    )
    print(f"\n{report.records} records, {report.leaders} leaders, {decided} plans decided,")
    print(f"{report.published} confirmed, {len(written)} written, {late} of them after a newer one")


async def fold(bus: Bus) -> tuple[list[str], State, int]:
    """By the log alone: plans that were lost, the last state, and how many plans were decided.

    A plan that was not confirmed is not lost if a newer took its place when the lead changed, or before
    the leader had time to send it.
    """
    state = State()
    decided: dict[str, int] = {}
    confirmed: set[str] = set()
    excused: set[str] = set()
    delays: list[int] = []
    newest: str | None = None
    async for entry in log.read(bus.kafka, bus.name(topics.CONTROL)):
        record = entry.record()
        if isinstance(record.event, Published):
            confirmed.add(record.event.plan)
            delays.append(record.timestamp_ms - decided[record.event.plan])
        for effect in step(state, record):
            if isinstance(effect, Publish) and effect.plan.id != newest:
                quick = newest is not None and record.timestamp_ms - decided[newest] < SENT_WITHIN_MS
                if newest is not None and (quick or isinstance(record.event, Leading)):
                    excused.add(newest)
                newest = effect.plan.id
                decided[newest] = record.timestamp_ms
    print(f"\ndecided -> confirmed: median {median(delays)} ms, longest {max(delays)} ms")
    return sorted(set(decided) - confirmed - excused), state, len(decided)
