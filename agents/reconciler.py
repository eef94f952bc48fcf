"""Drives the engines of one node after the newest plan. No Kafka here: plans come in, heartbeats go out.

Everything happens in the event loop's one thread: an event (a plan, an engine that is ready or gone, a tick)
moves the ledger, `decide` says what follows, each action goes on disk first and is performed second. So after
a crash the ledger may be ahead of the engines and never behind: what it says was started and is not there has
ended, what it says was told to end is told again, and engines that it does not know are swept away.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from agents.engine import EngineFactory, spec_of
from agents.engine_room import EngineRoom
from agents.identity import NodeIdentity
from agents.ledger import Action, Drain, Gone, Held, Ledger, Observation, RankKey, Start, Stop, advance
from agents.lifecycle import Means, decide
from agents.state_dir import StateDir
from schemas.events import Heartbeat, StageReport
from schemas.plans import Order, Plan

log = logging.getLogger(__name__)

Clock = Callable[[], int]
"""Milliseconds since the epoch."""

Sweep = Callable[[frozenset[RankKey]], Awaitable[object]]
"""Ends what earlier agents of this node left running, but for these; returns once it is gone."""

AGENT_RESTARTED = "its engine was not there any more when the node agent started"


async def nothing_to_sweep(keep: frozenset[RankKey]) -> None:
    """Of engines that never outlive their agent."""


class Reconciler:
    """The node's engines, its ledger and the newest plan.

    Args:
        boot: as in the heartbeat: names what engines live through, the machine's run or the agent's.
        last_ms: so long before a notice's deadline everything is drained, replaced or not.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        state: StateDir,
        engines: EngineFactory,
        clock: Clock,
        *,
        boot: str,
        last_ms: int = 30_000,
        sweep: Sweep = nothing_to_sweep,
    ) -> None:
        self.changed = asyncio.Event()
        """Set whenever the next heartbeat says something new."""
        self.idle = asyncio.Event()
        """Set while no engine lives."""
        self._identity = identity
        self._state = state
        self._clock = clock
        self._boot = boot
        self._sweep = sweep
        self._me = Means(
            node=identity.name,
            devices=identity.devices,
            memory_gb=identity.memory_gb,
            engine=identity.engine,
            last_ms=last_ms,
        )
        self._ledger = Ledger()
        self._plan: Plan | None = None
        self._notice_ms: int | None = None
        self._models: tuple[str, ...] = ()
        self._waiting: Mapping[RankKey, str] = {}
        self._room = EngineRoom(engines, self._observe)

    @property
    def newest(self) -> Order:
        """Order of the newest plan; older ones are dropped."""
        return (0, 0, 0) if self._plan is None else self._plan.order

    async def begin(self) -> None:
        """Take up the state on disk: adopt the engines it knows, end all others, report what is not there.

        Raises:
            agents.state_dir.StateError: the state is unreadable.
        """
        self._ledger, self._plan = self._state.read_ledger(), self._state.read_plan()
        live = self._ledger.live
        found = [held for held in live if await self._room.adopt(held.key)]
        await self._sweep(frozenset(held.key for held in found))
        for held in live:
            if held not in found:
                self._move(Gone(held.key, AGENT_RESTARTED))
        for held in found:
            log.info("adopted %s, %s", held.key, held.state)
            if held.state == "draining":  # it may not have heard yet
                (self._room.stop if held.stopped else self._room.drain)(held.key)
        self._grant_pulls()
        self.reconcile()

    def accept(self, plan: Plan) -> None:
        """Follow `plan` from now on, unless it is older than the newest."""
        if plan.order <= self.newest:
            return
        self._state.write_plan(plan)
        self._plan = plan
        log.info("follows plan %s (%s)", plan.id, plan.target.reason)
        self.changed.set()
        self._grant_pulls()
        self.reconcile()

    def has_models(self, revisions: tuple[str, ...]) -> None:
        """Report these revisions as those of the node's model cache."""
        if revisions != self._models:
            self._models = revisions
            self.changed.set()

    def notice(self, deadline_ms: int) -> None:
        """The cloud takes this node then: the plan moves what it can, the rest is drained at the last."""
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
        if self._room.broken is not None:
            raise self._room.broken
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
            StageReport(**key._asdict(), state="starting", phase="waiting", reason=reason)
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
            contact=me.contact,
            engine=me.engine,
            gpu=me.gpu,
            driver=me.driver,
            models=self._models,
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
        await self._room.emptied()

    async def let_go(self) -> None:
        """Leave every engine as it is, for the next agent to adopt."""
        await self._room.let_go()

    def _report(self, held: Held) -> StageReport:
        starting = self._room.progress(held.key) if held.state == "starting" else None
        return StageReport(
            **held.key._asdict(),
            state=held.state,
            reason=held.reason or (None if starting is None else starting.text),
            phase=None if starting is None else starting.phase,
            refusal=held.refusal,
            verified=held.verified,
            start_s=held.start_s,
            pull_s=held.pull_s,
            endpoint=held.endpoint,
            in_flight=self._room.in_flight(held.key),
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
                    self._room.start(spec_of(self._plan, key, self._identity.address))
                self._grant_pulls()
            case Drain():
                self._room.drain(action.key)
            case Stop():
                self._room.stop(action.key)
            case _:
                pass  # Decline and Forget are moves of the ledger only; nothing starts without a plan.

    def _grant_pulls(self) -> None:
        """Pass the plan's pull slot on to all that starts here; what has it already does not mind."""
        claim = None if self._plan is None else self._plan.claim_of(self._me.node)
        if self._plan is not None and claim is not None and claim.id in self._plan.pulls:
            for held in self._ledger.live:
                if held.state == "starting":
                    self._room.may_pull(held.key)
