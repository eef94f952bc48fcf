"""The Engine protocol: what a node agent asks of whatever runs one rank. Its double is `agents.simulated`.

It is cut for real vLLM processes behind guards (`agents.guarded`): starting takes minutes and tells its
progress, a drain is asked for and its end awaited, an end may come unasked at any time, and an engine that
outlived its agent can be adopted by the next one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agents.ledger import RankKey
from schemas.base import Frozen
from schemas.events import Refusal, StartPhase
from schemas.plans import Contact, Instance, Plan, Rank, Stage
from schemas.problems import Template


class EngineSpec(Frozen):
    """One rank to run: the whole instance, since every rank needs the whole partition, and which is ours."""

    instance: Instance
    template: Template
    key: RankKey
    address: str
    """Of this node, as the other nodes and the routers reach it."""
    contacts: dict[str, Contact] = {}
    """Claim -> how to reach the guards on its node; empty where engines need no guards."""

    @property
    def stage(self) -> Stage:
        return next(stage for stage in self.instance.stages if stage.index == self.key.stage)

    @property
    def rank(self) -> Rank:
        return self.stage.ranks[self.key.rank]

    @property
    def head(self) -> bool:
        """The head has the instance's door."""
        return self.key.stage == 0 and self.key.rank == 0


@dataclass(frozen=True)
class Progress:
    """What an engine does while it starts, in a few coarse steps: each is a record on the control log."""

    phase: StartPhase
    text: str


@dataclass(frozen=True)
class Up:
    """An engine may serve."""

    endpoint: str | None = None
    """host:port of the instance's door, at its head."""
    verified: bool | None = None
    """At the head: whether the reference check passed; False only where the template allows it."""
    start_s: float | None = None
    """Measured seconds from its start to here, waiting for a pull slot left out."""
    pull_s: float | None = None
    """Measured seconds of the download of its weights; None where they were there."""


@dataclass(frozen=True)
class End:
    """An engine has ended; processes, ports and device memory are free."""

    reason: str | None = None
    """None where it ended as it was told."""
    refusal: Refusal | None = None
    """Set where this node cannot do it, now or ever: it was never up."""


class Engine(Protocol):
    """One engine, for one rank of one attempt. No method but `start` is called before `start` or `adopt`.

    `ready` and `gone` may be awaited at the same time; `drain` and `stop` may come at any time after that,
    also while `start` still runs, and twice.
    """

    @property
    def outlives_agent(self) -> bool:
        """Whether it goes on when its agent ends, for the next agent to adopt."""

    @property
    def progress(self) -> Progress | None:
        """What it is doing while it starts; None afterwards."""

    @property
    def in_flight(self) -> int:
        """Requests accepted and not finished; 0 where there is no door."""

    async def start(self, spec: EngineSpec) -> None:
        """Launch it, and return without waiting until it is ready.

        Raises:
            EngineError: it cannot be launched; nothing is left behind.
        """

    async def may_pull(self) -> None:
        """The plan grants this node a pull slot: weights may come from the store now. May come again."""

    async def adopt(self, key: RankKey) -> bool:
        """Take over what an earlier agent left running for `key`; False when there is nothing."""

    async def ready(self) -> Up:
        """Wait until it may serve. Never returns if it ends before."""

    async def drain(self) -> None:
        """Ask it to take nothing new, finish what is in flight and end; returns at once."""

    async def stop(self) -> None:
        """End it now, cutting what is in flight; returns at once."""

    async def gone(self) -> End:
        """Wait until it has ended and processes, ports and device memory are free."""


EngineFactory = Callable[[], Engine]


class EngineError(RuntimeError):
    """An engine could not be launched; the text says why, `refusal` that this node cannot do it."""

    def __init__(self, text: str, refusal: Refusal | None = None) -> None:
        super().__init__(text)
        self.refusal = refusal


def spec_of(plan: Plan, key: RankKey, address: str) -> EngineSpec:
    """The rank that `key` names in `plan`.

    Raises:
        LookupError: the plan has no such instance, attempt, stage or rank.
    """
    for instance in plan.instances:
        if (instance.id, instance.attempt) == key.of and _has_rank(instance, key):
            return EngineSpec(
                instance=instance,
                template=plan.template(instance),
                key=key,
                address=address,
                contacts={c.id: c.contact for c in plan.claims if c.id in instance.claims and c.contact},
            )
    raise LookupError(f"plan {plan.id} has no {key}")


def _has_rank(instance: Instance, key: RankKey) -> bool:
    return any(stage.index == key.stage and key.rank < len(stage.ranks) for stage in instance.stages)
