"""The process that brings the plan's claims to life: plans in, grants, refusals, losses and offers out.

It remembers nothing across a restart: it asks each provisioner what is held, hears the newest plan, and
goes on. Before any plan was heard nothing is created or released.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from aiokafka.structs import ConsumerRecord

from agents.bus import Bus, continued, follow_plan_records, reading
from agents.provision import Create, Grant, Miss, Place, Provisioner, Refused, Release, reconcile
from schemas import codec, topics
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


class Desk:
    """Brings one provisioner to where the plan wants it, one round at a time."""

    def __init__(self, bus: Bus, provisioner: Provisioner, now_ms: Callable[[], int], every_ms: int) -> None:
        self._bus = bus
        self._provisioner = provisioner
        self._now_ms = now_ms
        self._every_ms = every_ms
        self._said: set[str] = set()
        self._headers: Headers = []
        self._offered: dict[Place, AvailabilityOffered] = {}

    async def round(self, plan: Plan | None, headers: Headers | None = None) -> None:
        """Report losses, reconcile with the plan if there is one, offer what is left.

        Args:
            headers: of the plan's message; what is said about its claims goes on with its trace.
        """
        self._headers = headers or []
        for loss in await self._provisioner.gone():
            await self._lost(loss.claim, loss.node, loss.reason)
            await self._provisioner.forget(loss.claim)
        if plan is not None:
            await self._reconcile(plan)
        await self._offer()

    async def _reconcile(self, plan: Plan) -> None:
        places = self._provisioner.places
        wanted = [claim for claim in plan.claims if (claim.pool, claim.configuration) in places]
        for action in reconcile(wanted, await self._provisioner.held(), self._said):
            match action:
                case Release():
                    await self._release(action)
                case Grant():
                    await self._grant(action.claim, action.node)
                case Miss():
                    await self._lost(action.claim, action.node, "not held by its provisioner")
                case Create():
                    await self._create(action.claim)
        self._said &= {claim.id for claim in plan.claims}

    async def _create(self, claim: Claim) -> None:
        try:
            node = await self._provisioner.create(claim)
        except Refused as no:
            log.info("claim %s refused: %s", claim.id, no.reason)
            refusal = ClaimRefused(
                claim=claim.id, reason=no.reason, terminal=no.terminal, retry_after_ms=no.retry_after_ms
            )
            await self._say(refusal, f"refused/{claim.id}")
            self._said.add(claim.id)
        else:
            await self._grant(claim.id, node)

    async def _grant(self, claim: str, node: str) -> None:
        log.info("claim %s granted: node %s", claim, node)
        await self._say(ClaimGranted(claim=claim, node=node), f"granted/{claim}/{node}")
        self._said.add(claim)

    async def _release(self, action: Release) -> None:
        if not await self._provisioner.release(action.claim, action.node):
            return
        log.info("claim %s released: node %s", action.claim, action.node)
        await self._say(
            ClaimReleased(claim=action.claim, node=action.node), f"released/{action.claim}/{action.node}"
        )
        await self._provisioner.forget(action.claim)

    async def _lost(self, claim: str, node: str, reason: str) -> None:
        log.info("node %s of claim %s is gone: %s", node, claim, reason)
        await self._say(NodeGone(node=node, claim=claim, reason=reason), f"gone/{claim}/{node}")
        self._said.add(claim)

    async def _say(self, event: Frozen, event_id: str) -> None:
        with continued("provision.say", self._headers):
            await self._bus.send(topics.CONTROL, event, event_id=event_id)

    async def _offer(self) -> None:
        now_ms = self._now_ms()
        for place, obtainable in (await self._provisioner.stock()).items():
            last = self._offered.get(place)
            if last and last.obtainable == obtainable and now_ms - last.at_ms < self._every_ms:
                continue
            pool, configuration = place
            offer = Offer(pool=pool, configuration=configuration, source=self._provisioner.name)
            event = AvailabilityOffered(offer=offer, obtainable=obtainable, at_ms=now_ms)
            await self._bus.send(
                topics.AVAILABILITY, event, key=offer.key, event_id=f"{offer.key}/{event.at_ms}"
            )
            self._offered[place] = event


class _Newest:
    """The newest plan with its message's headers, and a bell for whatever makes another round worth while."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.headers: Headers = []
        self.bell = asyncio.Event()


async def run_provisioner(
    bus: Bus,
    provisioners: Sequence[Provisioner],
    *,
    poll_s: float = 0.5,
    offer_every_ms: int = 5_000,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> None:
    """Serve the claims of the plans until cancelled. Nodes stay as they are when it ends.

    A claim that none of `provisioners` covers is left alone: another process may cover it, and the core
    gives up a claim that nobody grants.

    Args:
        poll_s: how often a provisioner is asked about lost nodes and stock when no plan moves.
        offer_every_ms: an unchanged stock is said again so often.

    Raises:
        ValueError: two provisioners have the same name or share a place.
    """
    _check_disjoint(provisioners)
    newest = _Newest()
    desks = [Desk(bus, provisioner, now_ms, offer_every_ms) for provisioner in provisioners]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_follow(bus, newest))
        tasks.create_task(_listen(bus, provisioners, newest))
        while True:
            newest.bell.clear()
            for desk in desks:
                await desk.round(newest.plan, newest.headers)
            # Nothing new in that time: look after the nodes all the same.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(newest.bell.wait(), poll_s)


def _check_disjoint(provisioners: Sequence[Provisioner]) -> None:
    owners: dict[str, str] = {}
    for provisioner in provisioners:
        places = [f"{configuration} in {pool.key}" for pool, configuration in provisioner.places]
        for owned in (f"name {provisioner.name}", *places):
            if owned in owners:
                raise ValueError(f"{owned}: covered by {owners[owned]} and by {provisioner.name}")
            owners[owned] = provisioner.name


async def _follow(bus: Bus, newest: _Newest) -> None:
    async for plan, headers in follow_plan_records(bus):
        newest.plan, newest.headers = plan, headers
        newest.bell.set()


async def _listen(bus: Bus, provisioners: Sequence[Provisioner], newest: _Newest) -> None:
    """Hand on what other sources offer from now on; they repeat themselves, so nothing older is needed."""
    name = bus.name(topics.AVAILABILITY)
    async with reading(bus.kafka, name) as consumer:
        await consumer.seek_to_end()
        while True:
            batches = await consumer.getmany(timeout_ms=500)
            for record in (record for batch in batches.values() for record in batch):
                offer = await _offer_of(bus, record)
                if offer is not None:
                    with continued("provision.hear", record.headers):
                        for provisioner in provisioners:
                            provisioner.hear(offer)
                    newest.bell.set()


async def _offer_of(bus: Bus, record: ConsumerRecord) -> AvailabilityOffered | None:
    try:
        event = codec.decode(topics.AVAILABILITY, record.value, record.headers)
    except codec.MessageError as error:
        await bus.dead_letter(record, str(error))
        return None
    return event if isinstance(event, AvailabilityOffered) else None
