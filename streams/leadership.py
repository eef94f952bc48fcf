"""Standing for the lead, and leading: the protocol between the control log and the core.

Kafka's assignment of the log's only partition elects a *candidate*. It folds the log to its end with
effects off, appends `Leading` with a token of its own, and only then lets the agent go on. Whoever
the log's last `Leading` names leads: the state says so to everyone alike, and effects are performed
by nobody else. The offset of that record is the epoch.

    assigned -> new token -> recover (snapshot, fold) -> append Leading(token)
             -> agent: record by record, step -> own Leading read: Term begins -> effects
    another's Leading read, or revoked -> Term ends
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from agents.bus import Bus
from schemas import topics
from schemas.events import Leading
from schemas.policy import CorePolicy
from streams import log, snapshots
from streams.core.state import State
from streams.core.step import step
from streams.log import Entry, LogTruncatedError
from streams.solving import SolveError, Solver
from streams.term import MAY_PASS, Term, pauses

logger = logging.getLogger(__name__)

RECLAIM_S = 5.0
"""A deposed leader that still has the partition after so long stands again: the other was a ghost that
had lost the partition when its `Leading` came through."""
HOLE_PAUSE_S = 1.0


@dataclass(frozen=True)
class Terms:
    """What a leader decides by, and how often it takes a snapshot."""

    fleet: str
    policy: CorePolicy
    version: str
    snapshot_every: int


class Leadership:
    """One control worker: now a standby, now a candidate, now the leader.

    `serve` runs it; Faust calls `assigned`, `revoked` and `take`.
    """

    def __init__(self, bus: Bus, solver: Solver, terms: Terms) -> None:
        """`bus` and `solver` must be open while `serve` runs."""
        self._bus = bus
        self._solver = solver
        self._terms = terms
        self._topic = bus.name(topics.CONTROL)
        self._token: str | None = None
        self._summoned = asyncio.Event()
        self._state = State()
        self._open = asyncio.Event()
        """The state is folded and `Leading` written: the agent may go on."""
        self._tasks: asyncio.TaskGroup | None = None
        self._term: Term | None = None
        self._snapshot_offset = -1

    # --- the candidate ---------------------------------------------------------------------------------
    def assigned(self) -> None:
        """The partition is ours: stand for the lead, in a task of its own and with a new token."""
        self._step_back()
        self._token = uuid4().hex
        self._summoned.set()

    def revoked(self) -> None:
        """The partition is, or soon will be, another's."""
        self._step_back()
        self._token = None
        self._summoned.set()

    def _step_back(self) -> None:
        self._open.clear()
        self._end_term()

    async def serve(self) -> None:
        """Stand for the lead whenever summoned, until cancelled. An error that is a bug ends it."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            candidacy: asyncio.Task[None] | None = None
            while True:
                await self._summoned.wait()
                self._summoned.clear()
                if candidacy is not None:
                    candidacy.cancel()
                if self._token is not None:
                    candidacy = tasks.create_task(self._stand(self._token))

    async def _stand(self, token: str) -> None:
        """Fold the log, say `Leading`, let the agent in."""
        for pause in pauses():
            try:
                library = await self._solver.library()
                self._state = await self._fold()
                await self._say_leading(token, library)
                break
            except (*MAY_PASS, LogTruncatedError, SolveError) as error:
                logger.warning("cannot take the lead, trying again in %g s: %r", pause, error)
                await asyncio.sleep(pause)
        if self._token == token:
            self._open.set()

    async def _fold(self) -> State:
        """The state at the log's end, effects off."""
        state = await snapshots.load(self._bus) or State()
        self._snapshot_offset = state.offset
        async for entry in log.read(self._bus.kafka, self._topic, state.offset + 1):
            step(state, entry.record())
        logger.info("folded snapshot=%d end=%d", self._snapshot_offset, state.offset)
        return state

    async def _say_leading(self, token: str, library: str) -> None:
        leading = Leading(
            token=token,
            fleet=self._terms.fleet,
            policy=self._terms.policy,
            library=library,
            version=self._terms.version,
            history=self._state.history,
            history_offset=self._state.offset,
        )
        written = await self._bus.send(topics.CONTROL, leading, event_id=token)
        logger.info("leading epoch=%d token=%s", written.offset, token)

    # --- the leader ------------------------------------------------------------------------------------
    async def take(self, entry: Entry) -> None:
        """The next record as Faust read it; returns once the state has it."""
        while True:
            await self._open.wait()
            state = self._state
            if entry.offset <= state.offset:
                return
            if entry.offset == state.offset + 1:
                self._advance(entry)
                return
            logger.warning("offsets %d to %d were not delivered", state.offset + 1, entry.offset - 1)
            try:
                await self._fill(state, entry.offset)
            except MAY_PASS as error:
                logger.warning("cannot read them yet: %r", error)
                await asyncio.sleep(HOLE_PAUSE_S)

    async def _fill(self, state: State, end: int) -> None:
        """Read a hole from the log itself: nothing is ever decided on one."""
        async with aclosing(log.read(self._bus.kafka, self._topic, state.offset + 1, end)) as entries:
            async for missing in entries:
                if self._state is not state or not self._open.is_set():
                    return  # summoned anew meanwhile
                self._advance(missing)

    def _advance(self, entry: Entry) -> None:
        """Step over one record, and perform what comes of it if the log says that we lead."""
        record = entry.record()
        effects = step(self._state, record)
        if self._state.leader != self._token:
            if self._term is not None:
                logger.warning("deposed at offset %d by token %s", entry.offset, self._state.leader)
                self._end_term()
                self._reclaim_later()
            return
        if self._term is None:
            self._term = Term(self._bus, self._solver, self._spawn)
        self._term.perform(effects, entry, self._state.history)
        if entry.offset - self._snapshot_offset >= self._terms.snapshot_every:
            self._snapshot_offset = entry.offset
            # Encoded now, while the state is that of this offset; written in its own time.
            self._term.start(self._write_snapshot(snapshots.encode(self._state, self._terms.version)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        if self._tasks is None:
            raise RuntimeError("records are taken only while serve() runs")
        return self._tasks.create_task(work)

    def _end_term(self) -> None:
        if self._term is not None:
            self._term.end()
            self._term = None

    def _reclaim_later(self) -> None:
        async def reclaim(token: str | None) -> None:
            await asyncio.sleep(RECLAIM_S)
            if token is not None and self._token == token:
                logger.warning("still assigned, standing again")
                self.assigned()

        self._spawn(reclaim(self._token))

    async def _write_snapshot(self, snapshot: snapshots.Snapshot) -> None:
        try:
            await snapshots.write(self._bus, snapshot)
        except MAY_PASS as error:
            logger.warning("snapshot at %d not written: %r", snapshot.manifest.offset, error)
