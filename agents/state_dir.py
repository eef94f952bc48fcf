"""What a node keeps on disk: its ledger and the newest plan. Written whole or not at all.

One process at a time owns the folder: two would both believe to be first to start an attempt. So it is with
the folders of routers and scrapers, whose telemetry would be taken for one process'.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from agents.ledger import Ledger
from schemas.base import Frozen
from schemas.codec import describe
from schemas.plans import Plan

_Kept = TypeVar("_Kept", bound=Frozen)


class StateError(RuntimeError):
    """The folder cannot be used; the text names the file and what to do."""


@contextmanager
def owned(folder: Path, who: str) -> Iterator[None]:
    """Make the folder, and keep others out while inside; the kernel lets go when the process dies.

    Args:
        who: what has the folder, for the error.

    Raises:
        StateError: another process has it.
        OSError: it cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / "lock"
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateError(f"{lock}: another {who} runs on this state") from error
        yield


class StateDir:
    """`ledger.json` and `plan.json` in one folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def owned(self) -> AbstractContextManager[None]:
        """Keep other agents out while inside (`owned`)."""
        return owned(self._path, "node agent")

    def read_ledger(self) -> Ledger:
        """The ledger, a new one on the first start.

        Raises:
            StateError: it is there and unreadable; without it nobody knows what was started before.
        """
        return self._read("ledger.json", Ledger) or Ledger()

    def write_ledger(self, ledger: Ledger) -> None:
        self._write("ledger.json", ledger)

    def read_plan(self) -> Plan | None:
        """The newest plan of the last run.

        Raises:
            StateError: it is there and unreadable.
        """
        return self._read("plan.json", Plan)

    def write_plan(self, plan: Plan) -> None:
        self._write("plan.json", plan)

    def _read(self, name: str, kind: type[_Kept]) -> _Kept | None:
        path = self._path / name
        try:
            return kind.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise StateError(f"{path}: {describe(error)}; restore it, or remove it on a new node") from error

    def _write(self, name: str, value: Frozen) -> None:
        path = self._path / name
        draft = path.with_suffix(".draft")
        with draft.open("wb") as file:
            file.write(value.model_dump_json().encode())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        folder = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(folder)  # The rename itself must survive a power cut too.
        finally:
            os.close(folder)
