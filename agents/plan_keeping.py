"""The newest plan for those who only follow it: from disk at once, then from Kafka while that is there.

Routers, balancers kept in step and scrapers start and go on by the last plan they knew (house.md, law 3).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from aiokafka.errors import KafkaError
from pydantic import ValidationError

from agents.bus import Bus, follow_plans
from agents.files import write_atomically
from schemas.codec import describe
from schemas.plans import Order, Plan

log = logging.getLogger(__name__)

BACK_OFF_S, BACK_OFF_LIMIT_S = 0.5, 5.0
"""Wait before Kafka is tried again, doubled up to the limit."""
NO_PLAN: Order = (0, 0, 0)

Take = Callable[[Plan], None]


class KeptPlan:
    """The newest plan, in one file.

    Args:
        take: called with each plan that is newer than those before.
    """

    def __init__(self, path: Path, take: Take) -> None:
        self._path = path
        self._take = take
        self._newest: Order = NO_PLAN
        self._unwritten: Plan | None = None

    def read(self) -> None:
        """Take the plan on the disk, if there is one that can be read."""
        try:
            plan = Plan.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            said = describe(error) if isinstance(error, ValidationError) else str(error)
            log.warning("%s: %s; waiting for a plan from Kafka instead", self._path, said[:500])
            return
        self._newest = plan.order
        self._take(plan)

    async def follow(self, bus: Bus) -> None:
        """Take every newer plan, and keep the newest on disk. Returns never.

        Raises:
            aiokafka.errors.KafkaError: Kafka failed.
        """
        async with asyncio.TaskGroup() as both:
            fresh = asyncio.Event()
            both.create_task(self._write(fresh))
            async for plan in follow_plans(bus, self._newest):
                self._newest = plan.order
                self._take(plan)
                self._unwritten = plan
                fresh.set()

    async def _write(self, fresh: asyncio.Event) -> None:
        while True:
            await fresh.wait()
            fresh.clear()
            if (plan := self._unwritten) is not None:
                try:
                    await asyncio.to_thread(write_atomically, self._path, plan.model_dump_json())
                except OSError as error:
                    log.warning("%s: the plan cannot be kept for a restart: %s", self._path, error)


async def with_kafka(new_bus: Callable[[], Bus], *jobs: Callable[[Bus], Awaitable[None]]) -> None:
    """Do jobs that need Kafka, again from their start with a new connection whenever Kafka fails."""
    wait_s = BACK_OFF_S
    while True:
        try:
            async with new_bus() as bus:
                wait_s = BACK_OFF_S
                await _all(bus, jobs)
        except* KafkaError as errors:
            log.warning("Kafka failed, next try in %g s: %s", wait_s, _first(errors))
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, BACK_OFF_LIMIT_S)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _all(bus: Bus, jobs: Sequence[Callable[[Bus], Awaitable[None]]]) -> None:
    async def run(job: Callable[[Bus], Awaitable[None]]) -> None:
        await job(bus)

    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(run(job))
