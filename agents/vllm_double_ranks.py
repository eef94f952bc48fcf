"""The processes below the double's main one: an engine core and a worker a rank, as vLLM has them.

They pass lines on. A step goes main -> core -> head's worker -> every other rank's worker and back; so one
dead rank leaves the step without an answer, for ever, as in vLLM. Like vLLM's they do not notice that
whoever started them is gone.

Runs as a script under `python -I -S`, nothing but the standard library: up in some 30 ms.
"""

import argparse
import mmap
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, NoReturn

MEET_S = 0.1
"""Between two tries to reach the head's worker."""


class _SharedMemory:
    """A segment as `multiprocessing.shared_memory` makes them: whoever is killed leaves it behind."""

    def __init__(self) -> None:
        self.path = Path("/dev/shm") / f"psm_{secrets.token_hex(4)}"  # noqa: S108  where they are
        with self.path.open("wb+") as file:
            file.write(os.environ.get("CORAL_RANK", "").encode())  # so that a leak tells whose it is
            file.truncate(4096)
            self._map = mmap.mmap(file.fileno(), 4096)


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  the process above reads it


def _lines(file: IO[str]) -> str:
    """The next line; whoever wrote it being gone is nothing that these processes notice."""
    try:
        return file.readline() or _hang()
    except OSError:
        _hang()


def titled(role: str, *arguments: str) -> list[str]:
    """A command line that `ps` shows as vLLM's processes show themselves; run with `executable`."""
    return [f"VLLM::{role}", "-I", "-S", __file__, *arguments]


# --- roles -------------------------------------------------------------------------------------------
def core(python: str, worker: list[str]) -> NoReturn:
    """Between the main process and its worker; ends with SIGTERM, and its worker before it."""
    below = subprocess.Popen(
        worker, executable=python, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def stop(_signal: int, _frame: object) -> None:
        below.terminate()
        below.wait()
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    assert below.stdin is not None and below.stdout is not None  # noqa: S101, PT018  pipes
    _say(_lines(below.stdout).strip())
    while True:
        below.stdin.write(_lines(sys.stdin))
        below.stdin.flush()
        _say(_lines(below.stdout).strip())


def head(address: str, port: int, others: int, partition: str) -> NoReturn:
    """The first rank's worker: waits for the others, then does every step with all of them."""
    peers: list[IO[str]] = []
    agree = True
    listener = socket.create_server((address, port if others else 0))  # taken for life, as torch does
    for _ in range(others):
        peer: IO[str] = listener.accept()[0].makefile("rw")
        agree &= _lines(peer).strip() == partition
        peers.append(peer)
    # Partitions that differ are not noticed by vLLM either: it answers, and wrongly.
    verdict = "right" if agree else "wrong"
    _say(verdict)
    while True:
        step = _lines(sys.stdin)
        for peer in peers:
            try:
                peer.write(step)
                peer.flush()
            except OSError:
                _hang()
            _lines(peer)
        _say(verdict)


def other(address: str, port: int, partition: str) -> NoReturn:
    """Another rank's worker."""
    while True:
        try:
            connection: IO[str] = socket.create_connection((address, port)).makefile("rw")
            break
        except OSError:
            time.sleep(MEET_S)
    connection.write(f"{partition}\n")
    connection.flush()
    _say("right")
    while True:
        connection.write(_lines(connection))
        connection.flush()


def main() -> NoReturn:
    parser = argparse.ArgumentParser(description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    above = roles.add_parser("core")
    above.add_argument("python", help="`sys.executable` is empty under a made-up name")
    above.add_argument("worker", nargs=argparse.REMAINDER)
    for name in ("head", "other"):
        role = roles.add_parser(name)
        role.add_argument("--address", required=True)
        role.add_argument("--port", type=int, required=True)
        role.add_argument("--others", type=int, default=0)
        role.add_argument("--partition", default="")
    given = parser.parse_args()
    if given.role == "core":
        core(given.python, given.worker)
    memory = _SharedMemory()

    def stop(_signal: int, _frame: object) -> None:
        memory.path.unlink(missing_ok=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    if given.role == "head":
        head(given.address, given.port, given.others, given.partition)
    other(given.address, given.port, given.partition)


if __name__ == "__main__":
    main()
