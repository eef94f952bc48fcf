"""What a scripted world (world.py) says, as it would lie on the control log."""

from collections.abc import Iterable

from schemas import codec
from schemas.events import Leading, Published
from streams.core.record import LogRecord, Malformed
from streams.core.state import State
from streams.core.step import step
from streams.log import Entry
from tests.streams.doubles import EAST
from tests.streams.world import World

POISON = b'{"rate": \xff'


def scripted() -> World:
    """Two leaders, demand that rises, and a record that is none."""
    world = World()
    world.offer(EAST, 1.0, 8)
    world.demand(3.0, windows=2)
    world.say(Malformed(reason="replaced by what the codec says"), POISON)
    world.lead("b")
    world.demand(6.0, windows=2)
    return world


def entries_of(records: Iterable[LogRecord]) -> list[Entry]:
    """The records with the running digests that a leader would have put in."""
    state = State()
    histories = {-1: ""}
    entries = []
    for record in records:
        entry = _entry(record, histories)
        step(state, entry.record())
        histories[record.offset] = state.history
        entries.append(entry)
    return entries


def _entry(record: LogRecord, histories: dict[int, str]) -> Entry:
    event = record.event
    if isinstance(event, Malformed):
        return Entry(record.offset, record.timestamp_ms, record.value, (("ce_type", b"\xfe"),))
    if isinstance(event, Leading | Published):
        event = event.model_copy(update={"history": histories[event.history_offset]})
    envelope = codec.encode(event, key=None, event_id=str(record.offset), source="test", time="t")
    return Entry(record.offset, record.timestamp_ms, envelope.value, tuple(envelope.headers))
