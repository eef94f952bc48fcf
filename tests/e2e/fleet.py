"""A fleet of real parts, one process each, and the story that its control log tells."""

import asyncio
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from agents.admin import create_topics
from schemas import topics
from schemas.events import DemandClosed
from schemas.plans import Plan
from schemas.problems import Pool, Service
from schemas.settings import Settings, load_settings
from streams import log
from streams.core.plan import says_more
from streams.core.record import LogRecord
from streams.story import Story
from tests.e2e.rig import HANG_S, STATE_DIR, Traffic, coral, end_all, until

MODEL = "gpt-oss-20b"
SERVICE = Service(model=MODEL, slo_class="interactive")
L4 = "1xL4"
HERE = Pool(cloud="aws", region="us-east-1", market="on-demand")
SPOT = Pool(cloud="gcp", region="us-central1", market="spot")
DEARER = Pool(cloud="gcp", region="us-central1", market="on-demand")
LEVELS = "bamboo"
"""Whose word on `coral.availability` sets the local cloud's stock."""

SETTINGS = {
    "fleet": "e2e",
    "fold": {"window_ms": 2000, "lateness_ms": 500},
    "control": {
        "serve": {MODEL: ["interactive"]},
        "configurations": [L4],
        "headroom": "off",
        "allocation": "off",  # as the demo, and for its reason
        # Every change of demand moves the plan soon. What decides about lost nodes is as shipped.
        "policy": {
            "rate_windows": 1,
            "headroom": 0.0,
            "scale_down_after_ms": 6000,
            "solve_interval_ms": 1000,
        },
    },
}
ENGINES_START = ("--time-scale", "0.01")


class Fleet:
    """Parts by name, started and killed at will; `look` follows the log to its end as of now."""

    def __init__(self, kafka: str, prefix: str, folder: Path) -> None:
        self.folder, self.state_dir = folder, folder / "state"
        config = folder / "settings.yaml"
        given = {
            "topic_prefix": prefix,
            "state_dir": str(self.state_dir),
            "kafka": {"bootstrap_servers": kafka},
        }
        config.write_text(yaml.safe_dump({**SETTINGS, **given}))
        self.settings: Settings = load_settings(config)
        # Nodes of the local cloud inherit it: they have no other way to know.
        self.env = {"CORAL_CONFIG": str(config), STATE_DIR: str(self.state_dir)}
        self.story = Story()
        self.records: list[LogRecord] = []
        self.alerts: list[tuple[int, str]] = []
        """(log time in ms, name) of each alert, whenever it begins to stand."""
        self.lost: list[tuple[int, str]] = []
        """(log time in ms, node) whenever a node is given up."""
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, tuple[str, ...]] = {}
        asyncio.run(create_topics(self.settings))

    # --- parts -------------------------------------------------------------------------------------
    def start(self, name: str, *command: str) -> None:
        """Start a part; without a command, as the last time."""
        command = self._commands[name] = command or self._commands[name]
        self._running[name] = coral(*command, env=self.env, out=self.folder / f"{name}.log")

    def start_control_plane(self, *provision: str) -> None:
        prices = self.folder / "feeds.yaml"
        prices.write_text("prices: {every_s: 5}\n")
        self.start("control", "control")
        self.start("fold", "fold")
        self.start("feed", "feed", str(prices))
        self.start("provision", "provision", *provision, *ENGINES_START)

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(HANG_S)

    def close(self) -> None:
        for name in list(self._running):
            self.kill(name)
        end_all(self.state_dir)

    # --- the log -----------------------------------------------------------------------------------
    def look(self) -> None:
        for name, process in self._running.items():
            assert process.poll() is None, f"{name} ended by itself:\n{self._log_end(name)}"
        asyncio.run(self._look())

    async def _look(self) -> None:
        topic, state = self.settings.topic(topics.CONTROL), self.story.state
        async for entry in log.read(self.settings.kafka, topic, state.offset + 1):
            record = entry.record()
            nodes, alerts = set(state.nodes), set(state.alerts)
            self.story.follow(record)
            self.records.append(record)
            self.alerts += [(record.timestamp_ms, name) for name in set(state.alerts) - alerts]
            self.lost += [(record.timestamp_ms, name) for name in nodes - set(state.nodes)]

    def until(self, seen: Callable[[], object], what: str) -> None:
        """Look on until `seen` holds."""

        def looked() -> object:
            self.look()
            return seen()

        try:
            until(looked, what)
        except AssertionError as error:
            ends = "\n".join(f"--- {name}\n{self._log_end(name)}" for name in self._running)
            raise AssertionError(f"{error}\nplan: {self.story.plan}\nlost: {self.lost}\n{ends}") from None

    def _log_end(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]

    # --- what the plan says ------------------------------------------------------------------------
    @property
    def plan(self) -> Plan:
        assert self.story.plan is not None, "no plan was published yet"
        return self.story.plan

    def since(self, order: tuple[int, int, int]) -> bool:
        return self.story.plan is not None and self.story.plan.order > order

    def nodes(self) -> set[str]:
        """The nodes that the plan wants; `?` for a claim that waits for one."""
        return {claim.node or "?" for claim in self.plan.claims}

    def is_settled(self, rate: float) -> bool:
        """Whether the plan is for this demand at least, names what it cannot meet, and is carried out."""
        plan, state = self.story.plan, self.story.state
        if plan is None or state.policy is None or state.pending_publish is not None:
            return False
        if says_more(state, state.policy):
            return False  # a newer plan is due: steps that come together go out together
        # An answer that confirms the target leaves it as it is, so the target's own demand may be older.
        if state.planned_for.get(SERVICE.key, 0.0) < rate:
            return False
        return all(i.role == "serving" for i in plan.instances) and served(plan) + unmet(plan) >= rate - 1e-6

    def has_closed(self, windows: int) -> bool:
        return len(self.events(DemandClosed)) >= windows

    def events(self, kind: type[Any]) -> list[Any]:
        """The log's events of a kind, in order."""
        return [record.event for record in self.records if isinstance(record.event, kind)]


def served(plan: Plan) -> float:
    """Requests/s that the serving instances can take."""
    return sum(i.rating.throughput for i in plan.instances if i.role == "serving")


def unmet(plan: Plan) -> float:
    """Requests/s that the plan says it cannot meet."""
    return sum(u.rate for u in plan.target.unmet)


def write_yaml(path: Path, content: object) -> str:
    path.write_text(yaml.safe_dump(content))
    return str(path)


def stock(pool: Pool, nodes: int) -> dict[str, object]:
    return {"pool": pool.model_dump(), "configuration": L4, "nodes": nodes}


@contextmanager
def running(kafka: str, prefix: str, folder: Path, rate: int) -> Iterator[tuple[Fleet, Traffic]]:
    """An empty fleet with traffic; whatever runs of it is ended."""
    fleet = Fleet(kafka, prefix, folder)
    try:
        with Traffic(fleet.settings, MODEL, rate) as traffic:
            yield fleet, traffic
    finally:
        fleet.close()
