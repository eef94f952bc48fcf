"""Processes that outlive whoever started them: detached, known again by id and start, found and ended by tag.

Every such process has a tag in its environment, and so has all that it ever forks, whatever sessions and
parents that has later on. So all of it can be found and ended, even by a process that did not start it.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from agents import watcher
from schemas.base import Frozen

_ROUNDS = 20
_ROUND_S = 0.25
"""Ending looks for processes in so many rounds, each waiting at most so long."""


class Started(Frozen):
    """A process by its id and start; ids are used again, the pair is not."""

    pid: int
    since_boot_s: float
    """Start in seconds after the system's boot, which no change of the clock moves."""


def detach(command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> Started:
    """Run `command` in a new session with default signals, its output appended to `log`.

    Args:
        environment: its whole environment, the tag included.

    Raises:
        OSError: it could not be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    pid = os.posix_spawn(
        command[0],
        tuple(command),
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        # Python ignores SIGPIPE, a shell's background job SIGINT; what is detached starts with neither.
        setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
        setsigmask=[],
    )
    return started(psutil.Process(pid))


def started(process: psutil.Process) -> Started:
    """The name under which a process can be known again.

    Raises:
        psutil.NoSuchProcess: it has ended.
    """
    return Started(pid=process.pid, since_boot_s=process.create_time() - psutil.boot_time())


def lives(known: Started) -> bool:
    """Whether this very process runs: same id, same start, no zombie."""
    with contextlib.suppress(ChildProcessError):  # adopted: somebody else's child, reaped by init
        os.waitpid(known.pid, os.WNOHANG)
    try:
        process = psutil.Process(known.pid)
        # Both sides are computed from a boot time in whole seconds, which may be rounded either way.
        same = abs(started(process).since_boot_s - known.since_boot_s) <= 2
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def tagged(variable: str, wanted: Callable[[str], bool]) -> list[psutil.Process]:
    """The living processes whose environment variable `variable` is wanted, this one left out."""
    return [process for process in psutil.process_iter() if _has(process, variable, wanted)]


def end(variable: str, wanted: Callable[[str], bool]) -> bool:
    """SIGKILL those, again until none is left; resource trackers last, which clean up after the others.

    Returns:
        Whether none is left: a process inside the kernel can outlast the patience of a few seconds.
    """
    for _ in range(_ROUNDS):
        members = tagged(variable, wanted)
        if not members:
            return True
        others = [process for process in members if not watcher.is_tracker(process.pid)]
        if not others:  # now the trackers hear it, and have a moment
            _, others = psutil.wait_procs(members, timeout=watcher.TRACKER_S)
        for process in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(others, timeout=_ROUND_S)
    return False


def remove(segments: Iterable[str]) -> None:
    """Remove files of shared memory whose users were killed (`agents.watcher.segments`)."""
    for path in segments:
        Path(path).unlink(missing_ok=True)


def _has(process: psutil.Process, variable: str, wanted: Callable[[str], bool]) -> bool:
    try:
        if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
            return False
        tag = process.environ().get(variable)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False  # ended meanwhile, or somebody else's
    return tag is not None and wanted(tag)
