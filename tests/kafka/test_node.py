"""A real node process on a real Kafka: what it does about plans, and what a kill leaves behind."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from aiokafka import AIOKafkaConsumer

from agents.admin import create_topics
from agents.broker import LocalBroker
from agents.bus import Bus, read_to_end
from agents.reconciler import AGENT_RESTARTED
from schemas import codec, topics
from schemas.events import DeadLetter, Heartbeat, StageReport
from schemas.plans import Plan
from schemas.settings import KafkaSettings, Settings
from tests.agents.making import instance, plan

pytestmark = pytest.mark.kafka

HANG_S = 90.0
"""No assertion about time: how long a test waits before it calls something hung."""

AGENT = """
import json, sys
from pathlib import Path
from agents.identity import NodeIdentity
from agents.node import Pace, run
from agents.simulated import SimulatedEngine
from schemas.problems import Pool
from schemas.settings import KafkaSettings

servers, prefix, state = sys.argv[1:]
pool = Pool(cloud="local", region="here", market="on-demand")
run(
    KafkaSettings(bootstrap_servers=servers),
    prefix,
    NodeIdentity("n1", pool, "4xL4", devices=4, memory_gb=96.0),
    Path(state),
    lambda: SimulatedEngine(linger_s=0.2),
    Pace(leave_grace_s=60.0),
)
"""


class World:
    """One prefix on a broker: plans to say, heartbeats to hear, and the agent as a process."""

    def __init__(self, servers: str, prefix: str, state: Path) -> None:
        self.settings = Settings(topic_prefix=prefix, kafka=KafkaSettings(bootstrap_servers=servers))
        self.state = state
        self.bus = Bus(self.settings.kafka, prefix, "test/plans")
        self._heard: AIOKafkaConsumer | None = None
        self._processes: list[asyncio.subprocess.Process] = []

    async def open(self) -> None:
        await create_topics(self.settings)
        await self.bus.__aenter__()
        self._heard = AIOKafkaConsumer(
            self.bus.name(topics.FLEET),
            bootstrap_servers=self.settings.kafka.bootstrap_servers,
            auto_offset_reset="earliest",
        )
        await self._heard.start()

    async def close(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        if self._heard is not None:
            await self._heard.stop()
        await self.bus.__aexit__(None, None, None)

    async def spawn(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", AGENT, self.settings.kafka.bootstrap_servers),
            *(self.settings.topic_prefix, str(self.state)),
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        self._processes.append(process)
        return process

    async def say(self, wish: Plan) -> None:
        await self.bus.send(topics.PLANS, wish, event_id=wish.id)

    async def hear(self, wanted: Callable[[Heartbeat], bool]) -> Heartbeat:
        """The next heartbeat that is as wanted."""
        assert self._heard is not None
        async with asyncio.timeout(HANG_S):
            async for record in self._heard:
                beat = codec.decode(topics.FLEET, record.value, record.headers)
                assert isinstance(beat, Heartbeat)
                assert record.key == b"n1"
                if wanted(beat):
                    return beat
        raise AssertionError("the consumer ended")

    async def stage(self, state: str) -> StageReport:
        """The only stage, once it is in this state."""
        beat = await self.hear(lambda beat: [stage.state for stage in beat.stages] == [state])
        return beat.stages[0]


@asynccontextmanager
async def opened(world: World) -> AsyncIterator[World]:
    try:
        await world.open()
        yield world
    finally:
        await world.close()


@pytest.fixture
async def world(kafka: str, topic_prefix: str, tmp_path: Path) -> AsyncIterator[World]:
    async with opened(World(kafka, topic_prefix, tmp_path / "n1")) as made:
        yield made


async def test_a_stream_outlives_the_drain_of_its_instance(world: World) -> None:
    """ai-dynamo/dynamo#13559, from plan to plan; an older plan in between changes nothing."""
    await world.spawn()
    await world.say(plan(2, instance("i1", role="starting")))
    await world.stage("starting")
    ready = await world.stage("ready")
    ask = {"model": "tiny", "prompt": "x", "max_tokens": 1000, "stream": True}
    async with (
        httpx.AsyncClient(base_url=f"http://{ready.endpoint}", timeout=HANG_S) as client,
        client.stream("POST", "/v1/completions", json=ask) as stream,
    ):
        lines = stream.aiter_lines()
        await anext(lines)
        await world.say(plan(1))
        await world.say(plan(3, instance("i1", role="draining")))
        draining = await world.stage("draining")
        assert draining.in_flight == 1
        late = await client.post("/v1/completions", json=ask)
        assert (late.status_code, late.headers["x-coral-elsewhere"]) == (503, "1")
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert len(rest) == 1000
    await world.stage("drained")
    await world.say(plan(4))
    gone = await world.hear(lambda beat: not beat.stages)
    assert gone.plan == "1-1-4"


async def test_a_killed_agent_does_not_start_an_attempt_again(world: World) -> None:
    killed = await world.spawn()
    await world.say(plan(1, instance("i1")))
    await world.stage("ready")
    killed.kill()
    await killed.wait()
    await world.spawn()
    failed = await world.stage("failed")
    assert (failed.attempt, failed.reason) == (1, AGENT_RESTARTED)
    await world.say(plan(2, instance("i1", attempt=2)))
    assert (await world.stage("ready")).attempt == 2


async def test_a_plan_that_is_none_goes_to_the_dead_letters(world: World) -> None:
    await world.spawn()
    poison = plan(1).model_dump(mode="json") | {"sequence": "one"}
    envelope = codec.encode(plan(1), key=None, event_id="x", source="test", time="2026-01-01T00:00:00Z")
    producer = world.bus._producer
    assert producer is not None
    for value in (b"no json", json.dumps(poison).encode()):
        await producer.send_and_wait(world.bus.name(topics.PLANS), value, headers=envelope.headers)
    await world.say(plan(2, instance("i1")))
    await world.stage("ready")
    reasons = []
    for partition_record in await read_to_end(world.settings.kafka, world.bus.name(topics.DEADLETTER)):
        letter = codec.decode(topics.DEADLETTER, partition_record.value, partition_record.headers)
        assert isinstance(letter, DeadLetter)
        reasons.append(letter.reason)
    assert len(reasons) == 2
    assert "JSON" in reasons[0]
    assert "sequence" in reasons[1]


async def test_told_to_end_it_says_so_and_drains(world: World) -> None:
    agent = await world.spawn()
    await world.say(plan(1, instance("i1")))
    await world.stage("ready")
    agent.send_signal(signal.SIGTERM)
    leaving = await world.hear(lambda beat: beat.leaving)
    assert leaving.stages[0].state == "draining"
    assert (await world.stage("drained")).reason == "the node is leaving"
    assert await asyncio.wait_for(agent.wait(), HANG_S) == 0


async def test_a_notice_is_passed_on(world: World) -> None:
    await world.spawn()
    await world.hear(lambda beat: beat.notice_deadline_ms is None)
    (world.state / "notice").write_text("4102444800000")
    await world.hear(lambda beat: beat.notice_deadline_ms == 4_102_444_800_000)


async def test_a_broker_that_is_away_stops_nothing(
    own_broker: LocalBroker, topic_prefix: str, tmp_path: Path
) -> None:
    async with opened(World(own_broker.bootstrap, topic_prefix, tmp_path / "n1")) as world:
        await world.spawn()
        await world.say(plan(1, instance("i1")))
        ready = await world.stage("ready")
        await asyncio.to_thread(own_broker.kill)
        async with httpx.AsyncClient(base_url=f"http://{ready.endpoint}", timeout=HANG_S) as client:
            ask = {"model": "tiny", "prompt": "x", "max_tokens": 1000}
            assert (await client.post("/v1/completions", json=ask)).status_code == 200
        await asyncio.to_thread(own_broker.start)
        await world.say(plan(2, instance("i1", role="draining")))
        await world.stage("drained")
