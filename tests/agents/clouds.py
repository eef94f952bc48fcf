"""A cloud in memory for whoever tests what is done about claims, and plans that claim from it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agents.provision import Gone, Place, Refused, Unanswered
from schemas.events import AvailabilityOffered
from schemas.plans import Claim, Plan, Target
from schemas.problems import Pool

POOL = Pool(cloud="gcp", region="us-central1", market="reserved")
PLACE: Place = (POOL, "1xL4")


def claim(name: str, node: str | None = None, configuration: str = "1xL4") -> Claim:
    return Claim(id=name, configuration=configuration, pool=POOL, usd_per_hour=0.7, node=node)


def plan(
    *claims: Claim,
    sequence: int = 1,
    epoch: int = 1,
    lineage: int = 1,
    blind: bool = False,
    fleet: str = "t",
) -> Plan:
    target = Target(
        id="t1",
        reason="demand",
        cause_offset=1,
        problem="p1",
        inputs="0" * 16,
        method="test",
        usd_per_hour=0.7,
        bound_usd_per_hour=0.7,
        gap=0.0,
    )
    return Plan(
        fleet=fleet,
        lineage=lineage,
        epoch=epoch,
        sequence=sequence,
        at_ms=1,
        target=target,
        claims=claims,
        blind=blind,
    )


@dataclass
class Cloud:
    """A cloud of so many nodes for one fleet; it survives whoever asks it."""

    size: int
    name: str = "cloud"
    fleet: str = "t"
    nodes: dict[str, str] = field(default_factory=dict)
    lost: list[Gone] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Claims it was asked to create a node for, in order."""
    slow: bool = False
    """A release takes its time."""
    minutes: asyncio.Event | None = None
    """A creation takes until this is set."""
    away: bool = False
    """It does not answer."""
    refusal: Refused = field(default_factory=lambda: Refused("out of stock: none left", retry_after_ms=5_000))
    places: frozenset[Place] = frozenset({PLACE})

    async def create(self, claim: Claim) -> str:
        self.asked.append(claim.id)
        if self.minutes is not None:
            await self.minutes.wait()
        self._answer()
        if len(self.nodes) >= self.size:
            raise self.refusal
        return self.nodes.setdefault(claim.id, f"n-{claim.id}")

    async def release(self, claim: str, node: str) -> bool:
        self._answer()
        assert self.nodes.get(claim) == node
        return not self.slow

    async def forget(self, claim: str) -> None:
        self.nodes.pop(claim, None)
        self.lost = [loss for loss in self.lost if loss.claim != claim]

    async def held(self) -> Mapping[str, str]:
        self._answer()
        return dict(self.nodes)

    async def gone(self) -> Sequence[Gone]:
        self._answer()
        return tuple(self.lost)

    async def stock(self) -> Mapping[Place, int]:
        return {PLACE: self.size - len(self.nodes)}

    def hear(self, offer: AvailabilityOffered) -> None: ...

    def _answer(self) -> None:
        if self.away:
            raise Unanswered("504")
