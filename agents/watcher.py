"""Runs one command for exactly as long as the process that asked for it lives.

What we start for ourselves, a broker, a part of the demo or an engine, must be gone even when we are killed
with SIGKILL. Linux can signal a child when its parent dies (PR_SET_PDEATHSIG), but counts the *thread* that
forked as the parent, and elsewhere there is no such thing. So this watcher stands between: it ends the
command when its standard input closes (the starter's wish) or its parent is another (the starter is dead; a
pipe alone would be held open by what the starter forked). The watcher has one thread, so the command may in
turn die with the watcher by PR_SET_PDEATHSIG.

With `--tree` (Linux only) it ends all that the command ever forked, in whatever groups and sessions, and also
when the command has ended by itself: as a subreaper the watcher is the parent of all orphans beneath it.
There is no grace then: who wants a gentle end signals the command. Killed processes leave shared memory
behind: what they had mapped it removes, and Python's resource trackers live a little longer to do the rest.

Runs as a script under `python -I -S`: nothing but the standard library, up in some 30 ms.
"""

import argparse
import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

POLL_S = 0.2
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINGER_S = 10.0
"""A killed process inside the kernel (a device that hangs, say) can outlast the patience of so long."""
TRACKER = b"multiprocessing.resource_tracker"
TRACKER_S = 2.0
"""How long a tracker may take; it takes milliseconds."""
SEGMENTS = ("/dev/shm/psm_", "/dev/shm/sem.mp-")  # noqa: S108
"""How Python's multiprocessing names shared memory and semaphores."""


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _die_with_watcher() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _stdin_closed() -> bool:
    readable, _, _ = select.select([0], [], [], POLL_S)
    return bool(readable) and os.read(0, 4096) == b""


def _end(child: subprocess.Popen[bytes], grace_s: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


# --- the whole tree ----------------------------------------------------------------------------------
def descendants(root: int) -> list[int]:
    """Process ids of all that lives below `root`, from `/proc`."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208  a third of the time: this is asked often
        if entry.isdecimal():
            with contextlib.suppress(OSError):  # ended meanwhile
                # "pid (name) state parent ...", and a name may hold spaces and brackets
                stat = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(stat[1]), []).append(int(entry))
    found, row = [], [root]
    while row:
        row = [child for parent in row for child in children.get(parent, ())]
        found += row
    return found


def segments(pids: Iterable[int]) -> set[str]:
    """Files of shared memory that these processes have mapped and nobody has removed yet."""
    mapped = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # ended meanwhile
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                path = line[line.find("/") :]
                if path.startswith(SEGMENTS) and not path.endswith("(deleted)"):
                    mapped.add(path)
    return mapped


def is_tracker(pid: int) -> bool:
    """Whether it is a Python's resource tracker: it cleans up once all whose things it knows are gone."""
    try:
        return TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # ended meanwhile
        return False


def _kill_tree() -> None:
    """SIGKILL what lives below this process until nothing does; what it forks meanwhile ends up there too."""
    litter: set[str] = set()
    patience = spared_until = time.monotonic() + LINGER_S
    while (living := descendants(os.getpid())) and time.monotonic() < patience:
        litter |= segments(living)
        others = [pid for pid in living if not is_tracker(pid)]
        if not others:  # now the trackers hear it, and have a moment
            spared_until = min(spared_until, time.monotonic() + TRACKER_S)
        for pid in others if time.monotonic() < spared_until else living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        time.sleep(0.01)
    for path in litter:
        Path(path).unlink(missing_ok=True)


def watch(parent: int, grace_s: float, litter: str | None, command: list[str], *, tree: bool) -> int:
    """Run `command`, print its process id, and return its exit status as a shell does (128 + signal).

    Args:
        litter: a folder that goes if the parent died; with `tree` always, once nobody is left to use it.
    """
    told_to_stop = False

    def stop(_signal: int, _frame: object) -> None:
        nonlocal told_to_stop
        told_to_stop = True

    signal.signal(signal.SIGTERM, stop)
    if tree:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=tree,
        preexec_fn=_die_with_watcher,  # noqa: PLW1509 - unsafe with threads; this process has one
    )
    with contextlib.suppress(BrokenPipeError):  # the starter reads it, unless it is dead already
        os.write(1, f"{child.pid}\n".encode())
    while child.poll() is None:
        if os.getppid() != parent or told_to_stop or _stdin_closed():
            if tree:
                break
            _end(child, grace_s)
    status = -signal.SIGKILL if child.returncode is None else child.returncode
    if tree:
        _kill_tree()
    if litter and (tree or os.getppid() != parent):
        shutil.rmtree(litter, ignore_errors=True)
    return status if status >= 0 else 128 - status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent", type=int, required=True, help="process id of the starter")
    parser.add_argument("--grace", type=float, default=10.0, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("--litter", help="folder to remove if the starter died, or the tree")
    parser.add_argument("--tree", action="store_true", help="end everything that the command forked, too")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    return watch(given.parent, given.grace, given.litter, given.command[1:], tree=given.tree)


if __name__ == "__main__":
    sys.exit(main())
