"""What a node agent says and hears on Kafka, and how it goes on when Kafka fails.

The next heartbeat that gets through says everything, so nothing is kept for later.
"""

import asyncio
from collections.abc import Callable

from agents.bus import Bus, continued, follow_plan_records
from agents.lifespan import within
from agents.plan_keeping import with_kafka
from agents.reconciler import Reconciler
from schemas import topics
from schemas.codec import Headers


class Talk:
    """Follows plans and sends heartbeats, with a new connection whenever Kafka fails.

    Args:
        name: the node's.
        heartbeat_s: time between two heartbeats that say the same; news goes out at once.
    """

    def __init__(
        self, node: Reconciler, new_bus: Callable[[], Bus], name: str, *, heartbeat_s: float
    ) -> None:
        self.said = asyncio.Event()
        """Set when everything there is to say was written."""
        self._node = node
        self._new_bus = new_bus
        self._name = name
        self._heartbeat_s = heartbeat_s
        self._news = ""
        self._headers: Headers = []

    async def run(self) -> None:
        await with_kafka(self._new_bus, self._follow, self._beat)

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
            await bus.send(topics.FLEET, beat, key=self._name)
        self._news = news
