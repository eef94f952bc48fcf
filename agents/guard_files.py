"""The folder of one rank: how an agent and the guard that outlives it know of each other.

| file | written by | what |
| --- | --- | --- |
| spec.json | agent, once | what to run; nothing is started before it lies there |
| order.json | agent | all it wants of the guard, absolute |
| status.json | guard | all there is to know of it, absolute; its last word is `ended` |
| lock | guard | held (flock) for as long as it lives; touched every second |
| guard.log, engine.log | guard, engine | |

Each is whole or not there. The folder's path is also the tag that all processes of the rank have in their
environment (`agents.processes`).
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationError

from agents.engine import EngineSpec
from agents.files import write_atomically
from agents.ledger import RankKey
from agents.processes import Started
from agents.vllm import VllmNode
from schemas.base import Count, Frozen
from schemas.catalog import Positive
from schemas.events import Refusal, StartPhase

TAG = "CORAL_RANK"
"""The environment variable that names a process's rank, by its folder."""

GuardState = Literal["starting", "ready", "draining", "ended"]


class Weights(Frozen):
    """Where a node's weights are: as `agents.weights.Store` has it."""

    models: dict[str, Path] = {}
    store: Path | None = None
    cache: Path


class Pace(Frozen):
    """Times of a guard, in seconds."""

    quiet_s: Positive = 2.0
    """A drained engine is told to end once nothing ran or waited for so long."""
    head_exit_s: Positive = 30.0
    """From SIGTERM to the end of a head's engine that has nothing left to do."""
    rank_exit_s: Positive = 15.0
    """The same of the other ranks' engines, which take 8 to 11 s."""
    silent_after_s: Positive = 5.0
    """A guard of the instance that was not heard for so long is dead."""


class GuardSpec(Frozen):
    """All that a guard needs to know."""

    engine: EngineSpec
    node: VllmNode
    weights: Weights
    keys: Path
    """The file of the node's key pair (`agents.guard_keys`)."""
    pace: Pace = Pace()


class Order(Frozen):
    """What the agent wants: each of it stays wanted."""

    model_config = ConfigDict(extra="ignore")  # of a newer agent
    may_pull: bool = False
    drain: bool = False
    stop: bool = False


class Status(Frozen):
    """What the guard has to say."""

    model_config = ConfigDict(extra="ignore")  # of a guard that is newer than its agent
    guard: Started
    spec: str
    """Digest of the spec it follows (`Folder.spec_digest`)."""
    state: GuardState = "starting"
    phase: StartPhase | None = None
    """While starting, with `text`."""
    text: str = ""
    endpoint: str | None = None
    verified: bool | None = None
    start_s: Annotated[float, Field(ge=0)] | None = None
    pull_s: Annotated[float, Field(ge=0)] | None = None
    in_flight: Count = 0
    pids: tuple[Count, ...] = ()
    """The engine's processes whose death is the instance's."""
    segments: tuple[str, ...] = ()
    """Files of shared memory that the engine uses: whoever is killed leaves them behind."""
    reason: str | None = None
    """Once ended, unless it was told to."""
    refusal: Refusal | None = None


class Folder:
    """One rank's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    @classmethod
    def of(cls, guards: Path, key: RankKey) -> "Folder":
        """The folder of a rank among those of its node."""
        return cls(guards / f"{key.instance}.{key.attempt}.{key.stage}.{key.rank}")

    @property
    def tag(self) -> str:
        return str(self.path)

    @property
    def engine_log(self) -> Path:
        return self.path / "engine.log"

    @property
    def guard_log(self) -> Path:
        return self.path / "guard.log"

    # --- the agent's side ----------------------------------------------------------------------------
    def write_spec(self, spec: GuardSpec) -> None:
        """Begin: what an earlier try left is forgotten first.

        Raises:
            OSError: it cannot be written.
        """
        for old in ("order.json", "status.json", "spec.json"):
            (self.path / old).unlink(missing_ok=True)
        write_atomically(self.path / "spec.json", spec.model_dump_json())

    def write_order(self, order: Order) -> None:
        """Raises OSError: it cannot be written."""
        write_atomically(self.path / "order.json", order.model_dump_json())

    def read_status(self) -> Status | None:
        """What the guard says; None while it has said nothing that can be read."""
        try:
            return Status.model_validate_json((self.path / "status.json").read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def locked(self) -> bool:
        """Whether a guard lives here."""
        try:
            file = os.open(self.path / "lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def touched_ns(self) -> int:
        """When the guard last touched the lock, by the file system's clock: good to compare only."""
        try:
            return (self.path / "lock").stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    # --- the guard's side ----------------------------------------------------------------------------
    def read_spec(self) -> GuardSpec:
        """Raises OSError or pydantic.ValidationError: there is none, or it is no spec."""
        return GuardSpec.model_validate_json((self.path / "spec.json").read_bytes())

    def spec_digest(self) -> str | None:
        """Of the file as it is, so that it means the same to every version of this software."""
        try:
            return hashlib.sha256((self.path / "spec.json").read_bytes()).hexdigest()
        except FileNotFoundError:
            return None

    def read_order(self) -> Order:
        """What the agent wants; nothing, while it has not said so.

        Raises:
            pydantic.ValidationError: it is no order.
        """
        try:
            return Order.model_validate_json((self.path / "order.json").read_bytes())
        except FileNotFoundError:
            return Order()

    def write_status(self, status: Status) -> None:
        """Replace it. Not forced to the disk: a machine that loses its power has no guard any more."""
        draft = self.path / "status.json.new"
        draft.write_text(status.model_dump_json())
        draft.replace(self.path / "status.json")

    def touch(self) -> None:
        """Say that the guard is alive and not stopped."""
        os.utime(self.path / "lock")

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Hold the lock while inside, if nobody has it; the kernel lets go when this process dies."""
        with (self.path / "lock").open("a") as file:
            held = False
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            yield held
