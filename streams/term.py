"""One term of leadership: performs what the core asks for, and appends to the log what came of it.

Effects run in tasks of their own, so that the log is read on meanwhile. Each is tried until it is
done; where Kafka is away that means waiting, not losing. Ending the term cancels them all: the next
leader is told to perform again whatever the log does not confirm.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, assert_never

from aiokafka.errors import KafkaError

from agents.bus import Bus, continued
from schemas import topics
from schemas.events import ControlEvent, DeadLettered, Published, Solved, SolveFailed, Tick
from streams import log
from streams.core.effects import Alert, Effect, Publish, PutAside, Solve, WakeAt
from streams.log import Entry
from streams.solving import SolveError, Solver

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
MAY_PASS = (KafkaError, OSError, TimeoutError)
"""Errors that come from outside and are tried again; any other is a bug and ends the worker."""

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


def pauses() -> Iterator[float]:
    """Seconds to wait between tries, doubling up to a longest."""
    pause = FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE_S)


class LogClock:
    """What the broker's clock shows now, from the last record's timestamp and the time since it was read.

    The log's time may run apart from ours; only spans are measured here.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._read_s = 0.0
        self._timestamp_ms = 0

    def read(self, timestamp_ms: int) -> None:
        self._timestamp_ms, self._read_s = timestamp_ms, self._now_s()

    def until_s(self, at_ms: int) -> float:
        """Seconds from now until the log's time is `at_ms`; negative if that has passed."""
        return (at_ms - self._timestamp_ms) / 1000 - (self._now_s() - self._read_s)


class Term:
    """Performs effects while this worker leads.

    Args:
        spawn: starts a task whose unexpected error ends the worker.
    """

    def __init__(self, bus: Bus, solver: Solver, spawn: Spawn) -> None:
        self._bus = bus
        self._solver = solver
        self._spawn = spawn
        self._running: set[asyncio.Task[None]] = set()
        self._clock = LogClock(asyncio.get_running_loop().time)
        self._plans: asyncio.Queue[tuple[Publish, Entry, str]] = asyncio.Queue()
        self._wake_ms: int | None = None
        self._wake_is_new = asyncio.Event()
        self.start(self._publish_newest())
        self.start(self._wake())

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something run until it is done or the term ends."""
        task = self._spawn(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def end(self) -> None:
        """Stop everything; what is cut off is performed again by whoever leads next."""
        for task in self._running:
            task.cancel()

    def perform(self, effects: Iterable[Effect], cause: Entry, history: str) -> None:
        """Set to work; never waits.

        Args:
            cause: the record that the core stepped over.
            history: running digest after it.
        """
        self._clock.read(cause.timestamp_ms)
        for effect in effects:
            match effect:
                case Solve():
                    self.start(self._solve(effect, cause))
                case Publish():
                    self._plans.put_nowait((effect, cause, history))
                case WakeAt():
                    self._wake_ms = effect.at_ms
                    self._wake_is_new.set()
                case PutAside():
                    self.start(self._put_aside(effect, cause))
                case Alert():
                    logger.warning("alert name=%s offset=%d text=%s", effect.name, cause.offset, effect.text)
                case _:
                    assert_never(effect)

    async def _solve(self, effect: Solve, cause: Entry) -> None:
        problem = effect.problem
        result: Solved | SolveFailed
        with continued("coral.solve", cause.headers):
            try:
                answer = await self._solver.solve(problem)
                result = Solved(epoch=effect.epoch, problem=problem.id, answer=answer)
            except SolveError as error:
                logger.warning("solve failed problem=%s reason=%s", problem.id, error)
                result = SolveFailed(epoch=effect.epoch, problem=problem.id, reason=str(error))
            await self._say(result, f"{effect.epoch}/{problem.id}/solved")

    async def _publish_newest(self) -> None:
        """Send the newest plan and confirm it; one that a newer supersedes before it could be sent is not."""
        while True:
            plan = await self._plans.get()
            for pause in pauses():
                while not self._plans.empty():
                    plan = self._plans.get_nowait()
                try:
                    await self._publish(*plan)
                    break
                except MAY_PASS as error:
                    logger.warning("publishing failed, trying again in %g s: %r", pause, error)
                    await asyncio.sleep(pause)

    async def _publish(self, effect: Publish, cause: Entry, history: str) -> None:
        plan = effect.plan
        with continued("coral.publish", cause.headers):
            await self._bus.send(topics.PLANS, plan, event_id=plan.id)
            confirmed = Published(
                epoch=effect.epoch,
                plan=plan.id,
                digest=plan.digest,
                history=history,
                history_offset=cause.offset,
            )
            await self._bus.send(topics.CONTROL, confirmed, event_id=f"{plan.id}/published")

    async def _wake(self) -> None:
        """Append a `Tick` when the newest wake-up is due."""
        while True:
            self._wake_is_new.clear()
            due_ms = self._wake_ms
            wait_s = None if due_ms is None else self._clock.until_s(due_ms)
            if due_ms is not None and wait_s is not None and wait_s <= 0:
                self._wake_ms = None
                await self._say(Tick(due_ms=due_ms), f"tick/{due_ms}")
                continue
            # On time-out look again: what was read meanwhile may say that the log's clock is behind ours.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake_is_new.wait()

    async def _put_aside(self, effect: PutAside, cause: Entry) -> None:
        name = self._bus.name(topics.CONTROL)

        async def put() -> None:
            value = cause.value if effect.offset == cause.offset else await self._value_at(effect.offset)
            await self._bus.put_aside(name, 0, effect.offset, None, value, effect.reason)

        with continued("coral.put_aside", cause.headers):
            await self._until_done(f"putting {name}/{effect.offset} aside", put)
            await self._say(DeadLettered(offset=effect.offset), f"{effect.offset}/put-aside")

    async def _value_at(self, offset: int) -> bytes | None:
        """A record that an earlier leader did not put aside any more, read again."""
        try:
            entry = await log.read_one(self._bus.kafka, self._bus.name(topics.CONTROL), offset)
        except log.LogTruncatedError:
            logger.warning("offset %d is to be put aside and no longer kept", offset)
            return None
        return entry.value if entry is not None else None

    async def _say(self, event: ControlEvent, event_id: str) -> None:
        async def append() -> None:
            await self._bus.send(topics.CONTROL, event, event_id=event_id)

        await self._until_done(f"appending {event_id}", append)

    async def _until_done(self, what: str, act: Callable[[], Awaitable[None]]) -> None:
        for pause in pauses():
            try:
                await act()
            except MAY_PASS as error:
                logger.warning("%s failed, trying again in %g s: %r", what, pause, error)
                await asyncio.sleep(pause)
            else:
                return
