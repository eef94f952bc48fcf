"""Faust app 1: telemetry, offers and heartbeats -> what is new about them, on the control log.

Scales out by partitions. No table: the source topics are the state (design notes: kafka.md, "`fold` without a
table"). Everything about a partition is dropped at every assignment and read again from the committed offset;
an offset is committed when what came of the events before it is on the log. So after a crash something may be
said twice, and nothing is left out.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast
from uuid import uuid4

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, for_code
from faust import Stream
from faust.types import TP, EventT, StreamT
from mode import Service

from agents.bus import Bus, client_args, continued, reading
from schemas import topics
from schemas.codec import MessageError
from schemas.events import ControlEvent, DemandClosed
from schemas.settings import Settings
from schemas.topics import Topic
from streams.core.windows import Refused
from streams.faust_app import commit, consumer_of, make_faust_app, run_worker, source_topic
from streams.fold_readers import SOURCES, Message, Reader, Span, event_id, make_reader

log = logging.getLogger(__name__)

T = TypeVar("T")

TICK_S = 0.5
COMMIT_S = 0.5
RETRY_S = 1.0
CLOSE_S = 5.0
"""What is written when the worker stops gets so long; without a broker the rest is read again."""


class Fold(Service):
    """The app and what belongs to it; run it with `run_worker(fold.app, fold)`."""

    def __init__(self, settings: Settings, **service: Any) -> None:
        super().__init__(**service)
        self.settings = settings
        self.app = make_faust_app(f"{settings.topic_prefix}-fold", settings.kafka)
        self._names: dict[str, Topic] = {settings.topic(topic): topic for topic in SOURCES}
        self._source = f"fold/{uuid4().hex[:12]}"
        self._bus = self._new_bus()
        self._readers: dict[TP, Reader] = {}
        self._generation: int | None = None
        """The group's generation that the readers belong to; None while a rebalance goes on."""
        self._committed: dict[TP, int] = {}
        self._partitions: dict[str, int] = {}
        for name in self._names:
            self.app.agent(source_topic(self.app, name), name=f"fold.{name}")(self._agent)
        self.app.on_rebalance_complete.connect(self._on_assigned, weak=False)
        self.app.on_partitions_revoked.connect(self._on_revoked, weak=False)
        self.app.on_before_shutdown.connect(self._on_revoked, weak=False)

    # --- life of the worker ------------------------------------------------------------------------
    async def on_start(self) -> None:
        # Once: partitions never change within a lineage. Faust knows the number on the group's leader only.
        self._partitions = await self._until_done("topics", self._count_partitions)
        await self._until_done("connect", self._bus.__aenter__)

    async def _count_partitions(self) -> dict[str, int]:
        admin = AIOKafkaAdminClient(**client_args(self.settings.kafka))
        await admin.start()
        try:
            described = await admin.describe_topics(list(self._names))
        finally:
            await admin.close()
        for topic in described:
            if topic["error_code"]:
                raise for_code(topic["error_code"])(topic["topic"])
        return {topic["topic"]: len(topic["partitions"]) for topic in described}

    async def on_stop(self) -> None:
        await _close(self._bus)

    @Service.task
    async def _tick(self) -> None:
        while not self.should_stop:
            await self.sleep(TICK_S)
            for reader in list(self._readers.values()):
                async with reader.lock:
                    said = reader.tick(_now_ms()) if self._is_current(reader) else ()
                    await asyncio.gather(*(self._write(event, uuid4().hex) for event in said))

    @Service.task
    async def _commit_regularly(self) -> None:
        while not self.should_stop:
            await self.sleep(COMMIT_S)
            await self._commit()

    # --- assignments -------------------------------------------------------------------------------
    async def _on_assigned(self, *_: Any, **__: Any) -> None:
        """Begin anew. Faust waits for this before it lets the first event of the generation through."""
        generation = self.app.consumer_generation_id
        spans = await self._until_done("assignment", self._spans)
        if generation != self.app.consumer_generation_id:
            return  # another rebalance has begun; it calls this again
        self._readers = {
            tp: make_reader(self._names[tp.topic], tp, span, self.settings.fold) for tp, span in spans.items()
        }
        self._committed = {tp: span.start for tp, span in spans.items()}
        self._generation = generation
        backlog = sum(span.end - span.start for span in spans.values())
        log.info("assigned generation=%d partitions=%d backlog=%d", generation, len(spans), backlog)

    async def _spans(self) -> dict[TP, Span]:
        consumer = consumer_of(self.app)
        assigned = [tp for tp in consumer.assignment() if tp.topic in self._names]
        if not assigned:
            return {}
        committed = await consumer.seek_to_committed()
        firsts = await consumer.earliest_offsets(*assigned)
        ends = await consumer.highwaters(*assigned)
        spans = {}
        for tp in assigned:
            start = committed.get(tp)
            if start is None or not firsts[tp] <= start <= ends[tp]:
                start = firsts[tp]  # as `auto_offset_reset` does
            spans[TP(tp.topic, tp.partition)] = Span(start, ends[tp], self._partitions[tp.topic])
        return spans

    async def _on_revoked(self, *_: Any, **__: Any) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._commit(), CLOSE_S)
        self._generation = None
        self._readers = {}

    async def _commit(self) -> None:
        done = {tp: reader.acks.position for tp, reader in self._readers.items()}
        new = {tp: offset for tp, offset in done.items() if offset > self._committed[tp]}
        if new and await commit(self.app, new):
            self._committed |= new

    # --- events ------------------------------------------------------------------------------------
    async def _agent(self, stream: StreamT[bytes]) -> None:
        async for event in cast(Stream[bytes], stream).noack().events():
            reader = self._reader_of(event)
            if reader is None:
                continue
            try:
                await self._take(reader, _message(event))
            except BaseException as error:
                # Half done: nothing of this partition may be committed any more.
                if self._is_current(reader):
                    del self._readers[reader.tp]
                if isinstance(error, Exception):
                    # A fault of ours. Faust would skip the event for good; a restarted worker reads it again.
                    await self.app.crash(error)
                raise

    def _reader_of(self, event: EventT[bytes]) -> Reader | None:
        """None for what was fetched before a rebalance."""
        if event.message.generation_id != self._generation:
            return None
        return self._readers.get(event.message.tp)

    def _is_current(self, reader: Reader) -> bool:
        return self._readers.get(reader.tp) is reader

    async def _take(self, reader: Reader, message: Message) -> None:
        async with reader.lock:
            while missing := reader.cursor.missing_before(message.offset):
                log.warning("jump topic=%s partition=%d missing=%r", *reader.tp, missing)
                await self._until_done("read", lambda: self._fill(reader, missing))
            if not reader.cursor.is_seen(message.offset):
                await self._process(reader, message)

    async def _fill(self, reader: Reader, missing: range) -> None:
        """Read for ourselves what Faust left out; offsets that the log does not have are passed."""
        async for message in _between(self._bus, reader.tp, range(reader.cursor.next, missing.stop)):
            await self._process(reader, message)
        reader.cursor.take(missing.stop - 1)

    async def _process(self, reader: Reader, message: Message) -> None:
        try:
            said = reader.read(message, _now_ms())
        except (MessageError, Refused) as error:
            await self._put_aside(message, str(error))
        else:
            await self._tell(message, said)
        reader.settle()

    async def _tell(self, cause: Message, said: Sequence[ControlEvent]) -> None:
        if not said:
            return
        identified = [(event, event_id(event, cause, index)) for index, event in enumerate(said)]
        with continued("fold", cause.headers):
            # Window after window, since the core takes those of a key only forward; its keys all at once.
            for _, window in itertools.groupby(identified, lambda pair: _start_ms(pair[0])):
                await asyncio.gather(*(self._write(*pair) for pair in window))

    async def _put_aside(self, message: Message, reason: str) -> None:
        tp, offset = message.tp, message.offset
        log.warning("dead letter topic=%s partition=%d offset=%d reason=%s", *tp, offset, reason)
        await self._until_written(
            lambda bus: bus.put_aside(tp.topic, tp.partition, offset, message.key, message.value, reason),
        )

    # --- a broker that fails is waited out ---------------------------------------------------------
    async def _write(self, event: ControlEvent, identity: str) -> None:
        await self._until_written(lambda bus: bus.send(topics.CONTROL, event, event_id=identity))

    async def _until_written(self, write: Callable[[Bus], Awaitable[object]]) -> None:
        async def attempt() -> None:
            bus = self._bus
            try:
                await write(bus)
            except KafkaError as error:
                if not error.retriable and bus is self._bus:
                    await self._renew_bus()
                raise

        await self._until_done("write", attempt)

    async def _until_done(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                log.warning("waiting for Kafka what=%s error=%r", what, error)
                await asyncio.sleep(RETRY_S)

    def _new_bus(self) -> Bus:
        return Bus(self.settings.kafka, self.settings.topic_prefix, self._source)

    async def _renew_bus(self) -> None:
        """An idempotent producer that lost its place in the sequence never writes again; another one does."""
        spent, self._bus = self._bus, self._new_bus()
        await self._until_done("connect", self._bus.__aenter__)
        await _close(spent)


def make_app(settings: Settings) -> Fold:
    """The fold app of these settings, not yet started."""
    return Fold(settings)


def run(settings: Settings) -> None:
    """Run one fold worker in this process until told to end (`agents.lifespan`); blocks.

    Raises:
        SystemExit: it crashed.
    """
    fold = make_app(settings)
    run_worker(fold.app, fold)


async def _close(bus: Bus) -> None:
    try:
        await asyncio.wait_for(bus.__aexit__(None, None, None), CLOSE_S)
    except (KafkaError, TimeoutError) as error:
        log.warning("producer not closed in order error=%r", error)


async def _between(bus: Bus, tp: TP, offsets: range) -> AsyncIterator[Message]:
    here = TopicPartition(tp.topic, tp.partition)
    async with reading(bus.kafka, tp.topic) as consumer:
        consumer.seek(here, offsets.start)
        while await consumer.position(here) < offsets.stop:
            for record in (await consumer.getmany(here, timeout_ms=500)).get(here, ()):
                if record.offset in offsets:
                    yield Message(
                        tp, record.offset, record.timestamp, record.key, record.value, list(record.headers)
                    )


def _message(event: EventT[bytes]) -> Message:
    record = event.message
    headers = record.headers or []
    return Message(
        tp=record.tp,
        offset=record.offset,
        broker_ms=round(record.timestamp * 1000),  # Faust divided it
        key=record.key,
        value=record.value,
        headers=list(headers.items() if isinstance(headers, Mapping) else headers),
    )


def _start_ms(event: ControlEvent) -> int | None:
    return event.start_ms if isinstance(event, DemandClosed) else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
