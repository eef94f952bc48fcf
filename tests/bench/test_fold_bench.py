"""How many samples a second one fold worker takes from a backlog, on real Kafka and without."""

import asyncio
import time
from itertools import product
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaProducer
from faust.types import TP

from agents.bus import client_args
from schemas import codec, topics
from schemas.events import DemandClosed
from schemas.settings import FoldSettings
from schemas.sketch import Sketch
from streams.fold_readers import Message, Span, make_reader
from tests.kafka.fold_rig import bus_with_topics, fold_worker, following, next_of, sample, settings_for

pytestmark = pytest.mark.bench

MODELS, SOURCES, SECONDS = 10, 5, 1_000
"""50,000 samples: ten models, seen by five routers each second, with eight latencies a sample."""


def backlog(end_ms: int) -> list[codec.Envelope]:
    ttft_ms, tpot_ms = Sketch.of([80.0 * n for n in range(1, 9)]), Sketch.of([9.0, 12.0, 30.0])
    sent = []
    for at_ms in range(end_ms - SECONDS * 1000, end_ms, 1000):
        for model, source in product(range(MODELS), range(SOURCES)):
            one = sample(
                model=f"m{model}", source=f"r{source}", at_ms=at_ms, ttft_ms=ttft_ms, tpot_ms=tpot_ms
            )
            sent.append(codec.encode(one, key=one.model, event_id=one.id, source=one.source, time="2026"))
    return sent


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_reader_alone() -> None:
    """Decoding and windows, without Kafka and Faust."""
    end_ms = now_ms()
    reader = make_reader(topics.TELEMETRY, TP("t", 0), Span(0, 0, 1), FoldSettings())
    begin_ms = end_ms - SECONDS * 1000
    messages = [
        Message(reader.tp, n, begin_ms + n // (MODELS * SOURCES) * 1000, None, e.value, e.headers)
        for n, e in enumerate(backlog(end_ms))
    ]
    began = time.perf_counter()
    windows = 0
    for message in messages:
        windows += len(reader.read(message, end_ms))
        reader.settle()
    took_s = time.perf_counter() - began
    assert windows >= MODELS * (SECONDS // 10 - 3)
    print(f"\nreader alone: {len(messages) / took_s:,.0f} samples/s, {windows} windows")


@pytest.mark.kafka
async def test_one_worker(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    """From the first window on the log to the last: the worker's start is not counted.

    The backlog reaches the broker within seconds, so a source must count as known after a blink.
    """
    settings = settings_for(kafka, topic_prefix, window_ms=10_000, lateness_ms=2_000, source_idle_ms=200)
    end_ms = now_ms() // 10_000 * 10_000
    async with bus_with_topics(settings), following(settings, topics.CONTROL) as control:
        async with AIOKafkaProducer(**client_args(settings.kafka), linger_ms=20) as producer:
            sent = backlog(end_ms)
            name = settings.topic(topics.TELEMETRY)
            waits = [await producer.send(name, value=e.value, key=e.key, headers=e.headers) for e in sent]
            await asyncio.gather(*waits)
        with fold_worker(settings, tmp_path / "fold.log") as worker:
            first, first_record = await next_of(control, topics.CONTROL, DemandClosed)
            last, last_record = first, first_record
            while last.end_ms < end_ms - 10_000:
                last, last_record = await next_of(control, topics.CONTROL, DemandClosed)
            cpu_s = sum(psutil.Process(worker.process.pid).cpu_times()[:2])
            assert await asyncio.to_thread(worker.end) == 0
    samples = (last.end_ms - first.end_ms) // 1000 * MODELS * SOURCES
    took_s = (last_record.timestamp - first_record.timestamp) / 1000
    print(f"\none worker: {samples / took_s:,.0f} samples/s ({samples} in {took_s:.1f} s)")
    print(f"{len(sent) / cpu_s:,.0f} samples for each second of CPU time, its start included")
