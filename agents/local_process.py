"""Processes that stand for machines: started in a session of their own, found again, ended whole.

How they are told from all others, and ended whatever became of them: `agents.processes`.
"""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import psutil

from agents import guard_temp, processes, watcher
from agents.processes import Started

TAG = "CORAL_LOCAL_NODE"
"""The environment variable that names a process's machine."""

_BOOT = 'sleep "$1"; shift; exec "$@"'
"""The start-up delay is spent in the machine's own process, so that it goes on without its starter."""


def start(command: Sequence[str], *, tag: str, delay_s: float, log: Path) -> Started:
    """Run `command` after `delay_s`, in a new session, its output appended to `log`.

    Raises:
        OSError: it could not be started.
    """
    boot = ("/bin/sh", "-c", _BOOT, "boot", f"{delay_s:.3f}", *command)
    return processes.detach(boot, environment={**os.environ, TAG: tag}, log=log)


def lives(known: Started, ending: Sequence[str]) -> bool:
    """Whether this very process runs: same id, same start, and its command line ends so."""
    if not processes.lives(known):
        return False
    try:
        command = psutil.Process(known.pid).cmdline()
    except psutil.NoSuchProcess:
        return False
    return not command or command[-len(ending) :] == list(ending)  # empty in the very moment of an exec


def find(tag: str) -> Started | None:
    """The first process of a machine, started by somebody who could not note it down."""
    for process in processes.tagged(TAG, {tag}.__contains__):
        try:
            if os.getsid(process.pid) == process.pid:
                return processes.started(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue  # ended meanwhile
    return None


def end(tags: Collection[str]) -> bool:
    """SIGKILL every process of these machines, again until none is left, and remove what that leaves behind.

    Returns:
        Whether none is left: a process inside the kernel can outlast the patience of a few seconds.
    """
    living = processes.tagged(TAG, tags.__contains__)
    left, temps = watcher.segments(process.pid for process in living), guard_temp.used_by(living)
    gone = processes.end(TAG, tags.__contains__)
    processes.remove(left)
    for temp in temps:
        guard_temp.remove(temp)
    return gone
