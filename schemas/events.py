"""What happened: every message on every topic but the plans and telemetry (`schemas.telemetry`).

Topic by topic, in the order in which one telemetry event travels (house.md, "Topics"). Times are
milliseconds since the epoch; a name ending in `_ms` is a time or a span, never a rate.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.base import MAX_INT, Count, Frozen, Millis, Name, digest
from schemas.plans import Contact
from schemas.policy import CorePolicy
from schemas.problems import Answer, NodeUsd, Pool
from schemas.sketch import Sketch

Positive = Annotated[int, Field(ge=1, le=MAX_INT)]


# --- coral.availability, coral.prices: feeds and provisioner -> fold -------------------------------
class Offer(Frozen):
    """The name of an offer: nodes of one configuration from one pool, as one source sees it."""

    pool: Pool
    configuration: Name
    source: Name

    @property
    def key(self) -> str:
        return f"{self.pool.key}|{self.configuration}|{self.source}"


class AvailabilityOffered(Frozen):
    """How many *more* nodes could be had."""

    offer: Offer
    obtainable: Count
    at_ms: Millis


class _Priced(Frozen):
    offer: Offer
    usd_per_hour: NodeUsd
    at_ms: Millis

    @model_validator(mode="after")
    def _only_what_is_paid_anyway_is_free(self) -> Self:
        if self.usd_per_hour == 0 and self.offer.pool.market != "reserved":
            raise ValueError(f"usd_per_hour: 0 for {self.offer.key}, expected above 0 but for reserved nodes")
        return self


class PriceOffered(_Priced):
    """What one node costs per hour."""


# --- coral.fleet: node agents -> fold --------------------------------------------------------------
StageState = Literal["starting", "ready", "draining", "drained", "failed", "refused"]
"""`drained`, `failed` and `refused` are ends: the process group is gone and its memory is free."""


StartPhase = Literal["waiting", "queued", "downloading", "loading", "compiling", "verifying"]
"""waiting: for devices or an older attempt. queued: for a pull slot. downloading: weights from the store.
loading: weights into memory, ranks finding each other. compiling: graphs and warm-up.
verifying: health, all ranks, the reference check."""

Refusal = Literal[
    "unknown_model",  # neither a configured path nor the store has its checkpoint, or another revision
    "no_reference",  # nothing to check its answers against, and its variant does not allow that
    "memory",  # more than the devices have
    "devices",  # devices that do not exist
    "not_deployable",  # runtime, ranks or partition that vLLM cannot do
    "engine_version",  # another engine version than the instance's
    "engine_missing",  # no vLLM where one is configured
    "device_busy",  # a stranger's process holds a device
    "port_taken",  # a stranger listens where the guard must
]
"""Why a node refuses a stage. The last three say something about the node, the others of the model on it."""
NODE_REFUSALS: frozenset[Refusal] = frozenset({"engine_missing", "device_busy", "port_taken"})


class StageReport(Frozen):
    """Where one rank of one stage stands. A stage that is absent is not reported at all."""

    instance: Name
    attempt: Positive
    stage: Count
    rank: Count = 0
    state: StageState
    reason: str | None = None
    """Why it failed or was refused; what it does while starting."""
    phase: StartPhase | None = None
    """While starting."""
    refusal: Refusal | None = None
    """When refused."""
    verified: bool | None = None
    """At the head once ready: whether the reference check passed; False only where that is allowed."""
    start_s: Annotated[float, Field(ge=0)] | None = None
    """Once ready: measured seconds from the start of its engine to ready, waiting for slots left out."""
    pull_s: Annotated[float, Field(ge=0)] | None = None
    """Once ready: measured seconds of the download; None where the weights were there."""
    endpoint: str | None = None
    """host:port of the instance's door, on the head stage once it is ready."""
    in_flight: Count = 0


class Heartbeat(Frozen):
    """A node's whole state, sent every second and at once on a change: absolute, so a loss heals.

    Ended stages stay in it until the plan no longer has their (instance, attempt).
    """

    node: Name
    boot: Name
    """Names this run of the node's machine, and of its agent where engines end with that: another boot means
    that every stage of before is gone."""
    at_ms: Millis
    pool: Pool
    configuration: Name
    devices: Count
    memory_gb: Annotated[float, Field(ge=0)]
    """Of all devices together."""
    contact: Contact | None = None
    """None where engines need no guards (simulated ones)."""
    engine: str | None = None
    """Engine version of this node, such as `vllm-0.32.0` or `simulated-1`."""
    gpu: str | None = None
    """What NVML calls its devices; None on a node without GPUs."""
    driver: str | None = None
    """Version of the GPU driver."""
    models: tuple[str, ...] = ()
    """Revisions in its model cache, sorted."""
    claim: Name | None = None
    """The claim its provisioner started it for; None for a static node."""
    stages: tuple[StageReport, ...] = ()
    plan: str | None = None
    """Id of the newest plan it has applied."""
    leaving: bool = False
    notice_deadline_ms: Millis | None = None
    """When the cloud will take the node away, once it has said so."""

    @property
    def news(self) -> str:
        """Digest of what the controller reacts to: equal for two heartbeats that say the same."""
        said = self.model_dump(mode="json", exclude={"at_ms", "plan"})
        for stage in said["stages"]:
            del stage["in_flight"]
        return digest(said)


# --- coral.control: the one ordered log ------------------------------------------------------------
class LineageStarted(Frozen):
    """Record 0 of every log: one above the greatest lineage found on plans and snapshots."""

    lineage: Positive


class DemandClosed(Frozen):
    """One event-time window of one (model, SLO class), closed by the watermark of its partition.

    It may be on the log twice after a crash of fold; the first record of a window counts.
    """

    model: Name
    slo_class: Name
    start_ms: Millis
    end_ms: Millis
    partition: Count
    sources: Count
    offered: Count
    refused: Count
    finished: Count
    input_tokens: Count
    cached_input_tokens: Count
    output_tokens: Count
    ttft_ms: Sketch = Sketch()
    tpot_ms: Sketch = Sketch()
    late_samples: Count = 0
    """Samples of earlier windows that came too late, since the last record of this key."""
    late_offered: Count = 0

    @property
    def key(self) -> str:
        return f"{self.model}/{self.slo_class}"


class AvailabilityChanged(Frozen):
    offer: Offer
    obtainable: Count
    at_ms: Millis


class PriceChanged(_Priced):
    """As offered, once it is another one, or was not said for long."""


class NodeReported(Frozen):
    """A heartbeat that says something new, or ends a silence; `partition` is the fleet's it came from."""

    partition: Count
    report: Heartbeat


class NodeSilent(Frozen):
    """A node was not heard for some seconds; the core alone decides what follows."""

    partition: Count
    node: Name
    last_heard_ms: Millis
    """Broker time of its last heartbeat."""


class RollCall(Frozen):
    """Every node heard on a fleet partition since its fold worker was assigned it."""

    partition: Count
    nodes: tuple[Name, ...]


class FleetAlive(Frozen):
    """Every 2 s: somebody listens to this fleet partition, and hears so many nodes."""

    partition: Count
    count: Count


class ClaimGranted(Frozen):
    """The provisioner has a node for a claim; it registers (or has) by its own heartbeat."""

    claim: Name
    node: Name


class ClaimRefused(Frozen):
    """The cloud has none, or never will (`terminal`)."""

    claim: Name
    reason: str
    terminal: bool = False
    retry_after_ms: Millis = 60_000


class ClaimReleased(Frozen):
    """The node of a claim that the plan dropped is given back."""

    claim: Name
    node: Name | None = None


class NodeGone(Frozen):
    """The provisioner knows that a node is no more: terminated, preempted, never came up."""

    node: Name
    claim: Name | None = None
    reason: str


class Leading(Frozen):
    """A candidate takes the lead; its offset is the epoch. Carries all that decisions rest on."""

    token: Name
    fleet: Name
    policy: CorePolicy
    library: str
    """Digest of the template library in use."""
    version: str
    """Of the software that decides from here on."""
    history: str
    """Running digest of the candidate's state when it wrote this."""
    history_offset: Annotated[int, Field(ge=-1)]
    """Offset that `history` covers."""


class Tick(Frozen):
    """A wake-up that the core asked for is due."""

    due_ms: Millis


class Solved(Frozen):
    """A solve came to an answer that passed the independent check."""

    epoch: Count
    problem: Name
    answer: Answer


class SolveFailed(Frozen):
    """A solve came to none: fuse, crash, or an answer that failed the check."""

    epoch: Count
    problem: Name
    reason: str


class Published(Frozen):
    """A plan is on `coral.plans`."""

    epoch: Count
    plan: str
    digest: str
    history: str
    """Running digest at `history_offset`, the offset of the record that caused the plan."""
    history_offset: Count


class DeadLettered(Frozen):
    """An unreadable record of the control log was put on the dead-letter topic."""

    offset: Count


class OperatorRequested(Frozen):
    """A person asks: solve again now, or drain a node."""

    kind: Literal["resolve", "drain", "undrain"]
    node: Name | None = None
    by: str

    @model_validator(mode="after")
    def _drain_names_a_node(self) -> Self:
        if (self.kind == "resolve") != (self.node is None):
            raise ValueError(f"node: expected with drain and undrain only, got {self.node!r}")
        return self


ControlEvent = (
    LineageStarted
    | DemandClosed
    | AvailabilityChanged
    | PriceChanged
    | NodeReported
    | NodeSilent
    | RollCall
    | FleetAlive
    | ClaimGranted
    | ClaimRefused
    | ClaimReleased
    | NodeGone
    | Leading
    | Tick
    | Solved
    | SolveFailed
    | Published
    | DeadLettered
    | OperatorRequested
)


# --- coral.snapshots -------------------------------------------------------------------------------
class SnapshotChunk(Frozen):
    """Part `index` of a state, zlib-compressed JSON in base64."""

    lineage: Positive
    offset: Count
    index: Count
    data: str


class SnapshotManifest(Frozen):
    """Written last: a snapshot counts only with all its chunks and both digests right."""

    lineage: Positive
    offset: Count
    chunks: Positive
    state: str
    """SHA-256 of the state's JSON."""
    history: str
    """Running digest at `offset`."""
    version: str


# --- coral.deadletter ------------------------------------------------------------------------------
class DeadLetter(Frozen):
    """A message that could not be read or used: where it came from, why, and its bytes (base64)."""

    topic: str
    partition: Count
    offset: Count
    reason: str
    key: str | None = None
    value: str
    reader: Name
