"""The Engine over real processes: asks a guard for everything, and outlives the agent with it.

The guard (`agents.guard`) does the work; here are the files it is spoken to by, its start and adoption, and
what is left to do when it is dead.
"""

import asyncio
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from agents import guard_temp, local_process, processes, watcher
from agents.engine import End, EngineError, EngineSpec, Progress, Up
from agents.guard_engine import last_fault
from agents.guard_files import TAG, Folder, GuardSpec, Order, Pace, Status, Weights
from agents.guard_start import FREE_S, check_devices, device_holders
from agents.ledger import RankKey
from agents.processes import Started
from agents.vllm import VllmNode
from schemas.base import Frozen
from schemas.settings import PREFIX

log = logging.getLogger(__name__)

POLL_S = 0.2
SILENT_S = 10.0
"""A guard that lives and does not touch its lock for so long is stopped or stuck: it is ended."""
BIRTH_S = 60.0
"""The same from its start to its first touch."""
STOP_S = 30.0
"""How long a guard may take to end its engine at once; then it is ended with it."""
KEPT_FOLDERS = 20
"""Folders of ended ranks, whose logs somebody may want to read."""


class Guards(Frozen):
    """What all guards of a node have in common."""

    folder: Path
    """Of their folders."""
    node: VllmNode
    weights: Weights
    keys: Path
    """The file of the node's key pair (`agents.guard_keys`)."""
    pace: Pace = Pace()


class GuardedEngine:
    """One rank under a guard of its own."""

    outlives_agent = True

    def __init__(self, guards: Guards) -> None:
        self._guards = guards
        self._folder: Folder | None = None
        self._guard: Started | None = None
        self._order = Order()
        self._status: Status | None = None
        self._last_word: End | None = None
        self._stop_by_s: float | None = None
        self._ready: asyncio.Future[Up] = asyncio.get_running_loop().create_future()
        self._gone: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._following: asyncio.Task[None] | None = None

    # --- the protocol --------------------------------------------------------------------------------
    @property
    def progress(self) -> Progress | None:
        status = self._status
        if status is None:
            return None if self._folder is None else Progress("loading", "starts its guard")
        return None if status.phase is None else Progress(status.phase, status.text)

    @property
    def in_flight(self) -> int:
        return 0 if self._status is None else self._status.in_flight

    async def start(self, spec: EngineSpec) -> None:
        guards, folder = self._guards, Folder.of(self._guards.folder, spec.key)
        if folder.locked():
            raise EngineError(f"{folder.path}: a guard of before lives here")
        _prune(_ended(guards.folder))
        folder.write_spec(
            GuardSpec(
                engine=spec, node=guards.node, weights=guards.weights, keys=guards.keys, pace=guards.pace
            )
        )
        try:
            self._guard = processes.detach(
                (sys.executable, "-m", "agents.guard", folder.tag),
                environment={**_environment(), TAG: folder.tag},
                log=folder.guard_log,
            )
        except OSError as error:
            raise EngineError(f"its guard cannot be started: {error}") from error
        self._follow(folder)

    async def adopt(self, key: RankKey) -> bool:
        folder = Folder.of(self._guards.folder, key)
        spec = folder.spec_digest()
        if spec is None:
            return False
        status = folder.read_status()
        if status is None or status.spec != spec:  # it has just started, or belongs to something else
            await asyncio.to_thread(end_ranks, {folder.tag}.__contains__, ())
            return False
        self._guard, self._status = status.guard, status
        with suppress(ValueError):
            self._order = folder.read_order()
        self._follow(folder)
        return True

    async def may_pull(self) -> None:
        self._wish(may_pull=True)

    async def ready(self) -> Up:
        return await asyncio.shield(self._ready)

    async def drain(self) -> None:
        self._wish(drain=True)

    async def stop(self) -> None:
        self._wish(stop=True)
        if self._stop_by_s is None:
            self._stop_by_s = time.monotonic() + STOP_S

    async def gone(self) -> End:
        return await asyncio.shield(self._gone)

    # --- following the guard -------------------------------------------------------------------------
    def _follow(self, folder: Folder) -> None:
        self._folder = folder
        self._following = asyncio.create_task(self._until_gone(folder))
        self._following.add_done_callback(self._followed)

    def _followed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._gone.set_exception(error)  # a mistake of ours must not read as an engine that lives

    def _wish(self, **wish: bool) -> None:
        order = self._order.model_copy(update=wish)
        if self._folder is not None and order != self._order:
            self._folder.write_order(order)
            self._order = order

    async def _until_gone(self, folder: Folder) -> None:
        pulse, end = _Pulse(time.monotonic()), None
        while end is None:
            try:
                end = self._look(folder, pulse)
            except OSError as error:  # no word about the engine; the disk may come back
                log.warning("%s cannot be read: %s", folder.path, error)
            await asyncio.sleep(POLL_S)
        if end is not self._last_word:
            await self._clear(folder)
        self._gone.set_result(end)

    def _look(self, folder: Folder, pulse: "_Pulse") -> End | None:
        """How it ended, if it has. Unless that is the guard's last word, something may be left of it."""
        now_s = time.monotonic()
        dead = not (folder.locked() or (self._guard is not None and processes.lives(self._guard)))
        self._reflect(folder.read_status())  # after that question: the last word comes before the end
        silent = pulse.silent(folder.touched_ns(), now_s)
        if self._last_word is not None:
            return self._last_word if dead or silent else None
        if dead:
            return End(f"its guard died{_fault(folder)}")
        if silent:
            return End(f"its guard was silent for {SILENT_S:g} s")
        if self._stop_by_s is not None and now_s > self._stop_by_s:
            return End(f"its guard did not end it within {STOP_S:g} s")
        return None

    def _reflect(self, status: Status | None) -> None:
        if status is None:
            return
        self._status = status
        if status.state == "ended" and self._last_word is None:
            self._last_word = End(status.reason, status.refusal)
        if status.state in ("ready", "draining") and not self._ready.done():
            self._ready.set_result(Up(status.endpoint, status.verified, status.start_s, status.pull_s))

    async def _clear(self, folder: Folder) -> None:
        """End what a guard left behind, or could not end."""
        segments = () if self._status is None else self._status.segments
        while not await asyncio.to_thread(end_ranks, {folder.tag}.__contains__, segments):
            log.warning("%s: processes outlast SIGKILL", folder.path)
        try:
            await check_devices(device_holders(self._guards.node), folder.read_spec().engine, FREE_S)
        except (EngineError, OSError, ValidationError) as error:
            log.warning("%s: after the end: %s", folder.path, error)


def _environment() -> dict[str, str]:
    """Ours, but for settings: an engine has no use for the password of Kafka."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(PREFIX) or name == local_process.TAG
    }


class _Pulse:
    """Whether a guard still moves: it touches a file. Slow machines have time to start one."""

    def __init__(self, now_s: float) -> None:
        self._touched_ns = 0
        self._by_s = now_s + BIRTH_S

    def silent(self, touched_ns: int, now_s: float) -> bool:
        if touched_ns != self._touched_ns:
            self._touched_ns, self._by_s = touched_ns, now_s + SILENT_S
        return now_s > self._by_s


def _fault(folder: Folder) -> str:
    with suppress(FileNotFoundError):
        if fault := last_fault(folder.guard_log.read_text(errors="replace")):
            return f": {fault}"
    return ""


# --- what nobody follows -------------------------------------------------------------------------------
async def sweep(folder: Path, keep: Collection[RankKey]) -> None:
    """End every guard and engine below `folder` but those of the ranks to keep; returns once all is gone."""
    await asyncio.to_thread(_sweep, folder, keep)


def _sweep(folder: Path, keep: Collection[RankKey]) -> None:
    root, kept = folder.resolve(), {Folder.of(folder, key).tag for key in keep}

    def stray(tag: str) -> bool:
        return tag.startswith(f"{root}/") and tag not in kept

    folders = [Folder(path) for path in root.iterdir()] if root.is_dir() else []
    statuses = [folder.read_status() for folder in folders if stray(folder.tag)]
    segments = {segment for status in statuses if status is not None for segment in status.segments}
    while not end_ranks(stray, segments):
        log.warning("%s: processes of no rank outlast SIGKILL", root)
    _prune([folder for folder in folders if stray(folder.tag)])


def end_ranks(wanted: Callable[[str], bool], segments: Iterable[str]) -> bool:
    """SIGKILL all processes of these ranks, guards included, and remove what that leaves behind.

    Args:
        wanted: asked with a rank's tag.
        segments: known to be theirs, beside those that still are in use or that their guards told of.

    Returns:
        Whether no process is left.
    """
    living = [process.pid for process in processes.tagged(TAG, wanted)]
    temps = guard_temp.left_by(wanted)
    told = (Folder(Path(tag)).read_status() for tag in temps.values())
    seen = {segment for status in told if status is not None for segment in status.segments}
    left = {*segments, *seen, *watcher.segments(living)}
    gone = processes.end(TAG, wanted)
    processes.remove(left)
    for temp in temps:
        guard_temp.remove(temp)
    return gone


def _ended(root: Path) -> list[Folder]:
    folders = [Folder(path) for path in root.iterdir()] if root.is_dir() else []
    told = [(folder, folder.read_status()) for folder in folders]
    return [folder for folder, status in told if status is not None and status.state == "ended"]


def _prune(ended: Iterable[Folder]) -> None:
    """Forget the oldest of these folders."""
    by_age = sorted(ended, key=lambda folder: folder.path.stat().st_mtime, reverse=True)
    for folder in by_age[KEPT_FOLDERS:]:
        shutil.rmtree(folder.path, ignore_errors=True)
