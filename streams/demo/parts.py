"""The processes of the demo: each one a `coral` command, watched, with a log of its own."""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from agents import watcher
from agents.provision_static import Inventory
from agents.reference import file_of, precision
from schemas.yamlfile import load_yaml
from streams.demo.script import Script

TIME_SCALE = 0.03
"""Simulated engines start in this share of the time that the performance model gives them."""
GRACE_S = 10.0


class PartFailedError(RuntimeError):
    """A process of the demo ended by itself; the text names its log."""


@dataclass
class Parts:
    """Starts `coral` commands and ends them; they end with this process even if it is killed.

    Args:
        environment: settings as CORAL_... variables, on top of this process's own.
        logs: folder of one log a process.
    """

    environment: dict[str, str]
    logs: Path
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *arguments: str) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        watched = [sys.executable, "-I", "-S", watcher.__file__]
        terms = ["--parent", str(os.getpid()), "--grace", str(GRACE_S), "--"]
        command = [sys.executable, "-m", "streams.cli", *arguments]
        with (self.logs / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*watched, *terms, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C is ours to handle: parts end in order
            )
        return self

    async def run(self, name: str, *arguments: str) -> None:
        """Start a command and wait for its end. Raises PartFailedError if that is no good one."""
        self.start(name, *arguments)
        try:
            if await asyncio.to_thread(self._running[name].wait) != 0:
                self.check()
        finally:
            self.end(name)

    def check(self) -> None:
        """Raises PartFailedError if a process ended by itself."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise PartFailedError(
                    f"{name} ended with code {process.returncode}: see {self.logs / name}.log"
                )

    def end(self, *names: str) -> None:
        """End these processes, or all; together, and wait until they are gone."""
        ending = {name: self._running.pop(name) for name in names or list(self._running)}
        for process in ending.values():
            if process.stdin is not None:
                process.stdin.close()
        for process in ending.values():
            process.wait()


def lacks_reference(model: Path) -> bool:
    """Whether nobody has asked yet what this model answers when all is well."""
    return not file_of(model, precision({})).exists()


async def make_reference(parts: Parts, model: Path) -> None:
    """Ask an unpartitioned vLLM, and keep it beside the model: no instance is admitted without."""
    await parts.run("reference", "reference", "make", str(model))


def start_workers(parts: Parts, script: Script) -> None:
    """Fold, control, the provisioner, the static nodes' agents, and a router where there are clients."""
    parts.start("control", "control").start("fold", "fold")
    scale = ("--time-scale", str(TIME_SCALE))
    local = ("--local", str(script.local), *scale) if script.local else ()
    parts.start("provision", "provision", "--static", str(script.static), *local)
    for node in load_yaml(Inventory, script.static).nodes:
        pool = node.pool
        place = ("--cloud", pool.cloud, "--region", pool.region, "--zone", pool.zone, "--market", pool.market)
        configuration = ("--configuration", node.configuration)
        parts.start(node.name, "node", "--name", node.name, *place, *configuration, *scale)
    if script.load:
        parts.start("router", "router")


def start_feeds(parts: Parts, script: Script) -> None:
    parts.start("feeds", "feed", str(script.feeds))
