"""The demo's folder: one demo at a time has it, and nothing that a demo started there outlives it."""

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agents import processes
from agents.guarded import end_ranks

TAG = "CORAL_STATE_DIR"
"""Everything that a demo starts, and whatever that starts, has the demo's folder in this variable."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other demos out; the kernel lets go when the process dies.

    Raises:
        BlockingIOError: one runs already.
    """
    lock = folder.with_suffix(".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(
                f"{lock}: held by another demo; end it, or set another state_dir"
            ) from error
        yield


@contextmanager
def own(folder: Path, *, before_ending: Callable[[], None]) -> Iterator[None]:
    """The folder, fresh. What an earlier demo left running is ended first, what this one leaves at last."""
    _end_all(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        before_ending()
        _end_all(folder)


def _end_all(folder: Path) -> None:
    end_ranks(lambda rank: Path(rank).is_relative_to(folder), ())  # with the shared memory that vLLM leaves
    processes.end(TAG, str(folder).__eq__)
