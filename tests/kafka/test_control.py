"""Control workers on real Kafka: elected, deciding, publishing, replaced, and replayed."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

import psutil
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from agents.admin import create_topics
from agents.broker import LocalBroker
from agents.bus import Bus, client_args, continued, read_to_end
from schemas import codec, topics
from schemas.events import DeadLetter, DeadLettered, Leading, Published, SolveFailed
from schemas.plans import Plan
from schemas.settings import Settings
from streams import log, snapshots
from streams.core.record import Malformed
from streams.core.state import State
from streams.core.step import step
from streams.log import LogTruncatedError
from streams.replay import replay_live
from tests.control_rig import Eye, Fleet, Worker, make_settings

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

TICK = [("ce_type", b"coral.Tick"), ("ce_dataschema", b"urn:coral:Tick:1.0")]
POISON: list[tuple[bytes | None, codec.Headers]] = [
    (b'{"rate": "abc"', []),
    (None, TICK),
    (b"\xff\x00", TICK),
    (b'{"due_ms": 1}', [TICK[0], ("ce_dataschema", b"urn:coral:Tick:2.0")]),
]
POISON_NAMED = ("ce_type", "value: empty", "Tick: body", "major version 2")
TRACE = b"00-" + b"ab" * 16 + b"-" + b"cd" * 8 + b"-01"


@dataclass
class Scene:
    settings: Settings
    bus: Bus
    eye: Eye
    fleet: Fleet

    async def plans(self) -> list[Plan]:
        found = []
        for record in await read_to_end(self.bus.kafka, self.bus.name(topics.PLANS)):
            plan = codec.decode(topics.PLANS, record.value, record.headers)
            assert isinstance(plan, Plan)
            found.append(plan)
        return found

    async def letters(self) -> dict[int, DeadLetter]:
        """Dead letters by the offset they stood at."""
        found = {}
        for record in await read_to_end(self.bus.kafka, self.bus.name(topics.DEADLETTER)):
            letter = codec.decode(topics.DEADLETTER, record.value, record.headers)
            assert isinstance(letter, DeadLetter)
            assert letter.reader == "control"
            found[letter.offset] = letter
        return found

    async def poison(self, value: bytes | None, headers: codec.Headers) -> int:
        """Append something that is no event; returns its offset."""
        producer = self.bus._producer
        assert producer is not None
        name = self.bus.name(topics.CONTROL)
        written = await producer.send_and_wait(name, value, key=b"poison", headers=headers)
        return int(written.offset)


@asynccontextmanager
async def scene(settings: Settings) -> AsyncIterator[Scene]:
    await create_topics(settings)
    async with Bus(settings.kafka, settings.topic_prefix, "test") as bus:
        yield Scene(settings, bus, Eye(bus), Fleet(bus, time.time_ns() // 1_000_000))


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    """Filled by the test, closed whatever happens."""
    made: list[Worker] = []
    yield made
    for worker in made:
        worker.close()


async def test_a_leader_decides_publishes_confirms_and_survives_poison(
    kafka: str, topic_prefix: str, tmp_path: Path, workers: list[Worker]
) -> None:
    settings = make_settings(kafka, topic_prefix, tmp_path, snapshot_every=5)
    async with scene(settings) as it:
        workers.append(worker := Worker(settings, tmp_path, "one"))
        worker.start()
        first = await it.eye.until_led()
        await it.fleet.offer()
        await it.fleet.demand(5)
        await it.eye.until(lambda: len(it.eye.of(Published)) >= 1, "a first plan confirmed")

        offsets = [await it.poison(value, headers) for value, headers in POISON]
        await it.eye.until(lambda: len(it.eye.of(DeadLettered)) == len(POISON), "the poison put aside")
        assert sorted(said.offset for said in it.eye.of(DeadLettered)) == offsets
        assert len(it.eye.of(Malformed)) == len(POISON)
        letters = await it.letters()
        assert sorted(letters) == offsets
        reasons = [letters[offset].reason for offset in offsets]
        for reason, named in zip(
            reasons, ("ce_type", "value: empty", "Tick: body", "major version 2"), strict=True
        ):
            assert named in reason

        confirmed = len(it.eye.of(Published))
        with continued("test", [("traceparent", TRACE)]):
            await it.fleet.demand(40)
        await it.eye.until(lambda: len(it.eye.of(Published)) > confirmed, "a plan after the poison")
        await it.eye.until_rest()
        last = (await read_to_end(it.bus.kafka, it.bus.name(topics.PLANS)))[-1]
        # From the window by way of the solve and its answer to the plan: one trace.
        assert dict(last.headers)["traceparent"].split(b"-")[1] == TRACE.split(b"-")[1]
        by_id = {plan.id: plan for plan in await it.plans()}
        assert {p.plan: p.digest for p in it.eye.of(Published)} == {k: p.digest for k, p in by_id.items()}
        assert not it.eye.of(SolveFailed)

        children = worker.children()
        assert children
        assert worker.end() == 0
        assert not [child for child in children if psutil.pid_exists(child.pid)]

        # Again, from a snapshot: the same history as by folding everything.
        worker.start()
        second = await it.eye.until_led(after=it.eye.state.offset)
        assert second.token != first.token
        await it.eye.until_rest()
        loaded = await snapshots.load(it.bus)
        assert loaded is not None
        assert loaded.offset > 0
        assert await folded_on(it.bus, loaded) == await folded_on(it.bus, State())
        assert worker.end() == 0

        report = await replay_live(it.bus)
        assert report.difference is None
        assert report.leaders == 2
        assert report.published >= 2
        assert report.on_topic >= 2


async def folded_on(bus: Bus, state: State) -> str:
    async for entry in log.read(bus.kafka, bus.name(topics.CONTROL), state.offset + 1):
        step(state, entry.record())
    return state.history


async def test_a_standby_takes_over_and_a_late_word_of_the_old_leader_is_dropped(
    kafka: str, topic_prefix: str, tmp_path: Path, workers: list[Worker]
) -> None:
    settings = make_settings(kafka, topic_prefix, tmp_path)
    async with scene(settings) as it:
        workers += [Worker(settings, tmp_path, "one"), Worker(settings, tmp_path, "two")]
        workers[0].start()
        await it.eye.until_led()
        await it.fleet.offer()
        await it.fleet.demand(5)
        await it.eye.until(lambda: bool(it.eye.of(Published)), "a first plan confirmed")
        workers[1].start()
        # The join rebalances, so that one of the two leads anew.
        led = await it.eye.until_led(after=it.eye.state.offset)
        leader = next(worker for worker in workers if worker.has_led_with(led.token))
        old_epoch = it.eye.state.epoch
        old_plan = (await it.plans())[-1]
        orphans = leader.children()
        leader.signal(SIGKILL)
        leader.wait()
        after = await it.eye.until_led(after=it.eye.state.offset)
        assert after.token != led.token
        assert it.eye.state.epoch > old_epoch
        assert psutil.wait_procs(orphans, timeout=30)[1] == []  # its solver died with it

        # The old leader's late failure and plan: neither moves anybody.
        await it.fleet.tell(SolveFailed(epoch=old_epoch, problem="p1-1", reason="late"))
        late = old_plan.model_copy(update={"sequence": old_plan.sequence + 1000})
        await it.bus.send(topics.PLANS, late, event_id=late.id)
        confirmed = len(it.eye.of(Published))
        await it.fleet.demand(40)
        await it.eye.until(lambda: len(it.eye.of(Published)) > confirmed, "a plan of the new leader")
        await it.eye.until_rest()
        assert max(plan.order for plan in await it.plans()) > late.order
        assert len(it.eye.of(Leading)) >= 2

        # A ghost: a candidate that lost the partition before its `Leading` came through. Nobody performs
        # in its name, and whoever has the partition takes the lead back.
        ghost = it.eye.of(Leading)[-1].model_copy(update={"token": "ghost"})
        await it.fleet.tell(ghost)
        await it.eye.until(lambda: it.eye.state.leader not in {"ghost", after.token}, "the lead taken back")
        await it.eye.until_rest()
        for worker in workers:
            if worker is not leader:
                assert worker.end() == 0
        report = await replay_live(it.bus)
        assert report.difference is not None  # the forged plan, and nothing else
        assert late.id in report.difference


async def test_a_snapshot_that_does_not_count_is_passed_over(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    """A torn one, another lineage's and one beyond the end are passed over for an older one."""
    settings = make_settings(kafka, topic_prefix, tmp_path)
    async with scene(settings) as it:
        await it.fleet.offer()
        await it.eye.look()
        good = snapshots.encode(it.eye.state, "1")
        await snapshots.write(it.bus, good)
        await it.fleet.alive()
        await it.eye.look()
        newer = snapshots.encode(it.eye.state, "1")
        beyond = it.eye.state.model_copy(update={"offset": 1000})
        other = it.eye.state.model_copy(update={"lineage": 7})
        await it.bus.send(topics.SNAPSHOTS, newer.manifest)  # its chunks were lost
        for wrong in (beyond, other):
            await snapshots.write(it.bus, snapshots.encode(wrong, "1"))
        loaded = await snapshots.load(it.bus)
        assert loaded is not None
        assert loaded.offset == good.manifest.offset


async def test_a_snapshot_stands_in_for_a_head_that_is_no_longer_kept(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    settings = make_settings(kafka, topic_prefix, tmp_path)
    async with scene(settings) as it:
        await it.fleet.offer()
        await it.eye.look()
        kept = it.eye.state.offset
        await snapshots.write(it.bus, snapshots.encode(it.eye.state, "1"))
        await it.fleet.alive()
        await it.fleet.alive()
        await forget(it, kept + 1)
        assert (await replay_live(it.bus)).first_offset == kept + 1
        await forget(it, kept + 2)
        with pytest.raises(LogTruncatedError, match=f"offset 0 is missing, the log begins at {kept + 2}"):
            await replay_live(it.bus)


async def forget(it: Scene, before: int) -> None:
    """Delete the control log's records below an offset, as retention does."""
    admin = AIOKafkaAdminClient(**client_args(it.bus.kafka))
    await admin.start()
    try:
        here = TopicPartition(it.bus.name(topics.CONTROL), 0)
        await admin.delete_records({here: RecordsToDelete(before_offset=before)})
    finally:
        await admin.close()


async def test_a_worker_ends_cleanly_while_its_solver_is_warming_up(
    kafka: str, topic_prefix: str, tmp_path: Path, workers: list[Worker]
) -> None:
    settings = make_settings(kafka, topic_prefix, tmp_path)
    async with scene(settings) as it:
        workers.append(worker := Worker(settings, tmp_path, "one"))
        worker.start()
        children = await asyncio.to_thread(worker.first_children)
        assert worker.end() == 0
        assert psutil.wait_procs(children, timeout=30)[1] == []
        await it.eye.look()
        assert not it.eye.of(Leading)


async def test_a_broker_that_goes_and_comes_back_costs_no_plan(
    own_broker: LocalBroker, topic_prefix: str, tmp_path: Path, workers: list[Worker]
) -> None:
    settings = make_settings(own_broker.bootstrap, topic_prefix, tmp_path)
    async with scene(settings) as it:
        workers.append(worker := Worker(settings, tmp_path, "one"))
        worker.start()
        await it.eye.until_led()
        await it.fleet.offer()
        await it.fleet.demand(5)
        await it.eye.until(lambda: bool(it.eye.of(Published)), "a first plan confirmed")
        confirmed = len(it.eye.of(Published))
        await it.fleet.demand(40)  # its solve and plan may be under way when the broker goes
        await asyncio.to_thread(own_broker.kill)
        await asyncio.to_thread(own_broker.start)
        await it.eye.until(lambda: len(it.eye.of(Published)) > confirmed, "the plan all the same")
        await it.eye.until_rest()
        assert (await replay_live(it.bus)).difference is None
        assert worker.end() == 0
