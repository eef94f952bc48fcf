"""What shall be: the plan, an absolute desired state (house.md, law 3).

A target is an accepted allocation. A plan is the whole desired state right now, on the way to its
target: every claim, instance, stage and rank. Readers keep the plan with the greatest `order` and drop
all others.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Count, Frozen, Millis, Name, Rate, digest
from schemas.catalog import Positive, Whole
from schemas.problems import Breach, NodeUsd, Pool, Rating, Service, Template, Unmet, later

Role = Literal["starting", "serving", "draining"]
"""starting: bring it up, send nothing. serving: bring or keep it up, send requests.
draining: send nothing new, finish what is in flight, then stop."""

Order = tuple[int, int, int]
"""(lineage, epoch, sequence): plans are compared by it, field by field."""


class Contact(Frozen):
    """How the guards of a node's ranks are reached by the guards of an instance's other ranks."""

    address: str
    """Private or loopback: traffic between ranks is not encrypted by vLLM."""
    guard_port: Annotated[int, Field(ge=1, le=65_535)]
    """The guard of a rank listens on this plus the rank's first device id: devices are never shared."""
    public_key: Annotated[str, Field(min_length=40, max_length=40)]
    """CURVE public key of the node's agent, in Z85."""

    def port(self, rank: "Rank") -> int:
        """Where the guard of a rank on this node listens."""
        return self.guard_port + rank.device_ids[0]


class Claim(Frozen):
    """A node this fleet wants. The provisioner brings it; `node` names it once it was granted."""

    id: Name
    configuration: Name
    pool: Pool
    usd_per_hour: NodeUsd
    node: Name | None = None
    contact: Contact | None = None
    """As its node registered it; None where engines need no guards (simulated ones)."""


class Rank(Frozen):
    """One engine process: which claim's node it runs on, with which devices."""

    claim: Name
    device_ids: tuple[Count, ...] = Field(min_length=1)
    tp: Whole
    memory_gb: Positive


class Stage(Frozen):
    """Layers `first_layer` to `first_layer + layers - 1` and the ranks that hold them."""

    index: Count
    first_layer: Count
    layers: Whole
    ranks: tuple[Rank, ...] = Field(min_length=1)


class Instance(Frozen):
    """One running copy of a template, on claimed nodes; `attempt` counts the tries to run it."""

    id: Name
    attempt: Annotated[int, Field(ge=1)]
    role: Role
    template_id: str
    rating: Rating
    service: Service
    pool: Pool
    stages: tuple[Stage, ...] = Field(min_length=1)
    engine: str | None = None
    """Engine version of all its ranks, such as `vllm-0.32.0`; a node with another one refuses."""
    endpoint: str | None = None
    """host:port of its `/v1` door, while it is ready."""
    verified: bool | None = None
    """Whether its answers passed the reference check; None while it is not ready."""
    drain_deadline_ms: Millis = 600_000
    """The longest that its drain waits for open answers before it cuts them."""

    @property
    def claims(self) -> frozenset[str]:
        return frozenset(rank.claim for stage in self.stages for rank in stage.ranks)


class Target(Frozen):
    """An accepted allocation: why, from what, at what cost, how good."""

    id: Name
    reason: Name
    cause_offset: Annotated[int, Field(ge=0)]
    """Offset on the control log of the record that made the controller solve."""
    problem: Name
    inputs: str
    """Digest of the problem that was solved; the problem itself is derived again by a replay."""
    method: str
    usd_per_hour: Rate
    bound_usd_per_hour: float
    gap: Rate
    demand: dict[str, float] = {}
    """Service key -> rate it was planned for."""
    unmet: tuple[Unmet, ...] = ()
    breaches: tuple[Breach, ...] = later(())
    """Policies that are kept in part only."""
    stopped: str | None = later(None)
    """Why the search for it was ended before it had done (`Answer.stopped`); it is made again."""


class Plan(Frozen):
    """The desired state of the whole fleet."""

    fleet: Name
    lineage: Annotated[int, Field(ge=1)]
    epoch: Annotated[int, Field(ge=0)]
    sequence: Annotated[int, Field(ge=1)]
    at_ms: Millis
    target: Target
    templates: tuple[Template, ...] = ()
    claims: tuple[Claim, ...] = ()
    instances: tuple[Instance, ...] = ()
    pulls: tuple[Name, ...] = ()
    """Claims whose node may pull weights from the store now (`CorePolicy.pull_slots`)."""
    blind: bool = False
    """The controller does not see its fleet: nothing may be given back on the ground of this plan."""

    @property
    def order(self) -> Order:
        return (self.lineage, self.epoch, self.sequence)

    @property
    def id(self) -> str:
        return f"{self.lineage}-{self.epoch}-{self.sequence}"

    @property
    def digest(self) -> str:
        return digest(self)

    @property
    def usd_per_hour(self) -> float:
        return sum(claim.usd_per_hour for claim in self.claims)

    def template(self, instance: Instance) -> Template:
        return next(t for t in self.templates if t.id == instance.template_id)

    def claim(self, claim_id: str) -> Claim:
        return next(c for c in self.claims if c.id == claim_id)

    def claim_of(self, node: str) -> Claim | None:
        """The claim this node was granted for, if the plan wants it."""
        return next((c for c in self.claims if c.node == node), None)

    @model_validator(mode="after")
    def _references_resolve(self) -> Self:
        claims = {claim.id for claim in self.claims}
        templates = {template.id for template in self.templates}
        used: set[tuple[str, int]] = set()
        for instance in self.instances:
            if instance.template_id not in templates:
                raise ValueError(f"instances.{instance.id}: template {instance.template_id} is missing")
            if missing := instance.claims - claims:
                raise ValueError(f"instances.{instance.id}: claims {sorted(missing)} are missing")
            for stage in instance.stages:
                for rank in stage.ranks:
                    devices = {(rank.claim, device) for device in rank.device_ids}
                    if devices & used:
                        raise ValueError(f"instances.{instance.id}: a device is given twice")
                    used |= devices
        return self
