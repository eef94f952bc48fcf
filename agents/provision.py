"""What a source of nodes must be able to do. `static` and `local` do; a cloud's is to be written like them.

The life of a node, and who moves it on:

| the node is | moved by | call |
| --- | --- | --- |
| asked for | a plan has the claim | `create`, which may take minutes; the grant goes on the log |
| registered | its agent, told of its claim by whoever created it, by heartbeat | - |
| in use, drained | plans: instances come and go; a claim leaves the plan only when its node is empty | - |
| given back | no plan has the claim any more | `release` until it is, a record on the log, `forget` |
| lost | the cloud takes it, or it never came up | `gone`, a record on the log, `forget` |

A node is tagged with its fleet and its claim. So the cloud itself remembers whose it is: whoever reconciles
(`agents.provision_desk`) keeps nothing that it could lose, and fleets may share an account.
What the calls are with SkyPilot and Kubernetes: docs/decisions/2026-11-29-life-of-a-node.md.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.events import AvailabilityOffered
from schemas.plans import Claim
from schemas.problems import Pool

Place = tuple[Pool, str]
"""Where nodes come from, and of which configuration."""


OUT_OF_STOCK_MS = 10_000
"""When to ask again where the provisioner counts the nodes itself: its stock says when there are more."""


def place_of(claim: Claim) -> Place:
    return (claim.pool, claim.configuration)


class Refused(Exception):
    """The cloud has no node for a claim now, or never will have (`terminal`).

    Terminal is what waiting does not mend: a quota of zero, an unknown configuration, credentials that
    are not accepted. Its place is not asked again until the provisioner starts anew.
    """

    def __init__(self, reason: str, *, terminal: bool = False, retry_after_ms: int = 60_000) -> None:
        super().__init__(reason)
        self.reason = reason
        self.terminal = terminal
        self.retry_after_ms = retry_after_ms
        """When to ask again at the earliest; what follows it again and again waits longer each time."""


class Unanswered(Exception):
    """The cloud did not answer. Nothing is known, so nothing is done; it is asked again, ever less often."""


@dataclass(frozen=True)
class Gone:
    """A held node that is no more, and why."""

    claim: str
    node: str
    reason: str


class Provisioner(Protocol):
    """A source of nodes for one fleet. It sees and touches nodes with this fleet's tag only.

    All methods may be repeated, since after a crash they are, and all may raise Unanswered. What takes long
    must leave the event loop free: `create` and `release` run for several claims at the same time, but never
    twice for one.
    """

    @property
    def name(self) -> str:
        """Source of its offers; one name, one owner."""
        ...

    @property
    def fleet(self) -> str:
        """First half of a node's tag; the second is its claim's id."""
        ...

    @property
    def places(self) -> Collection[Place]:
        """What it covers. No two provisioners share a place: a pool has the least of its sources' stocks."""
        ...

    async def create(self, claim: Claim) -> str:
        """Get the one node with this claim's tag and return its name once it is there; it may be already.

        Its agent is started with `--claim`, or finds itself in the plan by its name. Whoever calls may be
        killed meanwhile: what was begun is tagged from the start, so that it is held, or asked for again.

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
        """Claim -> node of all that has our tag, from the moment that `create` returned, until forgotten.

        What is still being made after a restart may be in it: should it never come up, `gone` says so.
        """
        ...

    async def gone(self) -> Sequence[Gone]:
        """Held nodes that vanished by themselves, with the cloud's reason; until forgotten.

        One that vanished without a trace need not be in it: that it is not held any more is noticed.
        """
        ...

    async def stock(self) -> Mapping[Place, int]:
        """How many more nodes could be had of each of its places, as far as is known without trying."""
        ...

    def hear(self, offer: AvailabilityOffered) -> None:
        """What another source says about availability. A real cloud has no use for it."""
        ...
