"""The node agent, one process a node: follows `coral.plans`, drives engines, reports on `coral.fleet`.

Kafka may be away for as long as it likes: engines go on, the last plan stays in force (house.md, law 3).

Where engines outlive their agent (`agents.engine.Engine.outlives_agent`) its restart is no outage: told to
end, it leaves them as they are and says nothing, and the next agent adopts them. `coral drain NODE`, or a
notice, empties such a node. Engines that end with their agent are drained first: the node says it leaves.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from agents.bus import Bus
from agents.engine import EngineFactory
from agents.identity import NodeIdentity
from agents.inventory import machine_boot
from agents.lifespan import on_signals, within
from agents.node_talk import Talk
from agents.notices import FileNotice, Notices, watch
from agents.reconciler import Reconciler, Sweep, nothing_to_sweep
from agents.state_dir import StateDir
from schemas.settings import KafkaSettings

log = logging.getLogger(__name__)

FAREWELL_S = 2.0
"""How long a node that ends waits for its last heartbeat to be written."""


@dataclass(frozen=True)
class Pace:
    """Times of a node agent, in seconds."""

    heartbeat_s: float = 1.0
    leave_grace_s: float = 30.0
    """The same for an agent that is told to end (SIGTERM, SIGINT) and whose engines end with it."""
    last_s: float = 30.0
    """So long before the end that a notice sets, everything is drained, replaced or not."""


@dataclass(frozen=True)
class Fittings:
    """What real engines bring along; a node of simulated ones needs none of it."""

    sweep: Sweep = nothing_to_sweep
    models: Callable[[], tuple[str, ...]] = tuple
    """Revisions in the node's model cache; asked at every heartbeat."""
    notices: Sequence[Notices] = ()
    """The cloud's, beside the file."""


def run(
    kafka: KafkaSettings,
    prefix: str,
    identity: NodeIdentity,
    state_dir: Path,
    engines: EngineFactory,
    pace: Pace = Pace(),
    fittings: Fittings = Fittings(),
) -> None:
    """`run_node`, blocking."""
    asyncio.run(run_node(kafka, prefix, identity, state_dir, engines, pace, fittings))


async def run_node(
    kafka: KafkaSettings,
    prefix: str,
    identity: NodeIdentity,
    state_dir: Path,
    engines: EngineFactory,
    pace: Pace = Pace(),
    fittings: Fittings = Fittings(),
) -> None:
    """Be the agent of `identity` until SIGTERM or SIGINT.

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
        outlives = engines().outlives_agent  # asked of one that is never started
        node = Reconciler(
            identity,
            state,
            engines,
            _now_ms,
            boot=_boot(outlives),
            last_ms=int(pace.last_s * 1000),
            sweep=fittings.sweep,
        )
        told, _ = on_signals()
        await node.begin()
        new_bus = partial(Bus, kafka, prefix, f"node/{identity.name}")
        talk = Talk(node, new_bus, identity.name, heartbeat_s=pace.heartbeat_s)
        sources = (FileNotice(state_dir / "notice"), *fittings.notices)
        try:
            await _until_one_ends(
                talk.run(),
                _work(node, talk, told, pace, fittings, outlives=outlives),
                *(watch(source, node.notice) for source in sources),
            )
        finally:
            await (node.let_go() if outlives else node.end())


def _boot(outlives: bool) -> str:
    """What a heartbeat's `boot` names: the agent's run where engines end with it, else the machine's."""
    return machine_boot() if outlives else f"{machine_boot()}.{uuid4().hex[:12]}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _until_one_ends(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all until one has ended, and end the others. Its error is the agent's."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        # With Kafka away a producer that closes would wait for it; what it has to say is old by then.
        await asyncio.wait(tasks, timeout=FAREWELL_S)


async def _work(
    node: Reconciler, talk: Talk, told: asyncio.Event, pace: Pace, fittings: Fittings, *, outlives: bool
) -> None:
    """Watch deadlines until told to end; then, unless they outlive the agent, end what the node has."""
    while not told.is_set():
        await within(pace.heartbeat_s, told.wait())
        with suppress(OSError):  # a cache that cannot be read just now has what it had
            node.has_models(fittings.models())
        node.reconcile()
    if outlives:
        log.info("told to end; leaves its engines to the next agent")
        return
    log.info("told to end; drains for at most %g s", pace.leave_grace_s)
    node.leave(int(pace.leave_grace_s * 1000))
    while not node.idle.is_set():
        await within(pace.heartbeat_s, node.idle.wait())
        node.reconcile()
    talk.said.clear()
    node.changed.set()
    await within(FAREWELL_S, talk.said.wait())
