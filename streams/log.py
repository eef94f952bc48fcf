"""The control log as read without a group: every record exactly once, in order, from a known offset.

A candidate folds by it, an export and a replay read by it, and the leader falls back on it where its
Faust consumer left a hole.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import ConsumerRecord

from agents.bus import reading
from schemas import codec, topics
from schemas.events import ControlEvent
from schemas.settings import KafkaSettings
from streams.core.record import LogRecord, Malformed

Header = tuple[str, bytes]


class LogTruncatedError(ValueError):
    """Records that are needed are no longer kept; the text names the offsets."""


@dataclass(frozen=True)
class Entry:
    """A record of the control log as it lies there: bytes and headers, not yet understood."""

    offset: int
    timestamp_ms: int
    value: bytes | None
    headers: tuple[Header, ...] = ()

    @classmethod
    def of(cls, record: ConsumerRecord) -> "Entry":
        """What a plain consumer read."""
        return cls(record.offset, record.timestamp, record.value, tuple(record.headers))

    @classmethod
    def carried(
        cls,
        offset: int,
        timestamp_s: float,
        value: bytes | None,
        headers: Mapping[str, bytes] | Iterable[Header] | None,
    ) -> "Entry":
        """What Faust hands on: times as float seconds, headers in one of three shapes."""
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        return cls(offset, round(timestamp_s * 1000), value, tuple(pairs))

    def record(self) -> LogRecord:
        """What the core steps over; what cannot be read becomes `Malformed`, never an error."""
        event: ControlEvent | Malformed
        try:
            event = cast(ControlEvent, codec.decode(topics.CONTROL, self.value, self.headers))
        except codec.MessageError as error:
            event = Malformed(reason=str(error))
        return LogRecord(self.offset, self.timestamp_ms, self.value or b"", event)


async def bounds(kafka: KafkaSettings, topic: str) -> tuple[int, int]:
    """The first offset that is kept and the one after the last."""
    async with reading(kafka, topic) as consumer:
        return await _bounds(consumer, TopicPartition(topic, 0))


async def read(
    kafka: KafkaSettings, topic: str, first: int = 0, end: int | None = None
) -> AsyncGenerator[Entry, None]:
    """Every entry from `first` up to, not including, `end` (by default the log's end as of now).

    Raises:
        LogTruncatedError: `first` is no longer kept.
    """
    async with reading(kafka, topic) as consumer:
        here = TopicPartition(topic, 0)
        kept, last = await _bounds(consumer, here)
        stop = last if end is None else min(end, last)
        if first < min(kept, stop):
            raise LogTruncatedError(f"{topic}: offset {first} is missing, the log begins at {kept}")
        consumer.seek(here, first)
        while await consumer.position(here) < stop:
            batches = await consumer.getmany(here, timeout_ms=500)
            for record in batches.get(here, ()):
                if record.offset < stop:
                    yield Entry.of(record)
            await asyncio.sleep(0)  # a full buffer never waits, and others want to run


async def length(kafka: KafkaSettings, topic: str) -> int:
    """How many records all partitions of a topic hold as of now."""
    async with reading(kafka, topic) as consumer:
        here = consumer.assignment()
        begins, ends = await consumer.beginning_offsets(here), await consumer.end_offsets(here)
    return sum(ends[p] - begins[p] for p in here)


async def read_one(kafka: KafkaSettings, topic: str, offset: int) -> Entry | None:
    """The entry at an offset; None beyond the end. Raises LogTruncatedError if it is no longer kept."""
    found = [entry async for entry in read(kafka, topic, offset, offset + 1)]
    return found[0] if found else None


async def _bounds(consumer: AIOKafkaConsumer, here: TopicPartition) -> tuple[int, int]:
    begins = await consumer.beginning_offsets([here])
    ends = await consumer.end_offsets([here])
    return begins[here], ends[here]


async def tail(kafka: KafkaSettings, topic: str, first: int = 0) -> AsyncIterator[Entry]:
    """Every entry from `first` on, for ever, as it is written."""
    async with reading(kafka, topic) as consumer:
        here = TopicPartition(topic, 0)
        consumer.seek(here, first)
        while True:
            batches = await consumer.getmany(here, timeout_ms=500)
            for record in batches.get(here, ()):
                yield Entry.of(record)
