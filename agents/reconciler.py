"""Drives the engines of one node after the newest plan. No Kafka here: plans come in, heartbeats go out.

Everything happens in the event loop's one thread: an event (a plan, an engine that is ready or gone, a tick)
moves the ledger, `decide` says what follows, each action goes on disk first and is performed second.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from agents.engine import Engine, EngineFactory, EngineSpec, spec_of
from agents.ledger import Action, Drain, Gone, Held, Ledger, Observation, RankKey, Ready, Start, Stop, advance
from agents.lifecycle import Means, decide
from agents.state_dir import StateDir
from schemas.base import Name
from schemas.events import Heartbeat, StageReport
from schemas.plans import Order, Plan
from schemas.problems import Pool

log = logging.getLogger(__name__)

Clock = Callable[[], int]
"""Milliseconds since the epoch."""

AGENT_RESTARTED = "the node agent restarted, and its engine ended with it"


NodeName = Annotated[Name, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A name that is a folder's too, and never `.` or `..`."""


@dataclass(frozen=True, config=ConfigDict(strict=True, allow_inf_nan=False))
class NodeIdentity:
    """What a node says about itself; `claim` is what its provisioner started it for, None if static.

    Raises:
        pydantic.ValidationError: a field is impossible: it comes from a person, or from another process.
    """

    name: NodeName
    pool: Pool
    configuration: Name
    devices: int
    memory_gb: float
    """Of all devices together, in 10^9 bytes."""
    address: str = "127.0.0.1"
    claim: Name | None = None


class Reconciler:
    """The node's engines, its ledger and the newest plan.

    Args:
        boot: names this run; after another boot every engine of before is gone.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        state: StateDir,
        engines: EngineFactory,
        clock: Clock,
        *,
        boot: str,
        drain_deadline_ms: int,
    ) -> None:
        self.changed = asyncio.Event()
        """Set whenever the next heartbeat says something new."""
        self.idle = asyncio.Event()
        """Set while no engine lives."""
        self._identity = identity
        self._state = state
        self._new_engine = engines
        self._clock = clock
        self._boot = boot
        self._me = Means(identity.name, identity.devices, identity.memory_gb, drain_deadline_ms)
        self._ledger = Ledger()
        self._plan: Plan | None = None
        self._notice_ms: int | None = None
        self._waiting: Mapping[RankKey, str] = {}
        self._engines: dict[RankKey, Engine] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: BaseException | None = None

    @property
    def newest(self) -> Order:
        """Order of the newest plan; older ones are dropped."""
        return (0, 0, 0) if self._plan is None else self._plan.order

    async def begin(self) -> None:
        """Take up the state on disk, adopt engines that still run, report the others as ended.

        Raises:
            agents.state_dir.StateError: the state is unreadable.
        """
        self._ledger, self._plan = self._state.read_ledger(), self._state.read_plan()
        found = {held: engine for held in self._ledger.live if (engine := await self._adopted(held.key))}
        for held in self._ledger.live:
            if held not in found:
                self._move(Gone(held.key, AGENT_RESTARTED))
        for held, engine in found.items():
            self._engines[held.key] = engine
            self._spawn(self._live(held.key, engine, None))
            if held.state == "draining":  # It may not have heard yet.
                self._spawn(self._ask(held.key, engine.stop() if held.stopped else engine.drain()))
        self.reconcile()

    def accept(self, plan: Plan) -> None:
        """Follow `plan` from now on, unless it is older than the newest."""
        if plan.order <= self.newest:
            return
        self._state.write_plan(plan)
        self._plan = plan
        log.info("follows plan %s (%s)", plan.id, plan.target.reason)
        self.changed.set()
        self.reconcile()

    def notice(self, deadline_ms: int) -> None:
        """The cloud takes this node at `deadline_ms`. The plan decides what moves; no drain lasts longer."""
        if self._me.until_ms is None or deadline_ms < self._me.until_ms:
            log.warning("the node is to be taken away at %d ms", deadline_ms)
            self._me, self._notice_ms = replace(self._me, until_ms=deadline_ms), deadline_ms
            self.changed.set()
            self.reconcile()

    def leave(self, grace_ms: int) -> None:
        """End everything within `grace_ms`, whatever the plan says; `idle` tells when."""
        until_ms = self._clock() + grace_ms
        if self._me.until_ms is not None:
            until_ms = min(until_ms, self._me.until_ms)
        self._me = replace(self._me, leaving=True, until_ms=until_ms)
        self.changed.set()
        self.reconcile()

    def reconcile(self) -> None:
        """Do what the newest plan and the clock ask for.

        Raises:
            OSError: the state cannot be written: what cannot be remembered must not be done.
        """
        if self._broken is not None:
            raise self._broken
        decision = decide(self._ledger, self._plan, self._me, self._clock())
        for action in decision.actions:
            log.info("%s", action)
            self._move(action)
            self._perform(action)
        if decision.actions or decision.waiting != self._waiting:
            self._waiting = decision.waiting
            self.changed.set()
        if self._ledger.live:
            self.idle.clear()
        else:
            self.idle.set()

    def heartbeat(self) -> Heartbeat:
        """The node's whole state."""
        me = self._identity
        held = [self._report(held) for held in self._ledger.held]
        waiting = [
            StageReport(**key._asdict(), state="starting", reason=reason)
            for key, reason in self._waiting.items()
        ]
        return Heartbeat(
            node=me.name,
            boot=self._boot,
            at_ms=self._clock(),
            pool=me.pool,
            configuration=me.configuration,
            devices=me.devices,
            memory_gb=me.memory_gb,
            claim=me.claim,
            stages=tuple(held + waiting),
            plan=None if self._plan is None else self._plan.id,
            leaving=self._me.leaving,
            notice_deadline_ms=self._notice_ms,
        )

    async def end(self) -> None:
        """End what still lives at once, cutting what is in flight."""
        self.leave(0)
        self.reconcile()  # What leaving put to drain is past its deadline already.
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _report(self, held: Held) -> StageReport:
        engine = self._engines.get(held.key)
        starting = engine.progress if engine is not None and held.state == "starting" else None
        return StageReport(
            **held.key._asdict(),
            state=held.state,
            reason=held.reason or (None if starting is None else starting.text),
            phase=None if starting is None else starting.phase,
            endpoint=held.endpoint,
            in_flight=0 if engine is None else engine.in_flight,
        )

    def _move(self, event: Action | Observation) -> None:
        self._ledger = advance(self._ledger, event)
        self._state.write_ledger(self._ledger)

    def _observe(self, event: Observation) -> None:
        log.info("%s", event)
        self._move(event)
        self.changed.set()
        self.reconcile()

    def _perform(self, action: Action) -> None:
        match action:
            case Start() if self._plan is not None:
                for key, _ in action.spots:
                    engine = self._engines[key] = self._new_engine()
                    spec = spec_of(self._plan, key, self._identity.address)
                    self._spawn(self._live(key, engine, spec))
            case Drain():
                self._spawn(self._ask(action.key, self._engines[action.key].drain()))
            case Stop():
                self._spawn(self._ask(action.key, self._engines[action.key].stop()))
            case _:
                pass  # Decline and Forget are moves of the ledger only; nothing starts without a plan.

    async def _adopted(self, key: RankKey) -> Engine | None:
        engine = self._new_engine()
        return engine if await engine.adopt(key) else None

    async def _live(self, key: RankKey, engine: Engine, spec: EngineSpec | None) -> None:
        """An engine's whole life, from its start (or its adoption, without a spec) to its end."""
        try:
            if spec is not None:
                await engine.start(spec)
            reason = await self._watch(key, engine)
        except Exception as error:  # Whatever an engine raises fails that engine, never the node.
            log.warning("%s failed", key, exc_info=error)
            reason = f"{type(error).__name__}: {error}"
        del self._engines[key]
        self._observe(Gone(key, reason))

    async def _watch(self, key: RankKey, engine: Engine) -> str | None:
        """Pass on that it is ready, at most once, and return once it is gone."""
        ready, gone = asyncio.create_task(engine.ready()), asyncio.create_task(engine.gone())
        await asyncio.wait({ready, gone}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            self._observe(Ready(key, ready.result().endpoint))
        else:
            ready.cancel()
        return (await gone).reason

    async def _ask(self, key: RankKey, request: Coroutine[None, None, None]) -> None:
        """Have a request of an engine done. If it fails, the drain deadline comes all the same."""
        try:
            await request
        except Exception:
            log.exception("%s did not take a request", key)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = error  # The agent's own, since an engine's are caught; the next reconcile ends it.
