"""What a node agent says and hears on Kafka, and how it goes on when Kafka fails.

The next heartbeat that gets through says everything, so nothing is kept for later.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiokafka.errors import KafkaError

from agents.bus import Bus, continued, follow_plan_records
from agents.reconciler import Reconciler
from schemas import topics
from schemas.codec import Headers
from schemas.settings import KafkaSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Line:
    """Which Kafka, and as whom."""

    kafka: KafkaSettings
    prefix: str
    name: str

    def bus(self) -> Bus:
        return Bus(self.kafka, self.prefix, f"node/{self.name}")


class Talk:
    """Follows plans and sends heartbeats, with a new connection whenever Kafka fails.

    Args:
        heartbeat_s: time between two heartbeats that say the same; news goes out at once.
        back_off_s: least and greatest wait before Kafka is tried again.
    """

    def __init__(
        self, node: Reconciler, line: Line, *, heartbeat_s: float, back_off_s: tuple[float, float]
    ) -> None:
        self.said = asyncio.Event()
        """Set when everything there is to say was written."""
        self._node = node
        self._line = line
        self._heartbeat_s = heartbeat_s
        self._back_off_s = back_off_s
        self._news = ""
        self._headers: Headers = []

    async def run(self) -> None:
        least_s, greatest_s = self._back_off_s
        wait_s = least_s
        while True:
            try:
                async with self._line.bus() as bus, asyncio.TaskGroup() as both:
                    wait_s = least_s
                    both.create_task(self._follow(bus))
                    both.create_task(self._beat(bus))
            except* KafkaError as errors:
                log.warning("Kafka failed, next try in %g s: %s", wait_s, errors.exceptions[0])
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, greatest_s)

    async def _follow(self, bus: Bus) -> None:
        async for plan, headers in follow_plan_records(bus, self._node.newest):
            self._headers = headers
            with continued("node.follow", headers):
                self._node.accept(plan)

    async def _beat(self, bus: Bus) -> None:
        while True:
            self._node.changed.clear()
            await self._say(bus)
            if not self._node.changed.is_set():
                self.said.set()
            await within(self._heartbeat_s, self._node.changed.wait())

    async def _say(self, bus: Bus) -> None:
        """One heartbeat; news goes on with the trace of the newest plan, which mostly is its cause."""
        beat = self._node.heartbeat()
        news = beat.news
        with continued("node.report", self._headers if news != self._news else []):
            await bus.send(topics.FLEET, beat, key=self._line.name)
        self._news = news


async def within(seconds: float, wait: Coroutine[Any, Any, object]) -> None:
    """Wait, but not longer than that."""
    with suppress(TimeoutError):
        await asyncio.wait_for(wait, seconds)
