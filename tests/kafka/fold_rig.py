"""What the tests of `fold` on real Kafka share: settings, worker processes, and reading topics back."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import ConsumerRecord

from agents.admin import create_topics
from agents.bus import Bus, client_args, read_to_end
from schemas import codec, topics
from schemas.base import Frozen
from schemas.events import DeadLetter
from schemas.settings import FoldSettings, KafkaSettings, Settings
from schemas.telemetry import TelemetrySample

HANG_S = 60.0
"""Longer without any record, and something hangs."""
REPO = Path(__file__).resolve().parents[2]
MAIN = (
    "import logging, sys; from schemas.settings import Settings; from streams.fold import run; "
    "logging.basicConfig(level='INFO', format='%(asctime)s %(name)s %(levelname)s %(message)s'); "
    "run(Settings.model_validate_json(sys.argv[1]))"
)
E = TypeVar("E", bound=Frozen)


def settings_for(
    kafka: str, prefix: str, *, partitions: dict[str, int] | None = None, **fold: int
) -> Settings:
    """Short windows, and one partition a topic unless said otherwise."""
    rules = {"window_ms": 1000, "lateness_ms": 500, "source_idle_ms": 2000, "roll_call_after_ms": 1000} | fold
    given = {topic.name: 1 for topic in topics.TOPICS} | (partitions or {})
    return Settings(
        topic_prefix=prefix,
        kafka=KafkaSettings(bootstrap_servers=kafka, partitions=given),
        fold=FoldSettings(**rules),
    )


@asynccontextmanager
async def bus_with_topics(settings: Settings, source: str = "test/1") -> AsyncIterator[Bus]:
    await create_topics(settings)
    async with Bus(settings.kafka, settings.topic_prefix, source) as bus:
        yield bus


class Worker:
    """One fold process, to be treated badly."""

    def __init__(self, settings: Settings, log: Path) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", MAIN, settings.model_dump_json()],
                cwd=REPO,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 60) -> int:
        """Signal it and wait; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def text(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def fold_worker(settings: Settings, log: Path) -> Iterator[Worker]:
    """A running worker, killed at the end if the test has not ended it; its log is shown on a failure."""
    worker = Worker(settings, log)
    try:
        yield worker
    except BaseException:
        print(worker.text()[-4000:])
        raise
    finally:
        if worker.process.poll() is None:
            worker.process.kill()
            worker.process.wait()


@asynccontextmanager
async def following(settings: Settings, topic: topics.Topic) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer of all there is and will be on a topic."""
    consumer = AIOKafkaConsumer(
        settings.topic(topic),
        **client_args(settings.kafka),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def next_of(consumer: AIOKafkaConsumer, topic: topics.Topic, kind: type[E]) -> tuple[E, ConsumerRecord]:
    """The next event of a kind, others passed over."""
    while True:
        record = await asyncio.wait_for(consumer.getone(), HANG_S)
        event = codec.decode(topic, record.value, record.headers)
        if isinstance(event, kind):
            return event, record


async def dead_letters(settings: Settings) -> list[DeadLetter]:
    records = await read_to_end(settings.kafka, settings.topic(topics.DEADLETTER))
    events = [codec.decode(topics.DEADLETTER, r.value, r.headers) for r in records]
    return [event for event in events if isinstance(event, DeadLetter)]


def sample(**given: Any) -> TelemetrySample:
    """One request of model `m` unless said otherwise."""
    said = {"source": "r1", "model": "m", "slo_class": "chat", "at_ms": 0, "offered": 1, "input_tokens": 10}
    return TelemetrySample.model_validate(said | given)
