"""The node agent, one process a node: follows `coral.plans`, drives engines, reports on `coral.fleet`.

Kafka may be away for as long as it likes: engines go on, the last plan stays in force (house.md, law 3), and
the next heartbeat that gets through says everything.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiokafka.errors import KafkaError

from agents.bus import Bus, follow_plans
from agents.engine import EngineFactory
from agents.reconciler import NodeIdentity, Reconciler
from agents.state_dir import StateDir
from schemas import topics
from schemas.settings import KafkaSettings

log = logging.getLogger(__name__)

FAREWELL_S = 2.0
"""How long a node that ends waits for its last heartbeat to be written."""


@dataclass(frozen=True)
class Pace:
    """Times of a node agent, in seconds."""

    heartbeat_s: float = 1.0
    drain_deadline_s: float = 600.0
    """The longest a drain may take before what is in flight is cut."""
    leave_grace_s: float = 30.0
    """The same for a node that was told to end (SIGTERM, SIGINT)."""
    back_off_s: float = 0.5
    """Wait before Kafka is tried again; doubled up to `back_off_limit_s`."""
    back_off_limit_s: float = 5.0


def run(
    kafka: KafkaSettings,
    prefix: str,
    identity: NodeIdentity,
    state_dir: Path,
    engines: EngineFactory,
    pace: Pace = Pace(),
) -> None:
    """`run_node`, blocking."""
    asyncio.run(run_node(kafka, prefix, identity, state_dir, engines, pace))


async def run_node(
    kafka: KafkaSettings,
    prefix: str,
    identity: NodeIdentity,
    state_dir: Path,
    engines: EngineFactory,
    pace: Pace = Pace(),
) -> None:
    """Be the agent of `identity` until SIGTERM or SIGINT, and then until what it has is drained.

    Args:
        state_dir: the node's own folder; a file `notice` dropped there, holding a time in ms since the epoch,
            is the cloud's word that it takes the node away then.
        engines: makes the engine of one rank.

    Raises:
        agents.state_dir.StateError: another agent uses `state_dir`, or what lies there is unreadable.
        OSError: `state_dir` cannot be written: what cannot be remembered must not be done.
    """
    state = StateDir(state_dir)
    with state.owned():
        node = Reconciler(
            identity,
            state,
            engines,
            _now_ms,
            boot=uuid4().hex[:12],
            drain_deadline_ms=int(pace.drain_deadline_s * 1000),
        )
        leaving = asyncio.Event()
        _on_signals(leaving)
        await node.begin()
        said = asyncio.Event()
        talking = asyncio.create_task(_talk(node, Line(kafka, prefix, identity.name), said, pace))
        working = asyncio.create_task(_work(node, state, leaving, said, pace))
        try:
            await asyncio.wait({talking, working}, return_when=asyncio.FIRST_COMPLETED)
            for task in (talking, working):
                if task.done():
                    task.result()  # An error in either ends the agent.
        finally:
            await _cancel(talking)
            await _cancel(working)
            await node.end()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _on_signals(leaving: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leaving.set)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    # With Kafka away a producer that closes would wait for it; what it has to say is old by then.
    await asyncio.wait({task}, timeout=FAREWELL_S)


# --- what needs no Kafka -----------------------------------------------------------------------------
async def _work(
    node: Reconciler, state: StateDir, leaving: asyncio.Event, said: asyncio.Event, pace: Pace
) -> None:
    """Watch deadlines and notices until told to end, then end what the node has."""
    while not leaving.is_set():
        await _within(pace.heartbeat_s, leaving.wait())
        _look_for_notice(node, state)
        node.reconcile()
    log.info("told to end; drains for at most %g s", pace.leave_grace_s)
    node.leave(int(pace.leave_grace_s * 1000))
    while not node.idle.is_set():
        await _within(pace.heartbeat_s, node.idle.wait())
        node.reconcile()
    said.clear()
    node.changed.set()
    await _within(FAREWELL_S, said.wait())


def _look_for_notice(node: Reconciler, state: StateDir) -> None:
    try:
        deadline_ms = state.read_notice_ms()
    except ValueError as error:
        log.warning("notice: %s, expected milliseconds since the epoch", error)
        return
    if deadline_ms is not None:
        node.notice(deadline_ms)


async def _within(seconds: float, wait: Coroutine[Any, Any, object]) -> None:
    """Wait, but not longer than that."""
    with suppress(TimeoutError):
        await asyncio.wait_for(wait, seconds)


# --- what does ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Line:
    """Which Kafka, and as whom."""

    kafka: KafkaSettings
    prefix: str
    name: str

    def bus(self) -> Bus:
        return Bus(self.kafka, self.prefix, f"node/{self.name}")


async def _talk(node: Reconciler, line: Line, said: asyncio.Event, pace: Pace) -> None:
    """Follow plans and send heartbeats, starting afresh with a new connection whenever Kafka fails."""
    wait_s = pace.back_off_s
    while True:
        try:
            async with line.bus() as bus, asyncio.TaskGroup() as both:
                wait_s = pace.back_off_s
                both.create_task(_follow(node, bus))
                both.create_task(_beat(node, bus, line.name, said, pace))
        except* KafkaError as errors:
            log.warning("Kafka failed, next try in %g s: %s", wait_s, errors.exceptions[0])
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, pace.back_off_limit_s)


async def _follow(node: Reconciler, bus: Bus) -> None:
    async for plan in follow_plans(bus, node.newest):
        node.accept(plan)


async def _beat(node: Reconciler, bus: Bus, name: str, said: asyncio.Event, pace: Pace) -> None:
    """A heartbeat every second, and at once on a change; `said` is set when there is no more news."""
    while True:
        node.changed.clear()
        await bus.send(topics.FLEET, node.heartbeat(), key=name)
        if not node.changed.is_set():
            said.set()
        await _within(pace.heartbeat_s, node.changed.wait())
