"""Runs one command for exactly as long as the process that asked for it lives.

What we start for ourselves, a broker or a part of the demo, must be gone even when we are killed with
SIGKILL. Linux can signal a child when its parent dies (PR_SET_PDEATHSIG), but counts the *thread* that forked
as the parent, and elsewhere there is no such thing. So this watcher stands between: it ends the command when
its standard input closes (the starter's wish) or its parent is another (the starter is dead; a pipe alone
would be held open by what the starter forked). The watcher has one thread, so the command may in turn die
with the watcher by PR_SET_PDEATHSIG.

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

POLL_S = 0.2
PR_SET_PDEATHSIG = 1


def _die_with_watcher() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


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


def watch(parent: int, grace_s: float, litter: str | None, command: list[str]) -> int:
    """Run `command`, print its process id, and return its exit status; `litter` goes if the parent died."""
    told_to_stop = False

    def stop(_signal: int, _frame: object) -> None:
        nonlocal told_to_stop
        told_to_stop = True

    signal.signal(signal.SIGTERM, stop)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        preexec_fn=_die_with_watcher,  # noqa: PLW1509 - unsafe with threads; this process has one
    )
    print(child.pid, flush=True)  # noqa: T201 - the starter reads it
    while child.poll() is None:
        orphaned = os.getppid() != parent
        if orphaned or told_to_stop or _stdin_closed():
            _end(child, grace_s)
    if os.getppid() != parent and litter:
        shutil.rmtree(litter, ignore_errors=True)
    return child.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent", type=int, required=True, help="process id of the starter")
    parser.add_argument("--grace", type=float, default=10.0, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("--litter", help="folder to remove if the starter died")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    return watch(given.parent, given.grace, given.litter, given.command[1:])


if __name__ == "__main__":
    sys.exit(main())
