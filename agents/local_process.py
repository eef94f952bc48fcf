"""Processes that stand for machines: started in a session of their own, found again, ended whole.

Every process of such a machine inherits a tag in its environment, whatever sessions and parents it has
later on; so all of it can be found and ended, even by a process that did not start it.
"""

import contextlib
import os
import signal
from collections.abc import Collection, Sequence
from pathlib import Path

import psutil

from schemas.base import Frozen

TAG = "CORAL_LOCAL_NODE"
"""The environment variable that names a process's machine."""

_BOOT = 'sleep "$1"; shift; exec "$@"'
"""The start-up delay is spent in the machine's own process, so that it goes on without its starter."""

_ROUNDS = 20
_ROUND_S = 0.25
"""Ending a machine looks for its processes in so many rounds, each waiting at most so long."""


class Started(Frozen):
    """A process by its id and start; ids are used again, the pair is not."""

    pid: int
    since_boot_s: float
    """Start in seconds after the system's boot, which no change of the clock moves."""


def start(command: Sequence[str], *, tag: str, delay_s: float, log: Path) -> Started:
    """Run `command` after `delay_s`, in a new session, its output appended to `log`.

    Raises:
        OSError: it could not be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    pid = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", _BOOT, "boot", f"{delay_s:.3f}", *command],
        {**os.environ, TAG: tag},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        # Python ignores SIGPIPE, a shell's background job SIGINT; a machine starts with neither.
        setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
    )
    return Started(pid=pid, since_boot_s=_since_boot_s(psutil.Process(pid)))


def lives(started: Started, ending: Sequence[str]) -> bool:
    """Whether this very process runs: same id, same start, and its command line ends so."""
    with contextlib.suppress(ChildProcessError):  # adopted: somebody else's child, reaped by init
        os.waitpid(started.pid, os.WNOHANG)
    try:
        process = psutil.Process(started.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        # Both sides are computed from a boot time in whole seconds, which may be rounded either way.
        same = abs(_since_boot_s(process) - started.since_boot_s) <= 2
        command = process.cmdline()  # empty in the very moment of an exec
        return same and (not command or command[-len(ending) :] == list(ending))
    except psutil.NoSuchProcess:
        return False


def find(tag: str) -> Started | None:
    """The first process of a machine, started by somebody who could not note it down."""
    for process in _members({tag}):
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):  # ended meanwhile
            if os.getsid(process.pid) == process.pid:
                return Started(pid=process.pid, since_boot_s=_since_boot_s(process))
    return None


def end(tags: Collection[str]) -> bool:
    """SIGKILL every process of these machines, again until none is left.

    Returns:
        Whether none is left: a process inside the kernel can outlast the patience of a few seconds.
    """
    for _ in range(_ROUNDS):
        members = _members(tags)
        if not members:
            return True
        for process in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(members, timeout=_ROUND_S)
    return False


def _members(tags: Collection[str]) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _tag_of(process) in tags]


def _tag_of(process: psutil.Process) -> str | None:
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else process.environ().get(TAG)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None  # ended meanwhile, or somebody else's


def _since_boot_s(process: psutil.Process) -> float:
    return process.create_time() - psutil.boot_time()
