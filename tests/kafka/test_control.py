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

from agents.admin import create_topics
from agents.broker import LocalBroker
from agents.bus import Bus, read_to_end
from schemas import codec, topics
from schemas.events import DeadLetter, DeadLettered, Leading, Published, SnapshotManifest, SolveFailed
from schemas.plans import Plan
from schemas.settings import Settings
from streams import log, snapshots
from streams.core.record import Malformed
from streams.core.state import State
from streams.core.step import step
from streams.replay import replay_live
from tests.control_rig import Eye, Fleet, Worker, make_settings

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


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

        producer = it.bus._producer
        assert producer is not None
        written = await producer.send_and_wait(it.bus.name(topics.CONTROL), b'{"rate": "abc"')
        await it.eye.until(lambda: bool(it.eye.of(DeadLettered)), "the unreadable record put aside")
        assert it.eye.of(DeadLettered)[0].offset == written.offset
        assert len(it.eye.of(Malformed)) == 1
        letters = await read_to_end(it.bus.kafka, it.bus.name(topics.DEADLETTER))
        letter = codec.decode(topics.DEADLETTER, letters[0].value, letters[0].headers)
        assert isinstance(letter, DeadLetter)
        assert (letter.offset, letter.reader) == (written.offset, "control")
        assert "ce_type" in letter.reason

        confirmed = len(it.eye.of(Published))
        await it.fleet.demand(40)
        await it.eye.until(lambda: len(it.eye.of(Published)) > confirmed, "a plan after the poison")
        await it.eye.until(lambda: it.eye.at_rest, "rest")
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
        await it.eye.until(lambda: it.eye.at_rest, "rest")
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
        await it.eye.until(lambda: it.eye.at_rest, "rest")
        assert max(plan.order for plan in await it.plans()) > late.order
        assert len(it.eye.of(Leading)) >= 2

        # A ghost: a candidate that lost the partition before its `Leading` came through. Nobody performs
        # in its name, and whoever has the partition takes the lead back.
        ghost = it.eye.of(Leading)[-1].model_copy(update={"token": "ghost"})
        await it.fleet.tell(ghost)
        await it.eye.until(lambda: it.eye.state.leader not in {"ghost", after.token}, "the lead taken back")
        await it.eye.until(lambda: it.eye.at_rest, "rest")
        for worker in workers:
            if worker is not leader:
                assert worker.end() == 0
        report = await replay_live(it.bus)
        assert report.difference is not None  # the forged plan, and nothing else
        assert late.id in report.difference


async def test_snapshots_are_written_for_the_next_candidate(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    """Damage, another lineage and one beyond the end are passed over for an older one that counts."""
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
        assert isinstance(good.manifest, SnapshotManifest)


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
        await it.eye.until(lambda: it.eye.at_rest, "rest")
        assert (await replay_live(it.bus)).difference is None
        assert worker.end() == 0
