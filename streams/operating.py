"""What a person at the command line asks of a fleet: how it stands, and to empty a node."""

import time

from agents.bus import Bus
from schemas import topics
from schemas.events import OperatorRequested
from schemas.settings import Settings
from streams import log, snapshots
from streams.core.state import State
from streams.core.step import step
from streams.status import Status, status_of


async def current_status(settings: Settings) -> Status:
    """The fleet as the log has it now.

    Raises:
        aiokafka.errors.KafkaError: Kafka is away.
        streams.log.LogTruncatedError: the log's head is gone, and no snapshot reaches up to what is kept.
    """
    async with Bus(settings.kafka, settings.topic_prefix, "operator") as bus:
        return status_of(await _fold(bus), time.time_ns() // 1_000_000)


async def request_drain(settings: Settings, node: str, *, undo: bool, by: str) -> Status:
    """Ask the leader to empty a node, or (`undo`) to use it again; returns the status from just before.

    Raises:
        ValueError: the fleet has no such node, or the request changes nothing.
        aiokafka.errors.KafkaError, streams.log.LogTruncatedError: as `current_status`.
    """
    async with Bus(settings.kafka, settings.topic_prefix, "operator") as bus:
        state = await _fold(bus)
        _check(state, node, undo=undo)
        asked = OperatorRequested(kind="undrain" if undo else "drain", node=node, by=by)
        await bus.send(topics.CONTROL, asked)
        return status_of(state, time.time_ns() // 1_000_000)


def _check(state: State, node: str, *, undo: bool) -> None:
    known = state.nodes.get(node)
    if known is None:
        some = ", ".join(sorted(state.nodes)[:10])
        expected = f"expected one of {some}" if some else "which has none yet"
        raise ValueError(f"NODE: {node!r} is no node of this fleet, {expected}")
    if undo and known.drained_by is None:
        raise ValueError(f"--undo: nobody drains {node!r}, expected a node that is drained")


async def _fold(bus: Bus) -> State:
    state = await snapshots.load(bus) or State()
    async for entry in log.read(bus.kafka, bus.name(topics.CONTROL), state.offset + 1):
        step(state, entry.record())
    return state
