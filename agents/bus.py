"""Kafka for everybody but Faust: one producer, one plan follower, one way to make topics.

The producer is idempotent and waits for every write, since what is only buffered is lost with its
process (house.md, law 5).
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import ConsumerRecord, RecordMetadata
from opentelemetry import propagate, trace

from agents.kafka_client import client_args, reaching
from schemas import codec, topics
from schemas.base import Frozen
from schemas.codec import Headers
from schemas.events import DeadLetter
from schemas.plans import Order, Plan
from schemas.settings import KafkaSettings
from schemas.topics import Topic

__all__ = ["Bus", "client_args", "continued", "follow_plans", "read_to_end", "reading"]

FETCH_BYTES = 16 * topics.MIB
JOIN_TAIL = 64
"""Plans read back on joining: the leader repeats the current one, so the newest are near the end."""


class Bus:
    """What a process says on Kafka: typed events out, dead letters for what it could not read.

    Args:
        source: CloudEvents source, such as `node/gcp-a-1`; the part before the first `/` names the
            reader on dead letters.
    """

    def __init__(self, kafka: KafkaSettings, prefix: str, source: str) -> None:
        self.kafka = kafka
        self.prefix = prefix
        self.source = source
        self._producer: AIOKafkaProducer | None = None

    async def __aenter__(self) -> Self:
        producer = AIOKafkaProducer(
            **client_args(self.kafka),
            enable_idempotence=True,
            compression_type="gzip",
            max_request_size=FETCH_BYTES,
            # Longer than a broker's restart (12 s after a kill), so that an outage delays and loses nothing.
            request_timeout_ms=120_000,
        )
        try:
            async with reaching(self.kafka):
                await producer.start()
        except BaseException:
            await producer.stop()  # it holds sockets and a task even if no broker answered
            raise
        self._producer = producer
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._producer is not None:
            await self._producer.stop()
            self._producer = None

    def name(self, topic: Topic) -> str:
        return f"{self.prefix}.{topic.name}"

    async def send(
        self, topic: Topic, event: Frozen, *, key: str | None = None, event_id: str | None = None
    ) -> RecordMetadata:
        """Write one event and wait until the broker has it.

        Args:
            event_id: CloudEvents id; give one wherever the same event may be sent twice.
        """
        if self._producer is None:
            raise RuntimeError("the bus is closed: use it as an async context manager")
        envelope = codec.encode(
            event,
            key=key,
            event_id=event_id or uuid4().hex,
            source=self.source,
            time=datetime.now(UTC).isoformat(),
        )
        written: RecordMetadata = await self._producer.send_and_wait(
            self.name(topic), value=envelope.value, key=envelope.key, headers=envelope.headers
        )
        return written

    async def dead_letter(self, record: ConsumerRecord, reason: str) -> None:
        """Put a message that cannot be read or used aside, with where it stood and why."""
        await self.put_aside(record.topic, record.partition, record.offset, record.key, record.value, reason)

    async def put_aside(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        reason: str,
    ) -> None:
        origin = f"{topic}/{partition}/{offset}"
        letter = DeadLetter(
            topic=topic,
            partition=partition,
            offset=offset,
            reason=reason,
            key=None if key is None else key.decode("utf-8", "replace"),
            value=base64.b64encode(value or b"").decode(),
            reader=self.source.partition("/")[0],
        )
        await self.send(topics.DEADLETTER, letter, key=origin, event_id=f"{origin}/{letter.reader}")


def continued(name: str, headers: Iterable[tuple[str, bytes]]) -> AbstractContextManager[Any]:
    """A span that goes on with the trace of a message; what is sent inside it carries the trace."""
    context = propagate.extract(codec.header_map(headers))
    return trace.get_tracer("coral").start_as_current_span(name, context=context)


@asynccontextmanager
async def reading(kafka: KafkaSettings, topic: str) -> AsyncIterator[AIOKafkaConsumer]:
    """A plain consumer without a group, assigned to all partitions as of now, at the first kept records."""
    # A topic given here, without a group, is assigned whole; `assign` would need to know the partitions.
    consumer = AIOKafkaConsumer(
        topic,
        **client_args(kafka),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    try:
        async with reaching(kafka):
            await consumer.start()
        yield consumer
    finally:
        await consumer.stop()


async def follow_plans(bus: Bus, newest: Order = (0, 0, 0)) -> AsyncIterator[Plan]:
    """Every plan newer than `newest`, as `follow_plan_records` has them."""
    async for plan, _ in follow_plan_records(bus, newest):
        yield plan


async def follow_plan_records(bus: Bus, newest: Order = (0, 0, 0)) -> AsyncIterator[tuple[Plan, Headers]]:
    """Every plan newer than `newest`, in order, each with its message's headers, which `continued` takes.

    On joining, the greatest plan of the topic's end comes first; older and repeated ones are dropped. A
    message that is no plan goes to the dead-letter topic; one of a newer schema too, and the reader keeps
    the plan it has.
    """
    name = bus.name(topics.PLANS)
    async with reading(bus.kafka, name) as consumer:
        here = TopicPartition(name, 0)
        end = (await consumer.end_offsets([here]))[here]
        start = (await consumer.beginning_offsets([here]))[here]
        consumer.seek(here, max(start, end - JOIN_TAIL))
        best: tuple[Plan, Headers] | None = None
        while True:
            for record in await _batch(consumer, here):
                plan = await _plan_of(bus, record)
                if plan is not None and plan.order > newest:
                    best, newest = (plan, list(record.headers)), plan.order
            if best is not None and await consumer.position(here) >= end:
                yield best
                best = None


async def _batch(consumer: AIOKafkaConsumer, here: TopicPartition) -> list[ConsumerRecord]:
    batches = await consumer.getmany(here, timeout_ms=500)
    return [record for batch in batches.values() for record in batch]


async def _plan_of(bus: Bus, record: ConsumerRecord) -> Plan | None:
    try:
        plan = codec.decode(topics.PLANS, record.value, record.headers)
    except codec.MessageError as error:
        await bus.dead_letter(record, str(error))
        return None
    return plan if isinstance(plan, Plan) else None


async def read_to_end(kafka: KafkaSettings, topic: str) -> list[ConsumerRecord]:
    """Every record of a one-partition topic as of now, from the first that is kept."""
    records: list[ConsumerRecord] = []
    async with reading(kafka, topic) as consumer:
        here = TopicPartition(topic, 0)
        end = (await consumer.end_offsets([here]))[here]
        await consumer.seek_to_beginning(here)
        while await consumer.position(here) < end:
            records += await _batch(consumer, here)
            await asyncio.sleep(0)
    return [record for record in records if record.offset < end]
