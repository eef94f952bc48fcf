"""What node agents have to do with: plans to say, heartbeats to hear, the agents as processes."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiokafka import AIOKafkaConsumer

from agents.admin import create_topics
from agents.bus import Bus
from schemas import codec, topics
from schemas.events import Heartbeat, StageReport
from schemas.plans import Plan
from schemas.settings import KafkaSettings, Settings

HANG_S = 90.0
"""No assertion about time: how long a test waits before it calls something hung."""


class World:
    """One prefix on a broker."""

    def __init__(self, servers: str, prefix: str) -> None:
        self.settings = Settings(topic_prefix=prefix, kafka=KafkaSettings(bootstrap_servers=servers))
        self.bus = Bus(self.settings.kafka, prefix, "test/plans")
        self.heard: list[Heartbeat] = []
        """All heartbeats so far, of all nodes."""
        self.traces: list[str] = []
        """The traceparent of each."""
        self._consumer: AIOKafkaConsumer | None = None
        self.processes: list[asyncio.subprocess.Process] = []

    async def open(self) -> None:
        await create_topics(self.settings)
        await self.bus.__aenter__()
        self._consumer = AIOKafkaConsumer(
            self.bus.name(topics.FLEET),
            bootstrap_servers=self.settings.kafka.bootstrap_servers,
            auto_offset_reset="earliest",
        )
        await self._consumer.start()

    async def close(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        if self._consumer is not None:
            await self._consumer.stop()
        await self.bus.__aexit__(None, None, None)

    async def spawn(self, *command: str, **environment: str) -> asyncio.subprocess.Process:
        """Run a command that finds our packages; it is killed at the end."""
        process = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment}
        )
        self.processes.append(process)
        return process

    async def say(self, wish: Plan) -> None:
        await self.bus.send(topics.PLANS, wish, event_id=wish.id)

    async def hear(self, wanted: Callable[[Heartbeat], bool], node: str = "n1") -> Heartbeat:
        """The next heartbeat of a node that is as wanted."""
        assert self._consumer is not None
        async with asyncio.timeout(HANG_S):
            async for record in self._consumer:
                beat = codec.decode(topics.FLEET, record.value, record.headers)
                assert isinstance(beat, Heartbeat)
                assert record.key == beat.node.encode()
                self.heard.append(beat)
                self.traces.append(codec.header_map(record.headers).get("traceparent", ""))
                if beat.node == node and wanted(beat):
                    return beat
        raise AssertionError("the consumer ended")

    async def stage(self, state: str, node: str = "n1") -> StageReport:
        """A node's only stage, once it is in this state."""
        beat = await self.hear(lambda beat: [stage.state for stage in beat.stages] == [state], node)
        return beat.stages[0]


@asynccontextmanager
async def opened(world: World) -> AsyncIterator[World]:
    try:
        await world.open()
        yield world
    finally:
        await world.close()
