"""One provisioner and the plan: what is to be done is begun, and what comes of it is said on the log.

It remembers nothing across a restart: it asks the provisioner what is held, hears the newest plan, and goes
on. Before any plan was heard nothing is created or given back.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.bus import Bus, continued
from agents.provision import Place, Provisioner, Refused, Unanswered, place_of
from agents.provision_claims import (
    Absences,
    Action,
    Answers,
    Create,
    Grant,
    Miss,
    Refusals,
    Release,
    reconcile,
)
from schemas import topics
from schemas.base import Frozen
from schemas.codec import Headers
from schemas.events import (
    AvailabilityOffered,
    ClaimGranted,
    ClaimRefused,
    ClaimReleased,
    NodeGone,
    Offer,
)
from schemas.plans import Claim, Plan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pace:
    """Limits of one desk."""

    creations: int = 16
    """Nodes being made at the same time; a cloud takes minutes for one."""
    patience_s: float = 1.0
    """A round waits so long for what it began; what takes longer goes on, and is said when it is done."""
    offer_every_ms: int = 5_000
    """An unchanged stock is said again so often."""
    away_ms: int = 1_000
    """A cloud that does not answer is left alone so long, doubled each time up to `away_limit_ms`."""
    away_limit_ms: int = 60_000


DEFAULT_PACE = Pace()


class Desk:
    """Brings one provisioner to where the plan wants it, one round at a time."""

    def __init__(
        self, bus: Bus, provisioner: Provisioner, now_ms: Callable[[], int], pace: Pace = DEFAULT_PACE
    ) -> None:
        self._bus = bus
        self._provisioner = provisioner
        self._now_ms = now_ms
        self._pace = pace
        self._said = Answers()
        self._absences = Absences()
        self._refusals = Refusals()
        self._work: dict[str, asyncio.Task[None]] = {}
        """Claim -> what is being done about it."""
        self._creating: set[str] = set()
        self._offered: dict[Place, AvailabilityOffered] = {}
        self._away_ms = 0
        self._back_at_ms = 0

    async def round(self, plan: Plan | None, headers: Headers | None = None) -> None:
        """Report losses, reconcile with the plan if there is one, offer what is left.

        Args:
            headers: of the plan's message; what is said about its claims goes on with its trace.
        """
        if self._now_ms() < self._back_at_ms:
            return
        try:
            self._collect()
            await self._report_losses()
            if plan is not None:
                await self._reconcile(plan, headers or [])
            await self._offer()
        except Unanswered as error:
            self._away_ms = min(max(2 * self._away_ms, self._pace.away_ms), self._pace.away_limit_ms)
            self._back_at_ms = self._now_ms() + self._away_ms
            name, wait_s = self._provisioner.name, self._away_ms / 1000
            log.warning("%s does not answer, asked again in %g s: %s", name, wait_s, error)
        else:
            self._away_ms = 0

    async def close(self) -> None:
        """Stop waiting for what is under way. Nodes stay, also those half made: their tags tell of them."""
        for task in self._work.values():
            task.cancel()
        await asyncio.gather(*self._work.values(), return_exceptions=True)

    # --- the plan ----------------------------------------------------------------------------------
    async def _reconcile(self, plan: Plan, headers: Headers) -> None:
        if plan.fleet != self._provisioner.fleet:
            mine = self._provisioner.fleet
            log.error("plan %s is fleet %s's, expected %s's: left alone", plan.id, plan.fleet, mine)
            return
        held = await self._provisioner.held()
        self._absences = self._absences.hear(plan, held.keys() | self._work.keys())
        places = self._provisioner.places
        wanted = [claim for claim in plan.claims if place_of(claim) in places]
        over = self._absences.over(held)
        actions = reconcile(wanted, held, self._said, busy=self._work.keys(), over=over)
        if actions:
            with continued("provision.reconcile", headers):
                await self._perform(actions)
        self._said.keep({claim.id for claim in plan.claims} | self._work.keys())

    async def _perform(self, actions: Sequence[Action]) -> None:
        await self._begin({a.claim: self._release(a) for a in actions if isinstance(a, Release)})
        for action in actions:
            if isinstance(action, Grant):
                await self._grant(action.claim, action.node)
            elif isinstance(action, Miss):
                await self._lost(action.claim, action.node, "not held by its provisioner")
        await self._create_all([action.claim for action in actions if isinstance(action, Create)])

    async def _create_all(self, claims: Sequence[Claim]) -> None:
        now_ms, asked = self._now_ms(), []
        for claim in claims:
            no = self._refusals.standing(place_of(claim), now_ms)
            if no is None:
                asked.append(claim)
            else:
                await self._refuse(claim.id, no)
        begun = asked[: max(0, self._pace.creations - len(self._creating))]  # the others' turn comes
        self._creating |= {claim.id for claim in begun}
        await self._begin({claim.id: self._create(claim) for claim in begun})

    # --- work that may take long -------------------------------------------------------------------
    async def _begin(self, work: Mapping[str, Coroutine[Any, Any, None]]) -> None:
        """Start it, and wait for it as long as a round's patience lasts."""
        tasks = {claim: asyncio.create_task(doing) for claim, doing in work.items()}
        self._work |= tasks
        if tasks:
            await asyncio.wait(tasks.values(), timeout=self._pace.patience_s)
            self._collect()

    def _collect(self) -> None:
        """Take what is done off the desk, and raise what went wrong with it."""
        done = {claim: task for claim, task in self._work.items() if task.done()}
        for claim in done:
            del self._work[claim]
            self._creating.discard(claim)
        errors = [error for task in done.values() if (error := task.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, Unanswered)):
            raise error

    async def _create(self, claim: Claim) -> None:
        place, began_ms = place_of(claim), self._now_ms()
        try:
            node = await self._provisioner.create(claim)
        except Refused as no:
            now_ms = self._now_ms()
            self._refusals.note(place, no, began_ms=began_ms, now_ms=now_ms)
            await self._refuse(claim.id, self._refusals.standing(place, now_ms) or no)
        else:
            self._refusals.had(place, began_ms=began_ms)
            await self._grant(claim.id, node)

    async def _release(self, action: Release) -> None:
        if not await self._provisioner.release(action.claim, action.node):
            return
        log.info("claim %s released: node %s", action.claim, action.node)
        released = ClaimReleased(claim=action.claim, node=action.node)
        await self._say(released, f"released/{action.claim}/{action.node}")
        await self._provisioner.forget(action.claim)

    # --- what is said ------------------------------------------------------------------------------
    async def _report_losses(self) -> None:
        for loss in await self._provisioner.gone():
            if loss.claim not in self._work:
                await self._lost(loss.claim, loss.node, loss.reason)
                await self._provisioner.forget(loss.claim)

    async def _grant(self, claim: str, node: str) -> None:
        log.info("claim %s granted: node %s", claim, node)
        await self._say(ClaimGranted(claim=claim, node=node), f"granted/{claim}/{node}")
        self._said.granted[claim] = node

    async def _refuse(self, claim: str, no: Refused) -> None:
        again = "for good" if no.terminal else f"for {no.retry_after_ms / 1000:g} s"
        log.info("claim %s refused %s: %s", claim, again, no.reason)
        refused = ClaimRefused(
            claim=claim, reason=no.reason, terminal=no.terminal, retry_after_ms=no.retry_after_ms
        )
        await self._say(refused, f"refused/{claim}")
        self._said.ended.add(claim)

    async def _lost(self, claim: str, node: str, reason: str) -> None:
        log.info("node %s of claim %s is gone: %s", node, claim, reason)
        await self._say(NodeGone(node=node, claim=claim, reason=reason), f"gone/{claim}/{node}")
        self._said.ended.add(claim)

    async def _say(self, event: Frozen, event_id: str) -> None:
        await self._bus.send(topics.CONTROL, event, event_id=event_id)

    async def _offer(self) -> None:
        """Say the stock of every place; one that refused has none until its time is over."""
        now_ms = self._now_ms()
        for place, stock in (await self._provisioner.stock()).items():
            obtainable = 0 if self._refusals.standing(place, now_ms) else stock
            last = self._offered.get(place)
            if last and last.obtainable == obtainable and now_ms - last.at_ms < self._pace.offer_every_ms:
                continue
            pool, configuration = place
            offer = Offer(pool=pool, configuration=configuration, source=self._provisioner.name)
            event = AvailabilityOffered(offer=offer, obtainable=obtainable, at_ms=now_ms)
            await self._bus.send(
                topics.AVAILABILITY, event, key=offer.key, event_id=f"{offer.key}/{event.at_ms}"
            )
            self._offered[place] = event
