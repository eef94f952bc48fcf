"""A leader's effects, performed on a bus and a solver that fail as told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import RecordMetadata

from agents.bus import Bus
from schemas import topics
from schemas.base import Frozen
from schemas.events import DeadLettered, Published, Solved, SolveFailed, Tick
from schemas.plans import Plan
from schemas.problems import Answer, Problem
from schemas.settings import KafkaSettings
from schemas.topics import Topic
from streams import term
from streams.core.effects import Alert, Publish, PutAside, Solve, WakeAt
from streams.log import Entry
from streams.solving import SolveError, Solver
from streams.term import LogClock, Term
from tests.streams.doubles import greedy
from tests.streams.test_solving import problem
from tests.streams.world import START_MS, World

CAUSE = Entry(offset=7, timestamp_ms=START_MS, value=b"{", headers=())


class Told(Bus):
    """Remembers what it is told; fails as often as asked."""

    def __init__(self) -> None:
        super().__init__(KafkaSettings(), "t", "control")
        self.sent: list[tuple[str, Frozen]] = []
        self.aside: list[tuple[int, bytes | None, str]] = []
        self.failures = 0
        self.news = asyncio.Event()

    async def send(
        self,
        topic: Topic,
        event: Frozen,
        *,
        key: str | None = None,  # noqa: ARG002  the signature is the bus's
        event_id: str | None = None,  # noqa: ARG002
    ) -> RecordMetadata:
        self._fail_if_asked()
        self.sent.append((topic.name, event))
        self.news.set()
        return RecordMetadata("", 0, None, 0, 0, 0, 0)

    async def put_aside(
        self,
        topic: str,  # noqa: ARG002  the signature is the bus's
        partition: int,  # noqa: ARG002
        offset: int,
        key: bytes | None,  # noqa: ARG002
        value: bytes | None,
        reason: str,
    ) -> None:
        self._fail_if_asked()
        self.aside.append((offset, value, reason))

    def _fail_if_asked(self) -> None:
        if self.failures:
            self.failures -= 1
            raise KafkaConnectionError("away")

    async def until(self, count: int) -> list[Frozen]:
        """The first `count` events sent."""
        while len(self.sent) < count:
            self.news.clear()
            await self.news.wait()
        return [event for _, event in self.sent]


class Oracle(Solver):
    def __init__(self, error: str | None = None) -> None:
        super().__init__("", {}, 1.0)
        self._error = error

    async def solve(self, problem: Problem) -> Answer:
        if self._error is not None:
            raise SolveError(self._error)
        return greedy(problem)


@asynccontextmanager
async def leading(bus: Bus, solver: Solver | None = None) -> AsyncIterator[Term]:
    async with asyncio.TaskGroup() as tasks:
        led = Term(bus, solver or Oracle(), tasks.create_task)
        yield led
        led.end()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(term, "FIRST_PAUSE_S", 0.0)


def plans() -> list[Plan]:
    """Three plans, each superseding the one before."""
    world = World()
    world.offer(next(iter([w.pool for w in problem("p").stocks])), 1.0, 9)
    for rate in (1.0, 2.0, 3.0):
        world.demand(rate, windows=1)
    return world.plans[:3]


def publish(plan: Plan) -> Publish:
    return Publish(epoch=plan.epoch, plan=plan, cause_offset=7)


async def test_a_plan_is_written_then_confirmed_with_the_history_that_caused_it() -> None:
    bus, plan = Told(), plans()[0]
    async with leading(bus) as led:
        led.perform([publish(plan)], CAUSE, "h7")
        await bus.until(2)
    confirmed = Published(epoch=plan.epoch, plan=plan.id, digest=plan.digest, history="h7", history_offset=7)
    assert bus.sent == [(topics.PLANS.name, plan), (topics.CONTROL.name, confirmed)]


async def test_only_the_newest_plan_is_sent_once_kafka_is_back() -> None:
    bus, found = Told(), plans()
    bus.failures = 3
    async with leading(bus) as led:
        for plan in found:
            led.perform([publish(plan)], CAUSE, "h")
        await bus.until(2)
    assert [event for _, event in bus.sent if isinstance(event, Plan)] == [found[-1]]


async def test_a_confirmation_that_failed_sends_the_plan_again() -> None:
    class Unconfirmed(Told):
        async def send(self, topic: Topic, event: Frozen, **named: str | None) -> RecordMetadata:
            if isinstance(event, Published) and len(self.sent) == 1:
                self.sent.append(("lost", event))
                raise KafkaConnectionError("away")
            return await super().send(topic, event, **named)

    bus, plan = Unconfirmed(), plans()[0]
    async with leading(bus) as led:
        led.perform([publish(plan)], CAUSE, "h")
        await bus.until(4)
    assert [name for name, _ in bus.sent] == ["plans", "lost", "plans", "control"]


async def test_a_solve_comes_back_as_a_record() -> None:
    bus = Told()
    async with leading(bus) as led:
        led.perform([Solve(epoch=3, problem=problem("p1"))], CAUSE, "h")
        (event,) = await bus.until(1)
    assert isinstance(event, Solved)
    assert (event.epoch, event.problem) == (3, "p1")


async def test_a_solve_that_failed_too() -> None:
    bus = Told()
    bus.failures = 5
    async with leading(bus, Oracle("fuse: burnt")) as led:
        led.perform([Solve(epoch=3, problem=problem("p1"))], CAUSE, "h")
        assert await bus.until(1) == [SolveFailed(epoch=3, problem="p1", reason="fuse: burnt")]


async def test_an_unreadable_record_is_put_aside_before_that_is_said() -> None:
    bus = Told()
    bus.failures = 2
    async with leading(bus) as led:
        led.perform([PutAside(offset=7, reason="no JSON")], CAUSE, "h")
        assert await bus.until(1) == [DeadLettered(offset=7)]
    assert bus.aside == [(7, b"{", "no JSON")]


async def test_the_newest_wake_up_replaces_the_one_before() -> None:
    bus = Told()
    async with leading(bus) as led:
        led.perform([WakeAt(at_ms=START_MS + 3_600_000)], CAUSE, "h")
        led.perform([WakeAt(at_ms=START_MS - 1)], CAUSE, "h")
        assert await bus.until(1) == [Tick(due_ms=START_MS - 1)]


async def test_an_alert_is_for_people_only(caplog: pytest.LogCaptureFixture) -> None:
    bus = Told()
    async with leading(bus) as led:
        led.perform([Alert(name="PriceStale", text="no price for 24 h")], CAUSE, "h")
    assert bus.sent == []
    assert "name=PriceStale" in caplog.text


async def test_an_ended_term_says_nothing_more() -> None:
    bus = Told()
    async with leading(bus) as led:
        led.perform([publish(plans()[0]), Solve(epoch=3, problem=problem("p1"))], CAUSE, "h")
        led.end()
        await asyncio.sleep(0)
    assert bus.sent == []


def test_the_log_has_its_own_clock() -> None:
    """Only spans are measured here: where the broker's clock stands is its business."""
    now_s = 100.0
    clock = LogClock(lambda: now_s)
    clock.read(5_000)
    assert clock.until_s(7_500) == 2.5
    now_s = 101.0
    assert clock.until_s(7_500) == 1.5
    clock.read(4_000)  # the broker's clock was set back
    assert clock.until_s(7_500) == 3.5
