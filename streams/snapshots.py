"""The state on `coral.snapshots`, so that a candidate need not fold ninety days of log.

A snapshot is its chunks, keyed `<offset>/<n>`, and then a manifest. It counts only if every chunk is
there, both digests are right, and it belongs to this log: same lineage, not beyond its end.
Anything less is passed over for the next older one, and in the end for a fold from the start.
"""

import base64
import binascii
import hashlib
import logging
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from aiokafka import TopicPartition
from pydantic import ValidationError

from agents.bus import Bus, reading
from schemas import codec, topics
from schemas.events import LineageStarted, SnapshotChunk, SnapshotManifest
from streams import log
from streams.core.state import State

CHUNK_CHARS = 900_000
"""Base64 characters of a chunk: with its envelope below Kafka's usual limit of 1 MiB."""
LOOK_BACK = 64
"""Messages looked at first from the end of the topic; doubled until a snapshot is found."""

logger = logging.getLogger(__name__)


class SnapshotError(ValueError):
    """A snapshot that does not count; the text says why."""


@dataclass(frozen=True)
class Snapshot:
    chunks: tuple[SnapshotChunk, ...]
    manifest: SnapshotManifest


def encode(state: State, version: str) -> Snapshot:
    """The state as messages; `version` is the software's."""
    plain = state.model_dump_json().encode()
    text = base64.b64encode(zlib.compress(plain)).decode()
    parts = [text[at : at + CHUNK_CHARS] for at in range(0, len(text), CHUNK_CHARS)]
    chunks = tuple(
        SnapshotChunk(lineage=state.lineage, offset=state.offset, index=index, data=part)
        for index, part in enumerate(parts)
    )
    manifest = SnapshotManifest(
        lineage=state.lineage,
        offset=state.offset,
        chunks=len(chunks),
        state=hashlib.sha256(plain).hexdigest(),
        history=state.history,
        version=version,
    )
    return Snapshot(chunks, manifest)


def decode(snapshot: Snapshot) -> State:
    """The state again.

    Raises:
        SnapshotError: a chunk is missing or a digest is wrong.
    """
    manifest = snapshot.manifest
    parts = {chunk.index: chunk.data for chunk in snapshot.chunks}
    if missing := sorted(set(range(manifest.chunks)) - set(parts)):
        raise SnapshotError(f"chunks {missing} of {manifest.chunks} are missing")
    text = "".join(parts[index] for index in range(manifest.chunks))
    try:
        plain = zlib.decompress(base64.b64decode(text, validate=True))
        state = State.model_validate_json(plain)
    except ValidationError as error:
        raise SnapshotError(f"the state does not fit this version: {codec.describe(error)}") from error
    except (zlib.error, binascii.Error) as error:
        raise SnapshotError(f"the chunks are damaged: {error}") from error
    found = (hashlib.sha256(plain).hexdigest(), state.lineage, state.offset, state.history)
    if found != (manifest.state, manifest.lineage, manifest.offset, manifest.history):
        raise SnapshotError(f"the state is not what its manifest says: {found}")
    return state


@dataclass
class Pile:
    """Snapshot messages in any order, and the snapshots among them that count.

    Args:
        lineage: of the log; None where its head is gone, then the greatest lineage seen counts.
        first: offset of the oldest record that the log keeps: a snapshot must reach up to it.
        last: offset of the log's newest record.
    """

    lineage: int | None
    first: int
    last: int
    _chunks: dict[tuple[int, int], dict[int, SnapshotChunk]] = field(default_factory=dict)
    _manifests: dict[tuple[int, int], SnapshotManifest] = field(default_factory=dict)

    def add(self, messages: Iterable[SnapshotChunk | SnapshotManifest]) -> None:
        for message in messages:
            key = (message.lineage, message.offset)
            if isinstance(message, SnapshotManifest):
                self._manifests[key] = message
            else:
                self._chunks.setdefault(key, {})[message.index] = message

    def pick(self, *, oldest: bool = False) -> State | None:
        """The newest (or oldest) snapshot that counts."""
        lineage = self.lineage or max((key[0] for key in self._manifests), default=0)
        for key, manifest in sorted(self._manifests.items(), reverse=not oldest):
            if key[0] != lineage or not self.first - 1 <= key[1] <= self.last:
                continue
            try:
                return decode(Snapshot(tuple(self._chunks.get(key, {}).values()), manifest))
            except SnapshotError as error:
                logger.warning("snapshot at offset %d does not count: %s", key[1], error)
        return None


async def write(bus: Bus, snapshot: Snapshot) -> None:
    """Chunks first, the manifest last: a snapshot is there as a whole or not at all."""
    offset = snapshot.manifest.offset
    for chunk in snapshot.chunks:
        await bus.send(topics.SNAPSHOTS, chunk, key=f"{offset}/{chunk.index}")
    await bus.send(topics.SNAPSHOTS, snapshot.manifest, key=f"{offset}/manifest")


async def load(bus: Bus, *, oldest: bool = False) -> State | None:
    """The newest (or oldest) snapshot that counts for the control log as it is now.

    The newest is looked for from the topic's end, so that starting does not take longer over the years.
    """
    control = bus.name(topics.CONTROL)
    first, end = await log.bounds(bus.kafka, control)
    pile = Pile(await _lineage(bus, control, first), first, end - 1)
    name = bus.name(topics.SNAPSHOTS)
    begin, stop = await log.bounds(bus.kafka, name)
    size = stop - begin if oldest else LOOK_BACK
    while stop > begin:
        start = max(begin, stop - size)
        pile.add(await _messages(bus, name, start, stop))
        if (state := pile.pick(oldest=oldest)) is not None:
            return state
        stop, size = start, 2 * size
    return None


async def _lineage(bus: Bus, control: str, first: int) -> int | None:
    """What record 0 says, as long as it is kept."""
    entry = await log.read_one(bus.kafka, control, first)
    event = entry.record().event if entry is not None else None
    return event.lineage if isinstance(event, LineageStarted) else None


async def _messages(bus: Bus, name: str, start: int, stop: int) -> list[SnapshotChunk | SnapshotManifest]:
    messages = []
    async with reading(bus.kafka, name) as consumer:
        here = TopicPartition(name, 0)
        consumer.seek(here, start)
        while await consumer.position(here) < stop:
            for record in (await consumer.getmany(here, timeout_ms=500)).get(here, ()):
                if record.offset >= stop:
                    continue
                try:
                    message = codec.decode(topics.SNAPSHOTS, record.value, record.headers)
                except codec.MessageError as error:
                    # Not dead-lettered: every candidate reads it again, and the snapshot fails without it.
                    logger.warning("%s/%d is no part of a snapshot: %s", name, record.offset, error)
                    continue
                if isinstance(message, SnapshotChunk | SnapshotManifest):
                    messages.append(message)
    return messages
