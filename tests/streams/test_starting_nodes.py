"""Nodes that are on their way: granted, no longer obtainable, and not yet heard of."""

from tests.streams.world import EAST, World, policy

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
