"""A real node process on a real Kafka: what it does about plans, and what a kill leaves behind."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from opentelemetry import trace

from agents.broker import LocalBroker
from agents.bus import read_to_end
from agents.reconciler import AGENT_RESTARTED
from schemas import codec, topics
from schemas.events import DeadLetter
from tests.agents.making import instance, plan
from tests.kafka.node_rig import HANG_S, World, opened

pytestmark = pytest.mark.kafka

TRACE = 0x0AF7651916CD43DD8448EB211C80319C
STEPS = 6_000
"""Tokens that take the simulated engine 12 s and more."""

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


async def start_node(world: World, state: Path) -> asyncio.subprocess.Process:
    """The agent of n1, with simulated engines."""
    kafka = world.settings.kafka.bootstrap_servers
    return await world.spawn(sys.executable, "-c", AGENT, kafka, world.settings.topic_prefix, str(state))


@pytest.fixture
async def world(kafka: str, topic_prefix: str) -> AsyncIterator[World]:
    async with opened(World(kafka, topic_prefix)) as made:
        yield made


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The node's own folder."""
    return tmp_path / "n1"


async def test_a_stream_outlives_the_drain_of_its_instance(world: World, state: Path) -> None:
    """ai-dynamo/dynamo#13559, from plan to plan; an older plan in between changes nothing."""
    await start_node(world, state)
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


async def test_a_killed_agent_does_not_start_an_attempt_again(world: World, state: Path) -> None:
    killed = await start_node(world, state)
    await world.say(plan(1, instance("i1")))
    await world.stage("ready")
    killed.kill()
    await killed.wait()
    await start_node(world, state)
    failed = await world.stage("failed")
    assert (failed.attempt, failed.reason) == (1, AGENT_RESTARTED)
    await world.say(plan(2, instance("i1", attempt=2)))
    assert (await world.stage("ready")).attempt == 2


async def test_a_plan_that_is_none_goes_to_the_dead_letters(world: World, state: Path) -> None:
    await start_node(world, state)
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


async def test_told_to_end_it_says_so_and_drains(world: World, state: Path) -> None:
    agent = await start_node(world, state)
    await world.say(plan(1, instance("i1")))
    await world.stage("ready")
    agent.send_signal(signal.SIGTERM)
    leaving = await world.hear(lambda beat: beat.leaving)
    assert leaving.stages[0].state == "draining"
    assert (await world.stage("drained")).reason == "the node is leaving"
    assert await asyncio.wait_for(agent.wait(), HANG_S) == 0


async def test_a_notice_is_passed_on(world: World, state: Path) -> None:
    await start_node(world, state)
    await world.hear(lambda beat: beat.notice_deadline_ms is None)
    (state / "notice").write_text("4102444800000")
    await world.hear(lambda beat: beat.notice_deadline_ms == 4_102_444_800_000)


async def test_news_goes_on_with_the_trace_of_the_plan(world: World, state: Path) -> None:
    await start_node(world, state)
    await world.hear(lambda beat: not beat.stages)
    with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(TRACE, 1, is_remote=False))):
        await world.say(plan(1, instance("i1")))
    await world.stage("starting")
    await world.stage("ready")
    await world.stage("ready")
    traced = [f"{TRACE:032x}" in parent for parent in world.traces]
    starting = next(place for place, beat in enumerate(world.heard) if beat.stages)
    ready = next(place for place, beat in enumerate(world.heard) if "ready" in {s.state for s in beat.stages})
    assert traced[0] is False
    assert traced[starting] is True
    assert traced[ready] is True
    assert traced[-1] is False, "a heartbeat without news is nobody's effect"


async def test_a_broker_that_is_away_stops_nothing(
    own_broker: LocalBroker, topic_prefix: str, state: Path
) -> None:
    """Away for longer than any of Kafka's sessions (10 s); at the end the node still follows and reports."""
    async with opened(World(own_broker.bootstrap, topic_prefix)) as world:
        agent = await start_node(world, state)
        await world.say(plan(1, instance("i1")))
        ready = await world.stage("ready")
        await asyncio.to_thread(own_broker.kill)
        ask = {"model": "tiny", "prompt": "x", "max_tokens": STEPS, "stream": True}
        async with (
            httpx.AsyncClient(base_url=f"http://{ready.endpoint}", timeout=HANG_S) as client,
            client.stream("POST", "/v1/completions", json=ask) as stream,
        ):
            lines = [line async for line in stream.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert len(lines) == STEPS + 1
        assert agent.returncode is None
        await asyncio.to_thread(own_broker.start)
        after = await world.hear(lambda beat: beat.plan == "1-1-1")
        assert [(stage.state, stage.endpoint) for stage in after.stages] == [("ready", ready.endpoint)]
        await world.say(plan(2, instance("i1", role="draining")))
        await world.stage("drained")
