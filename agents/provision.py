"""Nodes for the plan's claims: what a cloud must be able to do, and what to ask of it.

A claim's id is the tag of its node, so the cloud itself remembers what is held, and whoever reconciles
(`agents.provision_run`) keeps nothing that it could lose.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.events import AvailabilityOffered
from schemas.plans import Claim
from schemas.problems import Pool

Place = tuple[Pool, str]
"""Where nodes come from, and of which configuration."""


class Refused(Exception):
    """The cloud has no node for a claim now, or never will have (`terminal`)."""

    def __init__(self, reason: str, *, terminal: bool = False, retry_after_ms: int = 60_000) -> None:
        super().__init__(reason)
        self.reason = reason
        self.terminal = terminal
        self.retry_after_ms = retry_after_ms


@dataclass(frozen=True)
class Gone:
    """A held node that is no more, and why."""

    claim: str
    node: str
    reason: str


class Provisioner(Protocol):
    """A source of nodes. All methods may be repeated: after a crash they are.

    `release`, then a record on the log, then `forget`: a crash in between repeats the first two.
    """

    @property
    def name(self) -> str:
        """Source of its offers; one name, one owner."""
        ...

    @property
    def places(self) -> Collection[Place]:
        """What it covers. No two provisioners share a place: a pool has the least of its sources' stocks."""
        ...

    async def create(self, claim: Claim) -> str:
        """Get a node, tagged with the claim's id, and return its name; it registers by its own heartbeat.

        Raises:
            Refused: there is none; nothing is left behind.
        """
        ...

    async def release(self, claim: str, node: str) -> bool:
        """Give the node back. True once it is; False while the cloud is still at it: ask again."""
        ...

    async def forget(self, claim: str) -> None:
        """The log has the end of this claim: drop its tag."""
        ...

    async def held(self) -> Mapping[str, str]:
        """Claim -> node, by tag; until forgotten."""
        ...

    async def gone(self) -> Sequence[Gone]:
        """Held nodes that vanished by themselves; until forgotten."""
        ...

    async def stock(self) -> Mapping[Place, int]:
        """How many more nodes could be had, for each of its places."""
        ...

    def hear(self, offer: AvailabilityOffered) -> None:
        """What another source says about availability. A real cloud has no use for it."""
        ...


# --- what to do ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Release:
    claim: str
    node: str


@dataclass(frozen=True)
class Grant:
    """A node is held that the plan does not know of yet: say it (again)."""

    claim: str
    node: str


@dataclass(frozen=True)
class Miss:
    """The plan counts on a node that is not held."""

    claim: str
    node: str


@dataclass(frozen=True)
class Create:
    claim: Claim


Action = Release | Grant | Miss | Create


def reconcile(wanted: Iterable[Claim], held: Mapping[str, str], said: Collection[str]) -> tuple[Action, ...]:
    """What turns `held` into what is wanted, releases first, so that what they free can be had again.

    A release needs no waiting: the core drops a claim from the plan only after the stages on its node have
    drained, so absence from the newest plan is enough.

    Args:
        wanted: the claims of the newest plan that this provisioner covers.
        held: claim -> node.
        said: claims whose grant, refusal or loss is on the log already: none of that is said twice, and
            a claim that was refused or lost its node never gets another. The core makes a new claim.
    """
    claims = {claim.id: claim for claim in wanted}
    releases = [Release(claim, node) for claim, node in held.items() if claim not in claims]
    answers: list[Action] = []
    for claim in claims.values():
        if claim.id in said:
            continue
        node = held.get(claim.id)
        if node is not None:
            if claim.node != node:
                answers.append(Grant(claim.id, node))
        elif claim.node is not None:
            answers.append(Miss(claim.id, claim.node))
        else:
            answers.append(Create(claim))
    return (*releases, *answers)
