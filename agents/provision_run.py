"""The process that brings the plan's claims to life: plans in, grants, refusals, losses and offers out."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from aiokafka.structs import ConsumerRecord

from agents.bus import Bus, continued, follow_plan_records, reading
from agents.provision import Provisioner
from agents.provision_desk import DEFAULT_PACE, Desk, Pace
from schemas import codec, topics
from schemas.codec import Headers
from schemas.events import AvailabilityOffered
from schemas.plans import Plan


class _Served:
    """A desk at work, with the newest plan and a bell for whatever makes another round worth while."""

    def __init__(self, desk: Desk) -> None:
        self.plan: Plan | None = None
        self.headers: Headers = []
        self.bell = asyncio.Event()
        self._desk = desk

    async def serve(self, poll_s: float) -> None:
        try:
            while True:
                self.bell.clear()
                await self._desk.round(self.plan, self.headers)
                # Nothing new in that time: look after the nodes all the same.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.bell.wait(), poll_s)
        finally:
            await self._desk.close()


async def run_provisioner(
    bus: Bus,
    provisioners: Sequence[Provisioner],
    *,
    poll_s: float = 0.5,
    pace: Pace = DEFAULT_PACE,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> None:
    """Serve the claims of the plans until cancelled. Nodes stay as they are when it ends.

    Each provisioner has a desk of its own, so that a cloud that is slow, or away, holds up no other.

    A claim that none of `provisioners` covers is left alone: another process may cover it, and the core
    gives up a claim that nobody grants.

    Args:
        poll_s: how often a provisioner is asked about lost nodes and stock when no plan moves.

    Raises:
        ValueError: two provisioners have the same name or share a place.
    """
    _check_disjoint(provisioners)
    desks = [_Served(Desk(bus, provisioner, now_ms, pace)) for provisioner in provisioners]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_follow(bus, desks))
        tasks.create_task(_listen(bus, provisioners, desks))
        for desk in desks:
            tasks.create_task(desk.serve(poll_s))


def _check_disjoint(provisioners: Sequence[Provisioner]) -> None:
    owners: dict[str, str] = {}
    for provisioner in provisioners:
        places = [f"{configuration} in {pool.key}" for pool, configuration in provisioner.places]
        for owned in (f"name {provisioner.name}", *places):
            if owned in owners:
                raise ValueError(f"{owned}: covered by {owners[owned]} and by {provisioner.name}")
            owners[owned] = provisioner.name


async def _follow(bus: Bus, desks: Sequence[_Served]) -> None:
    async for plan, headers in follow_plan_records(bus):
        for desk in desks:
            desk.plan, desk.headers = plan, headers
            desk.bell.set()


async def _listen(bus: Bus, provisioners: Sequence[Provisioner], desks: Sequence[_Served]) -> None:
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
                    for desk in desks:
                        desk.bell.set()


async def _offer_of(bus: Bus, record: ConsumerRecord) -> AvailabilityOffered | None:
    try:
        event = codec.decode(topics.AVAILABILITY, record.value, record.headers)
    except codec.MessageError as error:
        await bus.dead_letter(record, str(error))
        return None
    return event if isinstance(event, AvailabilityOffered) else None
