"""The core as scripts: what a plan says of instances and nodes, and when it says it."""

from schemas.events import NodeSilent, StageReport
from tests.streams.doubles import EAST, contact, greedy, policy
from tests.streams.world import World, settled


def test_a_plan_says_where_the_door_is_and_that_its_answers_are_checked() -> None:
    world = settled(1.0)
    name = next(iter(world.nodes))
    (serving,) = world.plans[-1].instances
    assert (serving.endpoint, serving.verified) == (f"{name}:8000", True)
    starting = [i for p in world.plans for i in p.instances if i.role == "starting"]
    assert {(i.endpoint, i.verified) for i in starting} == {(None, None)}


def test_the_door_of_several_stages_is_the_heads() -> None:
    world = World(policy(), solver=lambda p: greedy(p, ("1xL4",) * 3))
    world.offer(EAST, 1.0, 4)
    world.demand(1.0, windows=2)
    (instance,) = world.plans[-1].instances
    head = world.plans[-1].claim(instance.stages[0].ranks[0].claim).node
    assert instance.endpoint == f"{head}:8000"


def test_what_drains_has_no_door() -> None:
    world = World(policy(scale_down_after_ms=10_000))
    world.offer(EAST, 1.0, 4)
    world.demand(2.0, windows=2)
    world.demand(1.0, windows=4)
    draining = [i for p in world.plans for i in p.instances if i.role == "draining"]
    assert draining
    assert {i.endpoint for i in draining} == {None}


def test_a_door_that_moves_is_published() -> None:
    world = settled(1.0)
    name = next(iter(world.nodes))
    (stage,) = world.nodes[name].stages
    world.change(name, stages=(stage.model_copy(update={"endpoint": "elsewhere:1"}),))
    world.wait(1_000)
    assert [i.endpoint for i in world.plans[-1].instances] == ["elsewhere:1"]


def test_a_plan_has_the_contact_of_every_node_and_the_newest_restarts_nothing() -> None:
    world = settled(1.0)
    name = next(iter(world.nodes))
    before = world.plans[-1]
    assert [c.contact for c in before.claims] == [contact(1)]
    world.change(name, contact=contact(99))
    world.wait(1_000)
    after = world.plans[-1]
    assert after.order > before.order
    assert [c.contact for c in after.claims] == [contact(99)]
    assert after.instances == before.instances


def test_a_contact_alone_delays_no_start() -> None:
    world = World(policy(), solver=lambda p: greedy(p, ("1xL4", "1xL4")))
    world.offer(EAST, 1.0, 2)
    world.demand(1.0, windows=2)
    told = [p for p in world.plans if not p.instances]
    assert all(c.contact is None for p in told for c in p.claims), "no plan only to name a contact"


def test_blindness_is_published_and_taken_back() -> None:
    world = settled(4.0)
    for name in list(world.nodes)[:3]:
        world.say(NodeSilent(partition=0, node=name, last_heard_ms=world.now_ms))
    world.wait(15_000)
    for name in list(world.nodes)[:3]:
        world.report(name)
    world.wait(1_000)
    assert [p.blind for p in world.plans][-2:] == [True, False]
    assert len(world.plans[-1].instances) == 4


def test_phases_of_a_start_are_no_news_for_anybody() -> None:
    world = World(policy())
    world.startup_ms = 60_000
    world.offer(EAST, 1.0, 1)
    world.demand(1.0)
    world.wait(5_000)
    name = next(iter(world.nodes))
    (stage,) = world.nodes[name].stages
    before = len(world.plans)
    for phase in ("loading", "compiling", "verifying"):
        said = StageReport.model_validate(stage.model_dump() | {"phase": phase})
        world.change(name, stages=(said,))
        world.wait(1_000)
    assert world.plans[before:] == []
