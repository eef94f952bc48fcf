"""`fold` on real Kafka, in processes of its own."""

import asyncio
import json
import signal
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.partitioner import murmur2
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from agents.bus import Bus, client_args
from schemas import codec, topics
from schemas.events import (
    AvailabilityChanged,
    AvailabilityOffered,
    DeadLetter,
    DemandClosed,
    FleetAlive,
    Heartbeat,
    NodeReported,
    NodeSilent,
    Offer,
    PriceChanged,
    PriceOffered,
    RollCall,
)
from schemas.problems import Pool
from schemas.settings import Settings
from schemas.topics import Topic
from tests.kafka.fold_rig import bus_with_topics, fold_worker, following, next_of, sample, settings_for

pytestmark = pytest.mark.kafka

POOL = Pool(cloud="gcp", region="us-central1", market="spot")
OFFER = Offer(pool=POOL, configuration="2xL4", source="feed")
TRACE = 0x1234567890ABCDEF1234567890ABCDEF


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def traced() -> Any:
    """A context in which all that is sent belongs to `TRACE`."""
    return trace.use_span(NonRecordingSpan(SpanContext(TRACE, 1, is_remote=False, trace_flags=TraceFlags(1))))


async def stream_samples(bus: Bus) -> None:
    """One sample every 100 ms, until cancelled."""
    with traced():
        while True:
            await bus.send(topics.TELEMETRY, sample(at_ms=now_ms()), key="m")
            await asyncio.sleep(0.1)


def heartbeat(**given: Any) -> Heartbeat:
    said = {"node": "n1", "boot": "b1", "at_ms": now_ms(), "pool": POOL, "configuration": "2xL4"}
    return Heartbeat.model_validate(said | {"devices": 2, "memory_gb": 48.0} | given)


async def test_windows_of_a_steady_stream(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    """Windows come out whole and in order, each with the trace of the sample that closed it."""
    settings = settings_for(kafka, topic_prefix)
    async with bus_with_topics(settings) as bus, following(settings, topics.CONTROL) as control:
        with fold_worker(settings, tmp_path / "fold.log") as worker:
            stream = asyncio.create_task(stream_samples(bus))
            windows = [await next_of(control, topics.CONTROL, DemandClosed) for _ in range(4)]
            stream.cancel()
            assert await asyncio.to_thread(worker.end) == 0
    starts = [window.start_ms for window, _ in windows]
    assert [start - starts[0] for start in starts] == [0, 1000, 2000, 3000]
    for window, record in windows:
        assert (window.model, window.slo_class, window.sources, window.late_samples) == ("m", "chat", 1, 0)
        assert window.offered > 0
        assert window.input_tokens == 10 * window.offered
        headers = codec.header_map(record.headers)
        assert headers["ce_id"] == f"m/chat/{window.start_ms}"
        assert f"{TRACE:032x}" in headers["traceparent"]


FREE = json.dumps({"offer": OFFER.model_dump(mode="json"), "usd_per_hour": 0, "at_ms": 1}).encode()
"""Only reserved nodes are."""

POISON: dict[str, tuple[Topic, bytes | None, dict[str, str], str]] = {
    "no JSON": (topics.TELEMETRY, b"\xff\x00", {}, "Invalid JSON"),
    "no value": (topics.TELEMETRY, None, {}, "value: empty"),
    "text for a number": (topics.TELEMETRY, b'{"offered": "abc"}', {}, "offered: .*'abc'"),
    "NaN": (topics.PRICES, b'{"usd_per_hour": NaN}', {}, "usd_per_hour: "),
    "a price of nothing": (topics.PRICES, FREE, {}, "usd_per_hour: 0 for .*, expected above 0"),
    "other type": (topics.AVAILABILITY, b"{}", {"ce_type": "coral.Heartbeat"}, "ce_type: 'coral.Heartbeat'"),
    "later schema": (topics.FLEET, b"{}", {"ce_dataschema": "urn:coral:Heartbeat:9.0"}, "major version 9"),
    "no version": (topics.FLEET, b"{}", {"ce_dataschema": ""}, "ce_dataschema: ''"),
}


async def send_raw(
    producer: AIOKafkaProducer, settings: Settings, topic: Topic, value: bytes | None, given: dict[str, str]
) -> None:
    name = topic.types[0].__name__
    headers = {"ce_type": f"coral.{name}", "ce_dataschema": f"urn:coral:{name}:1.0"} | given
    raw = [(key, text.encode()) for key, text in headers.items()]
    await producer.send_and_wait(settings.topic(topic), value=value, key=b"k", headers=raw)


async def next_letter(letters: AIOKafkaConsumer) -> DeadLetter:
    letter, _ = await next_of(letters, topics.DEADLETTER, DeadLetter)
    assert letter.reader == "fold"
    return letter


async def test_bad_input_is_put_aside_and_the_loop_goes_on(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    """robinhood/faust#586, ai-dynamo/dynamo#6985: each with its reason, and then good input as ever."""
    settings = settings_for(kafka, topic_prefix, partitions={"telemetry": 2})
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(bus_with_topics(settings))
        letters = await stack.enter_async_context(following(settings, topics.DEADLETTER))
        control = await stack.enter_async_context(following(settings, topics.CONTROL))
        worker = stack.enter_context(fold_worker(settings, tmp_path / "fold.log"))
        async with AIOKafkaProducer(**client_args(settings.kafka)) as producer:
            for topic, value, headers, reason in POISON.values():
                await send_raw(producer, settings, topic, value, headers)
                letter = await next_letter(letters)
                assert letter.topic == settings.topic(topic)
                with pytest.raises(AssertionError, match=reason):
                    raise AssertionError(letter.reason)
        await bus.send(topics.TELEMETRY, sample(at_ms=now_ms() + 60_000), key="m")
        assert "at_ms: " in (await next_letter(letters)).reason
        elsewhere = next(key for key in "abcdef" if murmur2(key.encode()) % 2 != murmur2(b"m") % 2)
        await bus.send(topics.TELEMETRY, sample(at_ms=now_ms()), key=elsewhere)
        misplaced = await next_letter(letters)
        assert misplaced.reason.startswith("model: 'm' on partition "), misplaced.reason
        for topic, event in (
            (topics.PRICES, PriceOffered(offer=OFFER, usd_per_hour=1.5, at_ms=now_ms())),
            (topics.AVAILABILITY, AvailabilityOffered(offer=OFFER, obtainable=3, at_ms=now_ms())),
        ):
            await bus.send(topic, event, key=OFFER.key)
        await next_of(control, topics.CONTROL, PriceChanged)
        await bus.send(topics.FLEET, heartbeat(), key="n1")
        await next_of(control, topics.CONTROL, NodeReported)
        stream = asyncio.create_task(stream_samples(bus))
        await next_of(control, topics.CONTROL, DemandClosed)
        stream.cancel()
        assert await asyncio.to_thread(worker.end) == 0


async def test_offers_and_nodes_reach_the_log(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    settings = settings_for(kafka, topic_prefix, silent_after_ms=2_000)
    async with bus_with_topics(settings) as bus, following(settings, topics.CONTROL) as control:
        with fold_worker(settings, tmp_path / "fold.log") as worker:
            beats = asyncio.create_task(beat(bus))
            price = PriceOffered(offer=OFFER, usd_per_hour=1.5, at_ms=now_ms())
            stock = AvailabilityOffered(offer=OFFER, obtainable=3, at_ms=now_ms())
            reported, _ = await next_of(control, topics.CONTROL, NodeReported)
            assert reported.report.node == "n1"
            call, _ = await next_of(control, topics.CONTROL, RollCall)
            assert call == RollCall(partition=0, nodes=("n1",))
            alive, _ = await next_of(control, topics.CONTROL, FleetAlive)
            assert alive.count == 1
            await bus.send(topics.PRICES, price, key=OFFER.key)
            changed, _ = await next_of(control, topics.CONTROL, PriceChanged)
            assert changed.usd_per_hour == 1.5
            await bus.send(topics.AVAILABILITY, stock, key=OFFER.key)
            left, _ = await next_of(control, topics.CONTROL, AvailabilityChanged)
            assert left.obtainable == 3
            beats.cancel()
            with suppress(asyncio.CancelledError):
                await beats
            silent, _ = await next_of(control, topics.CONTROL, NodeSilent)
            assert silent.node == "n1"
            assert await asyncio.to_thread(worker.end) == 0


async def beat(bus: Bus) -> None:
    while True:
        await bus.send(topics.FLEET, heartbeat(), key="n1")
        await asyncio.sleep(0.5)


async def test_a_second_run_goes_on_where_the_first_ended(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    """What was acknowledged is not read again, though its terminal went away: an offer is reported once."""
    settings = settings_for(kafka, topic_prefix)
    first = PriceOffered(offer=OFFER, usd_per_hour=1.5, at_ms=now_ms())
    async with bus_with_topics(settings) as bus, following(settings, topics.CONTROL) as control:
        await bus.send(topics.PRICES, first, key=OFFER.key)
        with fold_worker(settings, tmp_path / "fold-1.log") as worker:
            await next_of(control, topics.CONTROL, PriceChanged)
            assert await asyncio.to_thread(worker.end, signal.SIGHUP) == 0
        later = first.model_copy(update={"usd_per_hour": 1.6, "at_ms": now_ms()})
        await bus.send(topics.PRICES, later, key=OFFER.key)
        with fold_worker(settings, tmp_path / "fold-2.log") as worker:
            changed, _ = await next_of(control, topics.CONTROL, PriceChanged)
            assert changed.usd_per_hour == 1.6
            assert await asyncio.to_thread(worker.end) == 0
