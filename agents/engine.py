"""The Engine protocol: what a node agent asks of whatever runs one rank. Its double is `agents.simulated`.

It is cut for real vLLM processes behind guards (a later engine): starting takes minutes and tells its
progress, a drain is asked for and its end awaited, an end may come unasked at any time, and an engine that
outlived its agent can be adopted by the next one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agents.ledger import RankKey
from schemas.plans import Instance, Plan, Rank, Stage
from schemas.problems import Template


@dataclass(frozen=True)
class EngineSpec:
    """One rank to run: the whole instance, since every rank needs the whole partition, and its own part."""

    instance: Instance
    template: Template
    stage: Stage
    rank: Rank
    key: RankKey
    address: str
    """Of this node, as the other nodes and the routers reach it."""

    @property
    def head(self) -> bool:
        """The head has the instance's door."""
        return self.stage.index == 0 and self.key.rank == 0


class Engine(Protocol):
    """One engine, for one rank of one attempt. No method but `start` is called before `start` or `adopt`.

    `ready` and `gone` may be awaited at the same time; `drain` and `stop` may come at any time after that,
    also while `start` still runs, and twice.
    """

    @property
    def progress(self) -> str | None:
        """What it is doing while it starts, in a few coarse steps: each is a record on the control log."""

    @property
    def in_flight(self) -> int:
        """Requests accepted and not finished; 0 where there is no door."""

    async def start(self, spec: EngineSpec) -> None:
        """Launch it, and return without waiting until it is ready.

        Raises:
            EngineError: it cannot be launched; nothing is left behind.
        """

    async def adopt(self, key: RankKey) -> bool:
        """Take over what an earlier agent left running for `key`; False when there is nothing."""

    async def ready(self) -> str | None:
        """Wait until it may serve; the door's host:port at the head. Never returns if it ends before."""

    async def drain(self) -> None:
        """Ask it to take nothing new, finish what is in flight and end; returns at once."""

    async def stop(self) -> None:
        """End it now, cutting what is in flight; returns at once."""

    async def gone(self) -> str | None:
        """Wait until it has ended and processes, ports and device memory are free.

        Returns:
            None where it ended as it was told, else the reason.
        """


EngineFactory = Callable[[], Engine]


class EngineError(RuntimeError):
    """An engine could not be launched; the text says why."""


def spec_of(plan: Plan, key: RankKey, address: str) -> EngineSpec:
    """The rank that `key` names in `plan`.

    Raises:
        LookupError: the plan has no such instance, attempt, stage or rank.
    """
    for instance in plan.instances:
        if (instance.id, instance.attempt) == key.of:
            stage = next((stage for stage in instance.stages if stage.index == key.stage), None)
            if stage is not None:
                rank = stage.ranks[key.rank]
                return EngineSpec(instance, plan.template(instance), stage, rank, key, address)
    raise LookupError(f"plan {plan.id} has no {key}")
