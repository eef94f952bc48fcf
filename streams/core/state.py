"""All that the core knows. It is a fold of the control log and nothing else.

Plain mutable models, so that a snapshot is `model_dump_json()` and nothing can hide outside it. Facts
(what was reported) stand apart from intents (what was decided); everything that can be derived from
them is derived anew at each record and not kept.
"""

from functools import cached_property

from pydantic import BaseModel, ConfigDict

from schemas.events import DemandClosed, Heartbeat, Offer
from schemas.plans import Claim, Plan, Role, Stage, Target
from schemas.policy import CorePolicy
from schemas.problems import Pool, Problem, Rating, Service, Template, Unfit


class Mutable(BaseModel):
    """Part of the state: closed to unknown keys, changed by the core only."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


# --- facts -----------------------------------------------------------------------------------------
class OfferState(Mutable):
    """The last word of one source on one (pool, configuration)."""

    offer: Offer
    usd_per_hour: float | None = None
    price_at_ms: int = 0
    heard_ms: int = 0
    """Log time at which a price was last said."""
    doubted_usd: float | None = None
    """A price too far from the last to be believed yet."""
    doubted_since_ms: int = 0
    obtainable: int | None = None
    obtainable_at_ms: int = 0


class NodeState(Mutable):
    """A registered node: its last report, and since when it is silent."""

    partition: int
    report: Heartbeat
    silent_since_ms: int | None = None
    """Broker time it was last heard at, once it is silent."""
    drained_by: str | None = None
    """The operator who asked that nothing runs here."""


class Refused(Mutable):
    """A refusal that was heard: it stands until `until_ms`, and is remembered a while longer."""

    by: Heartbeat
    """The node as it was then, without its stages."""
    until_ms: int
    times: int
    """Refusals so far, each after the one before had been waited out."""


class NodeRefused(Refused):
    """A node that cannot start anything now."""

    refusal: str
    reason: str


class ModelRefused(Refused):
    """Nodes of one configuration in one pool that cannot run a model."""

    unfit: Unfit
    revision: str | None = None
    """Of the checkpoint that was asked for."""


class Pull(Mutable):
    """A node that wants weights from the store: since when, and whether it may have them."""

    since: int
    """Offset of the record that said so."""
    granted: bool = False


# --- intents ---------------------------------------------------------------------------------------
class Wish(Mutable):
    """One line of the accepted allocation: `count` instances of a template in a pool."""

    template_id: str
    rating: Rating
    service: Service
    pool: Pool
    count: int


class ClaimState(Mutable):
    """A node this fleet asked for."""

    claim: Claim
    asked_ms: int


class InstanceState(Mutable):
    """One instance from its binding to the end of its last process."""

    id: str
    template_id: str
    rating: Rating
    service: Service
    pool: Pool
    stages: tuple[Stage, ...]
    wanted: bool = True
    """The target has it; False makes it a victim of a roll-out."""
    role: Role | None = None
    """None: bound, but not in the plan yet, since its nodes are not all there and free."""
    attempt: int = 1
    role_since_ms: int = 0
    """Log time at which it took its role."""
    starts_since_ms: int = 0
    """Log time from which its start is timed: it took its role, or others still had all pull slots."""
    seen: tuple[str, ...] = ()
    """Ranks (`claim/stage`) that were reported for this attempt."""
    refused: tuple[str, ...] = ()
    """Ranks whose refusal was noted."""
    ready: bool = False
    engine: str | None = None
    """Engine version of all its nodes when this attempt entered the plan."""
    drain_deadline_ms: int = 600_000
    """The longest its drain may take: the policy's when this attempt entered the plan, as its nodes know."""
    endpoint: str | None = None
    """As its head says while it is ready and not on its way out, like the next."""
    verified: bool | None = None
    failed: str | None = None
    """Why this attempt failed; its other ranks are being ended."""
    blamed: tuple[str, ...] = ()
    """Claims on whose nodes it did."""
    retry_at_ms: int = 0
    spare: tuple[str, ...] = ()
    """Claims on nodes of another engine version than the rest, kept while others are asked for instead."""

    @cached_property
    def claims(self) -> frozenset[str]:
        return frozenset(rank.claim for stage in self.stages for rank in stage.ranks)

    @cached_property
    def ranks(self) -> tuple[tuple[str, str, int], ...]:
        """Every rank's name (`claim/stage`), claim and stage, the head first."""
        return tuple((f"{r.claim}/{s.index}", r.claim, s.index) for s in self.stages for r in s.ranks)

    def take(self, role: Role | None, now_ms: int) -> None:
        """Change the role, and note since when."""
        if role != self.role:
            self.role, self.role_since_ms, self.starts_since_ms = role, now_ms, now_ms
        if role in (None, "draining"):
            self.endpoint, self.verified = None, None  # Nobody new is sent there.


class PendingSolve(Mutable):
    """A solve that was asked for and has not come back."""

    problem: Problem
    reason: str
    cause_offset: int
    asked_ms: int


class PendingPublish(Mutable):
    plan: Plan
    cause_offset: int


class State(Mutable):
    """The whole of it; `State()` is the state before record 0."""

    # The log's own
    offset: int = -1
    now_ms: int = 0
    """Log time: LogAppendTime of the last record, never going back."""
    history: str = ""
    """Running digest of (offset, timestamp, bytes, effects) of every record so far."""
    lineage: int = 0
    epoch: int = 0
    leader: str | None = None
    fleet: str = ""
    library: str = ""
    policy: CorePolicy | None = None

    # Facts
    demand: dict[str, list[DemandClosed]] = {}
    """Key of (model, class) -> its closed windows, oldest first, each window once."""
    offers: dict[str, OfferState] = {}
    refused_until_ms: dict[str, int] = {}
    """`pool|configuration` -> until when it counts as out of stock."""
    nodes: dict[str, NodeState] = {}
    drained: dict[str, str] = {}
    """Node -> the operator who asked that nothing runs there; kept while the node is away."""
    alive_ms: dict[int, int] = {}
    """Fleet partition -> log time of its last `FleetAlive`."""
    refused_nodes: dict[str, NodeRefused] = {}
    refused_models: dict[str, ModelRefused] = {}
    """`model|pool|configuration` -> the refusal."""
    startups: dict[str, list[float]] = {}
    """Model -> seconds that its last instances took from start to ready."""
    pulls: dict[str, Pull] = {}
    """Claim -> its node's wish for weights."""

    # Intents
    target: Target | None = None
    wishes: list[Wish] = []
    templates: dict[str, Template] = {}
    claims: dict[str, ClaimState] = {}
    instances: dict[str, InstanceState] = {}
    planned_for: dict[str, float] = {}
    """Service key -> rate of the last accepted or confirmed solve, headroom included."""
    solved_with: dict[str, tuple[float, int]] = {}
    """`pool|configuration` -> (price, stock) of the last problem."""
    solved_without: dict[str, int] = {}
    """Key of a refused model -> tries, of the last problem."""
    last_solve_ms: int | None = None
    failed_solves: int = 0
    """Since the last answer."""
    needs: list[str] = []
    """Named reasons why the target cannot stand: something it rests on broke."""

    # Effects not yet confirmed, and what was said
    sequence: int = 0
    plan: Plan | None = None
    """The newest plan decided."""
    pending_solve: PendingSolve | None = None
    pending_publish: PendingPublish | None = None
    published_ms: int = 0
    put_aside: dict[int, str] = {}
    """Offset of an unreadable record -> reason, until `DeadLettered`."""
    wake_at_ms: int | None = None
    alerts: dict[str, str] = {}
    """Standing alerts by name; each is told once until it clears."""

    def need(self, reason: str) -> None:
        """Note that the target cannot stand any more."""
        if reason not in self.needs:
            self.needs.append(reason)


ENDED = frozenset({"drained", "failed", "refused"})
"""Stage states in which nothing of the stage runs any more."""


def stock_key(pool: Pool, configuration: str) -> str:
    return f"{pool.key}|{configuration}"
