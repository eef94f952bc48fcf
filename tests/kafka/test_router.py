"""A real router process on a real Kafka, before real node agents whose engines are simulated."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import pytest

from agents.broker import LocalBroker
from schemas.plans import Instance
from tests.kafka.node_rig import HANG_S, opened
from tests.kafka.router_rig import Routed, ended, pace, shares

pytestmark = pytest.mark.kafka

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@pytest.fixture
async def world(kafka: str, topic_prefix: str, tmp_path: Path) -> AsyncIterator[Routed]:
    made = Routed(kafka, topic_prefix, tmp_path, pace(tokens_s=100, batch=64))
    async with opened(made):
        yield made


async def ask(url: str, **fields: object) -> tuple[int, bytes]:
    body = {**ASK, **fields}
    async with aiohttp.request("POST", f"{url}/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.read()


async def serving(world: Routed, *names: str) -> list[Instance]:
    """Nodes that run these instances, which a plan says serve."""
    await world.start_node("n1")
    await world.start_node("n2")
    instances = [world.make(name, 1.0) for name in names]
    await world.publish(instances)
    await world.ready(*names)
    return [i.model_copy(update={"role": "serving"}) for i in instances]


async def test_it_follows_plans_and_tells_what_it_saw(world: Routed) -> None:
    _, url = await world.start_router()
    assert (await ask(url))[0] == 503
    instances = await serving(world, "i1", "i2")
    await world.follows(url, await world.publish(instances))
    assert [(await ask(url, stream=stream))[0] for stream in (True, False)] == [200, 200]
    samples = await world.told(lambda found: sum(s.finished for s in found) == 2 and found[-1].offered == 0)
    assert {(s.source, s.model, s.slo_class) for s in samples} == {("r1", "tiny", "chat")}
    assert sum(s.offered for s in samples) == 2
    assert sum(s.output_tokens for s in samples) == 8
    assert sum(s.ttft_ms.count for s in samples) == 1
    ends = [s.at_ms + s.interval_ms for s in samples]
    assert [s.at_ms for s in samples[1:]] == ends[:-1], "second by second, without a gap"
    assert any(s.offered == 0 for s in samples), "explicit zeros"


async def test_told_to_end_it_finishes_its_streams_and_takes_nothing_new(world: Routed) -> None:
    router, url = await world.start_router()
    await world.follows(url, await world.publish(await serving(world, "i1")))
    short = 0
    async with aiohttp.ClientSession() as session:
        body = {**ASK, "stream": True, "max_tokens": 300}
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            await answer.content.readany()
            router.send_signal(signal.SIGTERM)
            async with asyncio.timeout(HANG_S):
                while True:
                    try:
                        short += (await ask(url))[0] == 200
                        await asyncio.sleep(0.05)
                    except aiohttp.ClientConnectionError:
                        break
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
    assert await asyncio.wait_for(router.wait(), HANG_S) == 0
    samples = await world.told(lambda found: sum(s.finished for s in found) == 1 + short)
    assert sum(s.output_tokens for s in samples) == 300 + 4 * short, "its last words came through"


async def test_without_kafka_it_goes_on_and_starts_again(
    own_broker: LocalBroker, topic_prefix: str, tmp_path: Path
) -> None:
    world = Routed(own_broker.bootstrap, topic_prefix, tmp_path, pace(tokens_s=100, batch=64))
    async with opened(world):
        router, url = await world.start_router()
        await world.follows(url, await world.publish(await serving(world, "i1")))
        await asyncio.to_thread(own_broker.kill)
        assert (await ask(url))[0] == 200
        router.kill()
        await router.wait()
        _, url = await world.start_router()
        assert (await ask(url))[0] == 200, "by the plan on its disk"
        away = time.time_ns() // 1_000_000
        await asyncio.to_thread(own_broker.start)
        samples = await world.told(lambda found: any(s.finished and s.at_ms < away for s in found))
        assert samples, "what it saw without Kafka came later"


# --- the crowd -------------------------------------------------------------------------------------
WEIGHTS = (4.0, 3.0, 2.0, 2.0, 1.0, 1.0)
STREAMS, AT_ONCE, TOKENS_S, STREAM_S, CHANGES = 2_000, 1_000, 2, 30, 20


async def test_a_thousand_streams_see_nothing_of_twenty_changes_of_the_plan(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    """Every few seconds an instance is replaced by a new one, and drains while its streams go on."""
    world = Routed(kafka, topic_prefix, tmp_path, pace(TOKENS_S, batch=1024))
    async with opened(world):
        _, url = await world.start_router()
        instances = await serving(world, *(f"i{n}" for n in range(len(WEIGHTS))))
        instances = [_rated(i, weight) for i, weight in zip(instances, WEIGHTS, strict=True)]
        await world.follows(url, await world.publish(instances))
        crowd = await world.crowd(
            url, "distinct", streams=STREAMS, at_once=AT_ONCE, ramp_s=15, tokens=TOKENS_S * STREAM_S
        )
        waiting = asyncio.create_task(ended(crowd))
        draining: list[Instance] = []
        for change in range(CHANGES):
            await asyncio.sleep(2.0)
            old = instances.pop(0)
            new = world.make(f"new{change}", old.rating.throughput)
            await world.publish([*instances, old, new, *draining])
            await world.ready(new.id)
            draining.append(old.model_copy(update={"role": "draining"}))
            instances.append(new.model_copy(update={"role": "serving"}))
            await world.publish([*instances, *draining])
        streams = await waiting
        retries = await world.retries(url)
    assert len(streams) == STREAMS
    assert [s for s in streams if s.error or s.status != 200] == []
    _tell(found := shares(world.said, streams), retries)
    assert [s for s in streams if not s.whole or s.tokens != TOKENS_S * STREAM_S] == [], "none was cut"
    assert sum(got for _, got, _ in found) > STREAMS / 4
    for weight, got, due in found:
        assert got == pytest.approx(due, rel=0.05), f"instances of weight {weight}"


def _rated(instance: Instance, weight: float) -> Instance:
    return instance.model_copy(update={"rating": instance.rating.model_copy(update={"throughput": weight})})


def _tell(found: Sequence[tuple[float, float, float]], more: object) -> None:
    """Print what was measured."""
    by_weight = ", ".join(f"{weight:g}: {got:.0f} of {due:.1f}" for weight, got, due in found)
    print(f"\n{sum(got for _, got, _ in found):.0f} streams by weight: {by_weight}; {more}")


async def test_shared_beginnings_are_sent_where_they_are_known(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    """Reported: how often a prompt met an instance that knew its beginning, and at what cost in balance."""
    world = Routed(kafka, topic_prefix, tmp_path, pace(tokens_s=10, batch=128))
    async with opened(world):
        _, url = await world.start_router()
        instances = [
            _rated(i, w)
            for i, w in zip(
                await serving(world, *(f"i{n}" for n in range(len(WEIGHTS)))), WEIGHTS, strict=True
            )
        ]
        await world.follows(url, await world.publish(instances))
        crowd = await world.crowd(url, "shared", streams=2_000, at_once=200, ramp_s=5, tokens=30)
        streams = await ended(crowd)
    assert [s for s in streams if s.error or not s.whole] == []
    known: set[tuple[int, str]] = set()
    hits = 0
    for stream in sorted(streams, key=lambda s: s.number):
        hits += (stream.beginning, stream.instance) in known
        known.add((stream.beginning, stream.instance))
    found = shares(world.said, streams)
    worst = max(got / due for _, got, due in found)
    _tell(found, f"hit rate {hits / len(streams):.3f}, imbalance {worst:.2f}")
    assert hits / len(streams) > 0.85
    assert worst < 1.5
