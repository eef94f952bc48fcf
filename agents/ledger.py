"""What a node remembers of its ranks, and every move between their states, in one table. Pure.

One rank of one stage of one attempt of an instance is the unit (`RankKey`). `agents.lifecycle.decide` says
what to do; `advance` says what has become of it. The driver writes the ledger to disk between the two, so
that a crash at any point never leads to a second start.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from schemas.base import Count, Frozen, Millis, Name, Rate
from schemas.catalog import Whole
from schemas.events import Refusal, StageState

State = Literal["absent"] | StageState
Verb = Literal["start", "refuse", "lapse", "spare", "ready", "drain", "stop", "gone", "forget"]

MOVES: Mapping[tuple[State, Verb], State] = {
    ("absent", "start"): "starting",
    ("absent", "refuse"): "refused",  # this node can never do it
    ("absent", "lapse"): "failed",  # it was taken up before, and what became of it is no longer known
    ("absent", "spare"): "drained",  # to be drained before it was ever started
    ("starting", "ready"): "ready",
    ("starting", "stop"): "draining",  # cancelled
    ("starting", "gone"): "failed",
    ("starting", "refuse"): "refused",  # its engine found that this node cannot do it
    ("ready", "ready"): "ready",  # said again, to the agent that adopted it
    ("ready", "drain"): "draining",
    ("ready", "stop"): "draining",  # its attempt is broken, or given up
    ("ready", "gone"): "failed",
    ("ready", "refuse"): "failed",  # too late to refuse
    ("draining", "ready"): "draining",  # became ready while it was being cancelled
    ("draining", "stop"): "draining",  # killed at the deadline
    ("draining", "gone"): "drained",
    ("draining", "refuse"): "drained",  # found so while it was being cancelled
    ("drained", "forget"): "absent",
    ("failed", "forget"): "absent",
    ("refused", "forget"): "absent",
}
"""The whole table; every other pair is a mistake of the driver."""

LIVE: frozenset[State] = frozenset({"starting", "ready", "draining"})
"""States in which an engine may exist and its devices are taken."""


class IllegalMoveError(ValueError):
    """An event that the table, or law 1, does not allow."""


class Attempt(NamedTuple):
    instance: str
    attempt: int


class RankKey(NamedTuple):
    """Names one engine; `stage` is the stage's index, `rank` the place in its list of ranks."""

    instance: str
    attempt: int
    stage: int
    rank: int

    @property
    def of(self) -> Attempt:
        return Attempt(self.instance, self.attempt)


class Spot(NamedTuple):
    """A rank and the devices of this node it runs on."""

    key: RankKey
    devices: tuple[int, ...]


# --- what is remembered ----------------------------------------------------------------------------
class Held(Frozen):
    """One rank that this node has, or had and still reports."""

    instance: Name
    attempt: Whole
    stage: Count
    rank: Count
    devices: tuple[Count, ...]
    state: StageState
    reason: str | None = None
    refusal: Refusal | None = None
    """Set when it is refused."""
    endpoint: str | None = None
    verified: bool | None = None
    start_s: Rate | None = None
    pull_s: Rate | None = None
    """These four as its engine said when it was up (`agents.engine.Up`)."""
    drain_deadline_ms: Millis = 600_000
    """The longest its drain may take, by the plan it was started for."""
    deadline_ms: Millis | None = None
    """When its drain ends by force."""
    stopped: bool = False
    """Told to end at once; it is not told twice."""

    @property
    def key(self) -> RankKey:
        return RankKey(self.instance, self.attempt, self.stage, self.rank)

    @property
    def live(self) -> bool:
        return self.state in LIVE


class Ledger(Frozen):
    """All that the node remembers of what it did; it lies on disk before anything is done."""

    attempts: dict[str, int] = {}
    """Instance -> the highest attempt ever taken up here, started or not (law 1)."""
    held: tuple[Held, ...] = ()

    def find(self, key: RankKey) -> Held | None:
        return next((held for held in self.held if held.key == key), None)

    @property
    def live(self) -> tuple[Held, ...]:
        return tuple(held for held in self.held if held.live)


# --- what is done, and what happens ----------------------------------------------------------------
@dataclass(frozen=True)
class Start:
    """Start all of an attempt's ranks on this node."""

    attempt: Attempt
    spots: tuple[Spot, ...]
    drain_deadline_ms: int = 600_000
    verb: Literal["start"] = "start"


@dataclass(frozen=True)
class Decline:
    """Answer for an attempt without starting anything."""

    attempt: Attempt
    spots: tuple[Spot, ...]
    verb: Literal["refuse", "lapse", "spare"]
    reason: str
    refusal: Refusal | None = None
    """Which one, when it refuses."""


@dataclass(frozen=True)
class Drain:
    """Take nothing new, finish what is in flight, end."""

    key: RankKey
    deadline_ms: int
    reason: str
    verb: Literal["drain"] = "drain"


@dataclass(frozen=True)
class Stop:
    """End now: it was still starting, its attempt is over, or its drain took too long."""

    key: RankKey
    reason: str
    verb: Literal["stop"] = "stop"


@dataclass(frozen=True)
class Forget:
    """Report it no more."""

    key: RankKey
    verb: Literal["forget"] = "forget"


@dataclass(frozen=True)
class Ready:
    """Observed: the engine is up; the fields are those of `agents.engine.Up`."""

    key: RankKey
    endpoint: str | None = None
    verified: bool | None = None
    start_s: float | None = None
    pull_s: float | None = None
    verb: Literal["ready"] = "ready"


@dataclass(frozen=True)
class Gone:
    """Observed: the engine and all it held are gone; `reason` is None where it ended as it was told."""

    key: RankKey
    reason: str | None = None
    refusal: Refusal | None = None
    """Set where this node cannot do it: it never was up."""

    @property
    def verb(self) -> Literal["gone", "refuse"]:
        return "gone" if self.refusal is None else "refuse"


Action = Start | Decline | Drain | Stop | Forget
Observation = Ready | Gone


# --- the events' effect on the ledger --------------------------------------------------------------
def advance(ledger: Ledger, event: Action | Observation) -> Ledger:
    """The ledger after an action was decided or an observation made.

    Raises:
        IllegalMoveError: `MOVES` has no such move, or the attempt was taken up before.
    """
    if isinstance(event, Start | Decline):
        return _take_up(ledger, event)
    before = ledger.find(event.key)
    state = _move("absent" if before is None else before.state, event.verb, event.key)
    if before is None or state == "absent":
        return ledger.model_copy(update={"held": tuple(h for h in ledger.held if h.key != event.key)})
    after = before.model_copy(update={"state": state, **_changes(before, event)})
    return ledger.model_copy(update={"held": tuple(after if h is before else h for h in ledger.held)})


def _take_up(ledger: Ledger, event: Start | Decline) -> Ledger:
    instance, attempt = event.attempt
    highest = ledger.attempts.get(instance, 0)
    if attempt <= highest and event.verb in ("start", "refuse"):
        raise IllegalMoveError(
            f"{event.verb} {instance}/{attempt}: attempt {highest} was taken up here before"
        )
    if isinstance(event, Start):
        said: dict[str, object] = {"drain_deadline_ms": event.drain_deadline_ms}
    else:
        said = {"reason": event.reason, "refusal": event.refusal}
    new = []
    for spot in event.spots:
        before = ledger.find(spot.key)
        state = _move("absent" if before is None else before.state, event.verb, spot.key)
        assert state != "absent"  # noqa: S101  no move leads from absent to absent
        new.append(
            Held.model_validate({**spot.key._asdict(), "devices": spot.devices, "state": state, **said})
        )
    attempts = {**ledger.attempts, instance: max(attempt, highest)}
    return ledger.model_copy(update={"attempts": attempts, "held": (*ledger.held, *new)})


def _move(state: State, verb: Verb, key: RankKey) -> State:
    if (state, verb) not in MOVES:
        raise IllegalMoveError(f"{verb} {key}: it is {state}")
    return MOVES[state, verb]


def _changes(before: Held, event: Drain | Stop | Forget | Observation) -> dict[str, object]:
    match event:
        case Ready():
            up = ("endpoint", "verified", "start_s", "pull_s")
            return {} if before.state == "draining" else {fact: getattr(event, fact) for fact in up}
        case Drain():
            return {"deadline_ms": event.deadline_ms, "reason": event.reason}
        case Stop():
            return {"stopped": True, "reason": event.reason}
        case Gone():
            return {
                "endpoint": None,
                "verified": None,
                "reason": event.reason or before.reason or "it ended without being told to",
                "refusal": event.refusal if before.state == "starting" else None,
            }
        case Forget():
            return {}
