"""The engine's processes under a guard: started under a watcher, watched, ended whole.

vLLM's main process has children (an engine core, a worker a device) whose death it may not notice, or not for
minutes. So the guard looks at each by itself. Which ones matter is told by their titles: compilers and
resource trackers come and go.
"""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import psutil

from agents import guard_temp, processes, watcher
from agents.guard_files import TAG
from agents.vllm import Launch
from schemas.events import Refusal

POLL_S = 0.2
LOOK_S = 1.0
"""Between two looks for new processes and segments while the engine starts."""
LOOK_LATER_S = 10.0
"""The same afterwards, when there are hardly any."""
TITLE = "VLLM::"
"""How vLLM calls its processes, but for the main one."""
TITLES = {"VLLM_PROCESS_NAME_PREFIX": "VLLM", "SPT_NOENV": "1"}
"""The second keeps setproctitle from writing titles over the environment, where the tag is."""
END_S = 15.0
"""How long the watcher may take to end all; processes in the kernel (a device that hangs) take long."""
_TAIL = 65_536
_FAULT = re.compile(r"(?<![`'\"\w])(\w+(?:\.\w+)*(?:Error|Exception|Interrupt)\b(?::.*)?)$")
_HOLLOW = re.compile(r"(Engine core|WorkerProc) initialization failed")
"""Of what vLLM's processes say of each other: the cause stands above."""
_MEMORY = re.compile(
    r"out of memory|No available memory for the cache|larger than the available KV cache memory"
    r"|less than desired \w+ memory utilization",
    re.IGNORECASE,
)
MAX_FAULT = 300
"""Characters."""


# --- what a log says -----------------------------------------------------------------------------------
def last_fault(log: str) -> str | None:
    """The last line of a log that names an exception and its cause, from the exception on."""
    found = [match[1][:MAX_FAULT] for line in log.splitlines() if (match := _FAULT.search(line.strip()))]
    causes = [fault for fault in found if not _HOLLOW.search(fault)]
    return (causes or found or [None])[-1]


def refusal_of(fault: str) -> Refusal | None:
    """Whether an engine that did not come up could not for want of memory: no other try would help."""
    return "memory" if _MEMORY.search(fault) else None


# --- its processes -------------------------------------------------------------------------------------
class EngineProcesses:
    """One engine; made by `start`. All that it forks has `tag` in its environment."""

    def __init__(
        self,
        watching: subprocess.Popen[bytes],
        main: psutil.Process | None,
        *,
        tag: str,
        log: Path,
        temp: Path,
    ) -> None:
        self.up = False
        """Set by the owner: from then on there is little new to see."""
        self._watcher = watching
        self._main = main
        self._tag = tag
        self._log = log
        self._temp = temp
        self._vital: dict[psutil.Process, str] = {}
        self._segments: set[str] = set()

    @classmethod
    async def start(cls, launch: Launch, tag: str, log: Path) -> Self:
        """Start it, its output appended to `log`.

        Raises:
            OSError: it cannot be started.
        """
        temp = guard_temp.make(tag)
        try:
            watching = await asyncio.to_thread(_spawn, launch, tag, log, temp)
        except OSError:
            guard_temp.remove(temp)
            raise
        assert watching.stdout is not None  # noqa: S101  a pipe
        told = await asyncio.to_thread(watching.stdout.readline)
        main = None
        with contextlib.suppress(ValueError, psutil.NoSuchProcess):  # it is gone already: `lost` tells
            main = psutil.Process(int(told))
        return cls(watching, main, tag=tag, log=log, temp=temp)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes whose death is the engine's, the main one first."""
        main = [] if self._main is None else [self._main]
        return tuple(process.pid for process in (*main, *self._vital))

    @property
    def segments(self) -> tuple[str, ...]:
        """Files of shared memory that it was seen to use."""
        return tuple(sorted(self._segments))

    async def lost(self) -> str:
        """Wait until any process that matters is gone: which, and what the log says last."""
        looked_s = 0.0
        while True:
            if self._watcher.poll() is not None or (self._main is not None and not _runs(self._main)):
                await self.exited()  # the watcher first ends what the main process left
                return await asyncio.to_thread(self._how_it_ended)
            for process, title in self._vital.items():
                if not _runs(process):
                    return f"{title} (process {process.pid}) died"
            if time.monotonic() - looked_s > (LOOK_LATER_S if self.up else LOOK_S):
                await asyncio.to_thread(self._look)
                looked_s = time.monotonic()
            await asyncio.sleep(POLL_S)

    def terminate(self) -> None:
        """SIGTERM to the main process alone: its children must live while it drains."""
        if self._main is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._main.send_signal(signal.SIGTERM)

    async def exited(self) -> None:
        """Wait until the main process has ended, and what it left of its children is ended, too."""
        while self._watcher.poll() is None:  # noqa: ASYNC110  a process to poll, not an event
            await asyncio.sleep(POLL_S)

    async def end(self) -> bool:
        """SIGKILL what is left, and remove what killed processes leave behind.

        Returns:
            Whether no process is left: one inside the kernel can outlast all patience.
        """
        if self._watcher.poll() is None:
            await asyncio.to_thread(self._look)  # the last chance to see segments
        for pipe in (self._watcher.stdin, self._watcher.stdout):
            assert pipe is not None  # noqa: S101
            pipe.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.exited(), END_S)
        # What the watcher could not: it was killed itself, or its patience was too short.
        gone = await asyncio.to_thread(processes.end, TAG, {self._tag}.__contains__)
        processes.remove(self._segments)
        guard_temp.remove(self._temp)
        return gone

    def _look(self) -> None:
        """See what processes and shared memory there are. In a thread: it replaces, and changes nothing."""
        family = watcher.descendants(self._watcher.pid)
        self._segments = self._segments | watcher.segments(family)
        titled = {}
        for pid in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if (title := " ".join(process.cmdline()[:1])).startswith(TITLE):
                    titled[process] = title.split()[0]
        self._vital = {**self._vital, **titled}

    def _how_it_ended(self) -> str:
        status = self._watcher.returncode
        if status < 0:
            return f"vLLM's watcher was killed by {signal.Signals(-status).name}"
        if status - 128 in set(signal.Signals):
            return f"vLLM was killed by {signal.Signals(status - 128).name}"
        with self._log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL))
            fault = last_fault(log.read().decode(errors="replace"))
        return f"vLLM ended with status {status}" + (f": {fault}" if fault else "")


def _spawn(launch: Launch, tag: str, log: Path, temp: Path) -> subprocess.Popen[bytes]:
    watch = [sys.executable, "-I", "-S", watcher.__file__, "--parent", str(os.getpid()), "--tree"]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*watch, "--litter", str(temp), "--", *launch.argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env={**os.environ, **TITLES, **launch.environment, **guard_temp.environment(temp), TAG: tag},
            start_new_session=True,  # whoever kills our session leaves the watcher to clean up
        )


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
