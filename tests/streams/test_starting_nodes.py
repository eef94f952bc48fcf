"""Nodes on their way in (granted, no longer obtainable, not yet heard of) and out (given back)."""

from schemas.events import ClaimReleased, NodeSilent
from tests.streams.doubles import EAST, policy
from tests.streams.world import World

REGISTERS_MS = 60_000


class SlowWorld(World):
    """A cloud whose nodes take a minute from the grant to their first heartbeat."""

    def __init__(self) -> None:
        super().__init__(policy(grant_timeout_ms=10 * REGISTERS_MS))
        self._booting: set[str] = set()

    def report(self, name: str) -> None:
        if name not in self._booting:
            self._booting.add(name)
            self.after(REGISTERS_MS, lambda: World.report(self, name))
        elif name in self.state.nodes:
            super().report(name)


def test_a_solve_while_nodes_start_gives_none_of_them_back() -> None:
    world = SlowWorld()
    world.offer(EAST, 1.0, 4)
    world.demand(2.0, windows=2)
    first = {claim.id for claim in world.plans[-1].claims}
    assert first
    assert not world.state.nodes, "still starting"
    world.demand(3.5, windows=2)
    assert world.targets[-1] == "demand_up"
    assert not world.state.nodes
    assert not world.plans[-1].target.unmet, "what is on its way counts as stock"
    assert first <= {claim.id for claim in world.plans[-1].claims}
    world.wait(3 * REGISTERS_MS)
    assert first <= {claim.id for claim in world.plans[-1].claims}
    assert world.serving() == 4
    assert len(world.targets) == 2, "nodes that register are no new stock"


def test_a_node_that_was_given_back_is_missed_by_nobody() -> None:
    world = World(policy())
    world.offer(EAST, 1.0, 4)
    world.demand(3.0, windows=2)
    world.wait(5_000)
    gone = {c.id: c.node for c in world.plans[-1].claims}
    world.demand(1.0, windows=9)
    for claim in world.plans[-1].claims:
        del gone[claim.id]
    assert len(gone) == 2
    for claim_id, node in gone.items():
        assert node in world.state.nodes
        world.say(ClaimReleased(claim=claim_id, node=node))
        assert node not in world.state.nodes
        assert node is not None
        world.say(NodeSilent(partition=0, node=node, last_heard_ms=world.now_ms))
    world.wait(60_000)
    assert not [name for name in world.alerts if name.startswith("NodeSuspect")]
