"""One reader for each partition that `fold` is assigned: messages in, control events out, offsets to commit.

A reader is made anew at every assignment and starts from the committed offset: the topic is the state.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka.partitioner import murmur2
from faust.types import TP

from schemas import codec, topics
from schemas.base import Frozen
from schemas.events import AvailabilityOffered, ControlEvent, DemandClosed, Heartbeat, PriceOffered
from schemas.settings import FoldSettings
from schemas.telemetry import TelemetrySample
from schemas.topics import Topic
from streams.core.fold_fleet import FleetPartition
from streams.core.fold_offers import OfferBook
from streams.core.fold_offsets import AckPrefix, Cursor
from streams.core.windows import Refused, Windows, refuse_future

SOURCES = (topics.TELEMETRY, topics.AVAILABILITY, topics.PRICES, topics.FLEET)
"""What `fold` reads."""


@dataclass(frozen=True, slots=True)
class Message:
    """A record of a source topic; `broker_ms` is the broker's timestamp."""

    tp: TP
    offset: int
    broker_ms: int
    key: bytes | None
    value: bytes | None
    headers: codec.Headers


@dataclass(frozen=True)
class Span:
    """What of a partition is there when it is assigned."""

    start: int
    """The committed offset, or the first that is kept."""
    end: int
    """The offset of the next record to be written."""
    partitions: int
    """Of the whole topic."""


class Reader(ABC):
    """One partition. `read` and `tick` are called by one task at a time, which holds `lock`."""

    def __init__(self, topic: Topic, tp: TP, span: Span) -> None:
        self.topic = topic
        self.tp = tp
        self.span = span
        self.lock = asyncio.Lock()
        self.cursor = Cursor(span.start)
        self.acks = AckPrefix(span.start)

    def read(self, message: Message, now_ms: int) -> Sequence[ControlEvent]:
        """Take the next message; what it returns belongs on the control log, before `settle`.

        Raises:
            MessageError: it cannot be read.
            Refused: it must not count.
        """
        self.cursor.take(message.offset)
        due_ms = 0
        try:
            event = codec.decode(self.topic, message.value, message.headers)
            due_ms, said = self._hear(event, message, now_ms)
        finally:
            self.acks.add(message.offset, due_ms)
        return said

    def settle(self) -> None:
        """All that was read has had its effect, on the log or on the dead-letter topic."""
        self.acks.settle()

    def tick(self, now_ms: int) -> Sequence[ControlEvent]:  # noqa: ARG002  only the fleet's time passes
        """Time passes: what it brings about."""
        return ()

    @abstractmethod
    def _hear(self, event: Frozen, message: Message, now_ms: int) -> tuple[int, Sequence[ControlEvent]]:
        """The event time at which the event is done, and what to tell the log."""

    def _refuse_misplaced(self, name: str, key: str) -> None:
        expected = (murmur2(key.encode()) & 0x7FFFFFFF) % self.span.partitions
        if self.tp.partition != expected:
            raise Refused(
                f"{name}: {key!r} on partition {self.tp.partition}, expected {expected} "
                f"(murmur2 of the key, {self.span.partitions} partitions)"
            )


class TelemetryReader(Reader):
    def __init__(self, topic: Topic, tp: TP, span: Span, rules: FoldSettings) -> None:
        super().__init__(topic, tp, span)
        self._windows = Windows(tp.partition, rules)

    def _hear(self, event: Any, message: Message, now_ms: int) -> tuple[int, Sequence[ControlEvent]]:  # noqa: ARG002
        sample: TelemetrySample = event
        self._refuse_misplaced("model", sample.model)
        added = self._windows.add(sample, message.broker_ms)
        return added.due_ms, added.closed

    def settle(self) -> None:
        self.acks.settle(self._windows.closed_ms)


class OfferReader(Reader):
    def __init__(self, topic: Topic, tp: TP, span: Span, rules: FoldSettings) -> None:
        super().__init__(topic, tp, span)
        self._rules = rules
        self._book = OfferBook()

    def _hear(self, event: Any, message: Message, now_ms: int) -> tuple[int, Sequence[ControlEvent]]:  # noqa: ARG002
        offered: AvailabilityOffered | PriceOffered = event
        self._refuse_misplaced("offer", offered.offer.key)
        refuse_future(offered.at_ms, message.broker_ms, self._rules.future_ms)
        changed = self._book.hear(offered, message.broker_ms)
        return 0, () if changed is None else (changed,)


class FleetReader(Reader):
    def __init__(self, topic: Topic, tp: TP, span: Span, rules: FoldSettings) -> None:
        super().__init__(topic, tp, span)
        self._rules = rules
        self._fleet = FleetPartition(tp.partition, rules)

    def _hear(self, event: Any, message: Message, now_ms: int) -> tuple[int, Sequence[ControlEvent]]:
        report: Heartbeat = event
        self._refuse_misplaced("node", report.node)
        refuse_future(report.at_ms, message.broker_ms, self._rules.future_ms)
        if message.offset >= self.span.end:
            self._fleet.catch_up(now_ms)
        return 0, self._fleet.hear(report, message.broker_ms, now_ms)

    def tick(self, now_ms: int) -> Sequence[ControlEvent]:
        if self.cursor.next >= self.span.end:
            self._fleet.catch_up(now_ms)
        return self._fleet.tick(now_ms)


def make_reader(topic: Topic, tp: TP, span: Span, rules: FoldSettings) -> Reader:
    """The reader for a partition of one of `SOURCES`."""
    kinds = {topics.TELEMETRY.name: TelemetryReader, topics.FLEET.name: FleetReader}
    return kinds.get(topic.name, OfferReader)(topic, tp, span, rules)


def event_id(event: ControlEvent, cause: Message, index: int) -> str:
    """CloudEvents id: the same window, or the same answer to the same message, has the same one."""
    if isinstance(event, DemandClosed):
        return f"{event.key}/{event.start_ms}"
    return f"{cause.tp.topic}/{cause.tp.partition}/{cause.offset}/{index}"
