"""Nodes that already run: agents somebody started, listed in an inventory.

A claim gets a free one of its pool and configuration; the agent learns it from the plan (`Claim.node`).
Which node is whose is kept in a file, since the nodes carry no tag of their own. An inventory is one fleet's:
an agent hears one fleet's plans.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from pydantic import model_validator

from agents.files import write_atomically
from agents.provision import OUT_OF_STOCK_MS, Gone, Place, Refused, place_of
from schemas.base import Frozen, Name
from schemas.events import AvailabilityOffered
from schemas.plans import Claim
from schemas.problems import Pool


class StaticNode(Frozen):
    """A node agent that runs, by the name it registers with."""

    name: Name
    pool: Pool
    configuration: Name

    @property
    def place(self) -> Place:
        return (self.pool, self.configuration)


class Inventory(Frozen):
    """All static nodes; as YAML: `nodes: [{name: ..., pool: {...}, configuration: ...}]`."""

    nodes: tuple[StaticNode, ...]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        twice = [name for name, n in Counter(node.name for node in self.nodes).items() if n > 1]
        if twice:
            raise ValueError(f"nodes: {twice} listed twice")
        return self


class Assignment(Frozen):
    """Whose the nodes are, and in which order the free ones are given out."""

    fleet: Name | None = None
    """None in a file from before there was one."""
    held: dict[str, str] = {}
    free: tuple[str, ...] = ()


class StaticProvisioner:
    """Grants listed nodes. Released ones go to the back of the queue, so a dead one is not given out at once.

    Args:
        state: the file that holds the assignment.

    Raises:
        OSError, pydantic.ValidationError: the file is there and cannot be read.
        ValueError: it is another fleet's.
    """

    def __init__(self, inventory: Inventory, state: Path, fleet: str, name: str = "static") -> None:
        self.name = name
        self.fleet = fleet
        self._nodes = {node.name: node for node in inventory.nodes}
        self._state = state
        before = Assignment.model_validate_json(state.read_text()) if state.exists() else Assignment()
        if before.fleet not in (None, fleet):
            raise ValueError(f"{state}: holds the nodes of fleet {before.fleet!r}, expected {fleet!r}")
        taken = set(before.held.values())
        queue = dict.fromkeys((*before.free, *self._nodes))  # in order, each once
        free = tuple(node for node in queue if node in self._nodes and node not in taken)
        self._now = Assignment(fleet=fleet, held=before.held, free=free)

    @property
    def places(self) -> frozenset[Place]:
        return frozenset(node.place for node in self._nodes.values())

    async def create(self, claim: Claim) -> str:
        if claim.id in self._now.held:
            return self._now.held[claim.id]
        place = place_of(claim)
        node = next((node for node in self._now.free if self._nodes[node].place == place), None)
        if node is None:
            every = f"every {claim.configuration} in {claim.pool.key}"
            raise Refused(f"out of stock: {every} is taken", retry_after_ms=OUT_OF_STOCK_MS)
        self._keep({**self._now.held, claim.id: node}, tuple(n for n in self._now.free if n != node))
        return node

    async def release(self, claim: str, node: str) -> bool:  # noqa: ARG002  there is nothing to stop
        return True

    async def forget(self, claim: str) -> None:
        held = dict(self._now.held)
        node = held.pop(claim, None)
        if node is not None:
            self._keep(held, (*self._now.free, *([node] if node in self._nodes else [])))

    async def held(self) -> Mapping[str, str]:
        return self._now.held

    async def gone(self) -> Sequence[Gone]:
        """Only nodes that the inventory no longer lists: whether an agent lives is seen by its heartbeats."""
        return [
            Gone(claim, node, "no longer in the inventory")
            for claim, node in self._now.held.items()
            if node not in self._nodes
        ]

    async def stock(self) -> Mapping[Place, int]:
        free = Counter(self._nodes[node].place for node in self._now.free)
        return {place: free[place] for place in self.places}

    def hear(self, offer: AvailabilityOffered) -> None:
        """Its stock is its list."""

    def _keep(self, held: dict[str, str], free: tuple[str, ...]) -> None:
        after = Assignment(fleet=self.fleet, held=held, free=free)
        write_atomically(self._state, after.model_dump_json(indent=1))
        self._now = after
