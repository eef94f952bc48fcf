"""Control workers in processes of their own, a fleet that wants something, and an eye on the log."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeVar

import psutil

from agents.bus import Bus
from schemas import topics
from schemas.base import Frozen
from schemas.events import (
    AvailabilityChanged,
    ControlEvent,
    DemandClosed,
    FleetAlive,
    Leading,
    Offer,
    PriceChanged,
)
from schemas.problems import Pool
from schemas.settings import ControlSettings, KafkaSettings, Settings
from streams import log
from streams.core.record import Malformed
from streams.core.state import State
from streams.core.step import step

T = TypeVar("T")

REPO = Path(__file__).resolve().parent.parent
HANG_S = 90.0
"""Guard against hangs, not a promise."""
QUIET_S = 2.0
MODEL, SLO_CLASS = "phi-4-14b", "interactive"
POOL = Pool(cloud="gcp", region="us-central1", market="on-demand")
RUN = (
    "import logging, sys; from pathlib import Path;"
    "from schemas.settings import load_settings; from streams.control import run;"
    "logging.basicConfig(level='INFO', format='%(asctime)s %(levelname)s %(name)s %(message)s');"
    "run(load_settings(Path(sys.argv[1])))"
)


def make_settings(kafka: str, prefix: str, folder: Path, snapshot_every: int = 1000) -> Settings:
    """A fleet of one model whose every closed window may move the plan."""
    return Settings(
        topic_prefix=prefix,
        state_dir=folder,
        kafka=KafkaSettings(bootstrap_servers=kafka),
        control=ControlSettings(
            serve={MODEL: [SLO_CLASS]},
            configurations=["1xL40S", "1xA100"],
            headroom="off",
            allocation="off",  # as the demo, and for its reason
            policy={
                "rate_windows": 1,
                "headroom": 0.0,
                "scale_down_after_ms": 1000,
                "solve_interval_ms": 0,
                "urgent_interval_ms": 0,
                "minimum_saving": 0.0,
            },
            snapshot_every=snapshot_every,
        ),
    )


class Worker:
    """One control worker, to be killed, ended, stopped and continued."""

    def __init__(self, settings: Settings, folder: Path, name: str) -> None:
        self._config = folder / "settings.yaml"
        self._config.write_text(settings.model_dump_json())  # JSON is YAML too
        self.log_path = folder / f"{name}.log"
        self._log: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._log = self.log_path.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(self._config)],
            stdout=self._log,
            stderr=self._log,
            cwd=REPO,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)

    def first_children(self) -> list[psutil.Process]:
        """Blocks until there are any."""
        while not (found := self.children()):
            time.sleep(0.05)
        return found

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        assert self._process is not None
        assert self._log is not None
        code = self._process.wait(HANG_S)
        self._log.close()
        self._process = None
        return code

    def end(self) -> int:
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        """Whatever happened, leave nothing behind."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self.wait()

    def has_led_with(self, token: str) -> bool:
        return token in self.log_path.read_text()


class Eye:
    """Reads the control log as it grows, and folds it as any candidate would."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._topic = bus.name(topics.CONTROL)
        self.state = State()
        self.events: list[tuple[int, ControlEvent | Malformed]] = []

    async def look(self) -> None:
        async for entry in log.read(self._bus.kafka, self._topic, self.state.offset + 1):
            record = entry.record()
            step(self.state, record)
            self.events.append((record.offset, record.event))

    def of(self, kind: type[T]) -> list[T]:
        return [event for _, event in self.events if isinstance(event, kind)]

    async def until(self, seen: Callable[[], bool], what: str) -> None:
        """Look until `seen` holds."""
        try:
            async with asyncio.timeout(HANG_S):
                while not seen():
                    await self.look()
                    await asyncio.sleep(0.1)
        except TimeoutError:
            told = [f"{offset} {type(event).__name__}" for offset, event in self.events[-20:]]
            raise AssertionError(f"not seen within {HANG_S:g} s: {what}; the log ends {told}") from None

    async def until_led(self, after: int = -1) -> Leading:
        """The first `Leading` above an offset."""

        def leaders() -> list[Leading]:
            return [e for offset, e in self.events if isinstance(e, Leading) and offset > after]

        await self.until(lambda: bool(leaders()), f"a leader after offset {after}")
        return leaders()[0]

    async def until_rest(self) -> None:
        """Nothing that was asked for is unconfirmed, and nothing comes any more for a while."""
        quiet_from = -1
        while quiet_from != self.state.offset:
            await self.until(lambda: self.at_rest, "rest")
            quiet_from = self.state.offset
            await asyncio.sleep(QUIET_S)
            await self.look()

    @property
    def at_rest(self) -> bool:
        state = self.state
        return not (state.pending_solve or state.pending_publish or state.put_aside)


class Fleet:
    """What the log is told from outside: offers, and demand that goes up and down."""

    def __init__(self, bus: Bus, start_ms: int) -> None:
        self._bus = bus
        self._next_ms = start_ms
        self.told = 0

    async def offer(self, nodes: int = 50) -> None:
        for name, usd in (("1xL40S", 1.0), ("1xA100", 3.0)):
            offer = Offer(pool=POOL, configuration=name, source="test")
            await self.tell(AvailabilityChanged(offer=offer, obtainable=nodes, at_ms=self._next_ms))
            await self.tell(PriceChanged(offer=offer, usd_per_hour=usd, at_ms=self._next_ms))

    async def demand(self, requests_per_s: int) -> None:
        """One closed window of a second, following the one before."""
        window = DemandClosed(
            model=MODEL,
            slo_class=SLO_CLASS,
            start_ms=self._next_ms,
            end_ms=self._next_ms + 1000,
            partition=0,
            sources=1,
            offered=requests_per_s,
            refused=0,
            finished=0,
            input_tokens=0,
            cached_input_tokens=0,
            output_tokens=0,
        )
        self._next_ms += 1000
        await self.tell(window)

    async def alive(self) -> None:
        await self.tell(FleetAlive(partition=0, count=0))

    async def tell(self, event: Frozen) -> None:
        await self._bus.send(topics.CONTROL, event)
        self.told += 1
