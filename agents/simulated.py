"""The Engine protocol's double: no model, but the timing of one, from the template's latency table.

It is ready `startup_s` after its start. At the head it opens a real HTTP door; other stages just live. It
lives inside the agent's process and ends with it, so there is never anything to adopt.
"""

import asyncio

from agents.engine import End, EngineSpec, Progress, Up
from agents.ledger import RankKey
from agents.simulated_door import Door

ENGINE = "simulated-1"
"""Its engine version."""
LINGER_S = 2.0
"""How long an emptied door goes on answering "elsewhere" before it is gone."""


class SimulatedEngine:
    """One simulated rank.

    Args:
        time_scale: factor on the start-up time; requests keep the table's timing.
        linger_s: how long an emptied door still answers latecomers.
    """

    outlives_agent = False

    def __init__(self, *, time_scale: float = 1.0, linger_s: float = LINGER_S) -> None:
        self.progress: Progress | None = None
        self._time_scale = time_scale
        self._linger_s = linger_s
        self._door: Door | None = None
        self._fault: str | None = None
        self._began = 0.0
        self._draining = asyncio.Event()
        self._ready: asyncio.Future[Up] = asyncio.get_running_loop().create_future()
        self._gone: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._work: asyncio.Task[None] | None = None
        self._life: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> int:
        return 0 if self._door is None else self._door.in_flight

    async def start(self, spec: EngineSpec) -> None:
        self.progress = Progress("loading", "loading (simulated)")
        self._began = asyncio.get_running_loop().time()
        self._work = asyncio.create_task(self._run(spec))
        self._life = asyncio.create_task(self._live(self._work))

    async def adopt(self, key: RankKey) -> bool:  # noqa: ARG002  the protocol's
        return False

    async def may_pull(self) -> None:
        """There is nothing to pull."""

    async def ready(self) -> Up:
        return await asyncio.shield(self._ready)

    async def drain(self) -> None:
        self._draining.set()

    async def stop(self) -> None:
        if self._work is not None:
            self._work.cancel()

    async def gone(self) -> End:
        return await asyncio.shield(self._gone)

    async def crash(self, reason: str) -> None:
        """End as if killed by hand: cut what is in flight, and say `reason`."""
        self._fault = reason
        await self.stop()

    async def _run(self, spec: EngineSpec) -> None:
        await asyncio.sleep(spec.template.latency.startup_s * self._time_scale)
        if spec.head:
            self._door = Door.open(spec.instance.service.model, spec.template.latency, spec.address)
        self.progress = None
        start_s = asyncio.get_running_loop().time() - self._began
        # There is no model whose answers could be wrong.
        up = Up(start_s=start_s) if self._door is None else Up(self._door.endpoint, True, start_s)
        self._ready.set_result(up)
        await self._draining.wait()
        if self._door is not None:
            await self._door.drain(self._linger_s)

    async def _live(self, work: asyncio.Task[None]) -> None:
        await asyncio.wait({work})
        if self._door is not None:
            await self._door.close()
        error = None if work.cancelled() else work.exception()
        self._gone.set_result(End(self._fault if error is None else f"{type(error).__name__}: {error}"))
