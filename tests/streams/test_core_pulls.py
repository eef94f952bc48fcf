"""The core as scripts: who may pull weights, and in which order."""

from schemas.plans import Plan
from tests.streams.doubles import EAST, WEST, greedy, policy
from tests.streams.world import World


def pulling(world: World) -> list[set[str]]:
    """Nodes with a slot, in each plan."""
    return [{plan.claim(c).node or "" for c in plan.pulls} for plan in world.plans]


def slots(**given: object) -> World:
    world = World(policy(pull_slots=2, **given))
    world.pull_ms = 10_000
    return world


def test_so_many_nodes_of_a_region_pull_at_once_and_all_get_their_turn() -> None:
    world = slots()
    world.offer(EAST, 1.0, 8)
    world.demand(5.0, windows=6)
    assert world.serving() == 5
    assert max(len(nodes) for nodes in pulling(world)) == 2
    assert set().union(*pulling(world)) == set(world.nodes)
    assert world.plans[-1].pulls == ()


def test_regions_do_not_wait_for_each_other() -> None:
    world = slots()
    world.offer(EAST, 1.0, 2)
    world.offer(WEST, 2.0, 2)
    world.demand(4.0)
    world.wait(5_000)
    assert [len(nodes) for nodes in pulling(world)][-1] == 4


def test_who_waits_longest_is_next() -> None:
    world = slots()
    world.pull_ms = 60_000
    world.offer(EAST, 1.0, 8)
    world.demand(3.0, windows=2)
    third = next(iter(set(world.nodes) - pulling(world)[-1]))
    world.demand(6.0, windows=2)
    world.wait(40_000)
    assert third in pulling(world)[-1]


def test_a_slot_is_kept_while_it_is_used_and_freed_with_the_instance() -> None:
    world = slots(scale_down_after_ms=10_000)
    world.pull_ms = 10**9
    world.offer(EAST, 1.0, 8)
    world.demand(3.0, windows=2)
    first = pulling(world)[-1]
    assert len(first) == 2
    world.demand(0.0, windows=4)
    assert world.plans[-1].pulls == ()
    assert not world.state.pulls


def test_a_node_that_waits_for_a_slot_is_not_late() -> None:
    world = World(policy(pull_slots=1, start_deadline_ms=60_000))
    world.pull_ms = 50_000
    world.offer(EAST, 1.0, 4)
    world.demand(4.0, windows=30)
    assert world.serving() == 4
    assert {i.attempt for p in world.plans for i in p.instances} == {1}


def test_a_slot_that_is_used_too_long_ends_with_the_attempt() -> None:
    world = World(policy(pull_slots=1, start_deadline_ms=60_000))
    world.pull_ms = 10**9
    world.offer(EAST, 1.0, 4)
    world.demand(2.0, windows=2)
    (first,) = pulling(world)[-1]
    world.demand(2.0, windows=7)
    assert pulling(world)[-1] != {first}, "its turn is over"


def test_what_is_downloading_has_a_slot_whoever_gave_it() -> None:
    world = slots()
    world.pull_ms = 10**9
    world.offer(EAST, 1.0, 8)
    world.demand(3.0, windows=2)
    third = next(iter(set(world.nodes) - pulling(world)[-1]))
    (stage,) = world.nodes[third].stages
    world.change(third, stages=(stage.model_copy(update={"phase": "downloading"}),))
    world.wait(1_000)
    assert len(pulling(world)[-1]) == 3
    world.demand(4.0, windows=2)
    assert len(pulling(world)[-1]) == 3, "nothing is free until one is done"


def test_an_instance_of_several_nodes_pulls_on_each() -> None:
    world = World(policy(pull_slots=1), solver=lambda p: greedy(p, ("1xL4", "1xL4")))
    world.pull_ms = 5_000
    world.offer(EAST, 1.0, 2)
    world.demand(1.0, windows=4)
    assert world.serving() == 1
    plans: list[Plan] = [p for p in world.plans if p.pulls]
    assert {len(p.pulls) for p in plans} == {1}


def test_a_download_that_hangs_is_late_though_its_peer_waits_for_the_slot() -> None:
    world = World(
        policy(pull_slots=1, start_deadline_ms=60_000), solver=lambda p: greedy(p, ("1xL4", "1xL4"))
    )
    world.pull_ms = 10**9
    world.offer(EAST, 1.0, 2)
    world.offer(WEST, 2.0, 2)
    world.demand(1.0, windows=30)
    assert {i.attempt for p in world.plans for i in p.instances} == {1, 2, 3}
    assert {i.pool for p in world.plans for i in p.instances} == {EAST, WEST}, "elsewhere after three"
    world.pull_ms = 5_000
    world.demand(1.0, windows=12)
    assert world.serving() == 1
