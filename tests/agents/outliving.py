"""Engines that outlive their agent, as a machine has them: a test ends the agent at any point, they go on."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from agents.engine import End, EngineSpec, Progress, Up
from agents.ledger import RankKey


@dataclass
class Process:
    """One rank's engine, whoever looks after it."""

    devices: tuple[int, ...]
    told: list[str] = field(default_factory=list)
    up: asyncio.Future[Up] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    end: asyncio.Future[End] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def live(self) -> bool:
        return not self.end.done()

    def rise(self) -> None:
        if self.live and not self.up.done():
            self.up.set_result(Up("127.0.0.1:1", verified=True, start_s=1.0))

    def finish(self, reason: str | None = None) -> None:
        if self.live:
            self.end.set_result(End(reason))


class AgentKilled(BaseException):
    """What a SIGKILL looks like from inside: the agent is dead from here on."""


@dataclass
class Machine:
    """What goes on when an agent dies. `crash_at` are the effects, counted from 0, at which one is killed."""

    processes: dict[RankKey, Process] = field(default_factory=dict)
    starts: Counter[RankKey] = field(default_factory=Counter)
    effects: int = 0
    crash_at: frozenset[int] = frozenset()
    crashed: bool = False

    def effect(self) -> None:
        """Called before and after everything that an agent does to the world or its disk."""
        self.effects += 1
        if self.crashed or self.effects - 1 in self.crash_at:
            self.crashed = True
            raise AgentKilled

    @property
    def live(self) -> dict[RankKey, Process]:
        return {key: process for key, process in self.processes.items() if process.live}

    def rise(self) -> None:
        """Whatever starts is up."""
        for process in self.live.values():
            process.rise()

    def finish_told(self) -> None:
        """Whatever was told to end has ended."""
        for process in self.live.values():
            if process.told:
                process.finish()

    def engine(self) -> "Outliving":
        return Outliving(self)

    async def sweep(self, keep: frozenset[RankKey]) -> None:
        for key, process in self.live.items():
            if key not in keep:
                process.finish("swept")


class Outliving:
    """The agent's side of a process."""

    outlives_agent = True
    in_flight = 0

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._process: Process | None = None

    @property
    def progress(self) -> Progress | None:
        up = self._process is not None and self._process.up.done()
        return None if up else Progress("loading", "loading")

    @property
    def process(self) -> Process:
        assert self._process is not None, "used before its start"
        return self._process

    async def start(self, spec: EngineSpec) -> None:
        self._machine.effect()
        taken = [device for other in self._machine.live.values() for device in other.devices]
        assert not set(taken) & set(spec.rank.device_ids), "two engines on a device"
        self._machine.starts[spec.key] += 1
        self._process = self._machine.processes[spec.key] = Process(spec.rank.device_ids)
        self._machine.effect()

    async def may_pull(self) -> None:
        self.process.told.append("may_pull")

    async def adopt(self, key: RankKey) -> bool:
        self._process = self._machine.processes.get(key)
        return self._process is not None

    async def ready(self) -> Up:
        return await asyncio.shield(self.process.up)

    async def drain(self) -> None:
        self._machine.effect()
        self.process.told.append("drain")
        self._machine.effect()

    async def stop(self) -> None:
        self._machine.effect()
        self.process.told.append("stop")
        self.process.finish()
        self._machine.effect()

    async def gone(self) -> End:
        return await asyncio.shield(self.process.end)
