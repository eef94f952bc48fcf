"""The core as scripts: an instance has one engine version, whatever its nodes become."""

from schemas.events import NodeReported
from streams.core.effects import Publish
from tests.streams.doubles import EAST, WEST, greedy, policy
from tests.streams.world import World, settled


def pairs(solver_nodes: int = 2, **given: object) -> World:
    """A world whose instances take several nodes each."""
    return World(policy(**given), solver=lambda p: greedy(p, ("1xL4",) * solver_nodes))


def never_mixed(world: World) -> bool:
    """Whether all nodes of an attempt had its version when it came into the plan, and it kept its name."""
    published = {e.plan.id: offset for offset, e in reversed(world.effects) if isinstance(e, Publish)}
    entered: dict[tuple[str, int], str | None] = {}
    for plan in world.plans:
        engines = {
            r.event.report.node: r.event.report.engine
            for r in world.records[: published[plan.id] + 1]
            if isinstance(r.event, NodeReported)
        }
        for instance in plan.instances:
            key = (instance.id, instance.attempt)
            nodes = {engines[plan.claim(claim).node or ""] for claim in instance.claims}
            if key not in entered and nodes != {instance.engine}:
                return False
            if entered.setdefault(key, instance.engine) != instance.engine:
                return False
    return True


def test_an_instance_names_the_version_of_its_nodes() -> None:
    world = settled(1.0)
    assert {i.engine for p in world.plans for i in p.instances} == {"simulated-1"}


def test_nodes_that_turn_out_different_are_not_combined_and_others_are_asked_for() -> None:
    world = pairs()
    world.static(EAST, 1.0, "v1", "v2", "v1", "v2")
    world.demand(1.0, windows=2)
    (instance,) = world.plans[-1].instances
    assert instance.role == "serving"
    engines = {world.nodes[world.plans[-1].claim(c).node or ""].engine for c in instance.claims}
    assert engines == {instance.engine}
    assert never_mixed(world)
    assert len(world.plans[-1].claims) == 2, "what did not fit is given back"
    assert world.targets == ["first"], "without another solve"


def test_held_nodes_of_two_versions_are_never_combined() -> None:
    world = pairs(solver_nodes=1)
    world.static(EAST, 1.0, "v1", "v2", "v1", "v2")
    world.demand(4.0, windows=2)
    assert world.serving() == 4
    world.solver = lambda p: greedy(p, ("1xL4", "1xL4"), 2.5)
    world.demand(5.0, windows=8)
    assert world.serving() == 2
    assert sorted(i.engine or "" for i in world.plans[-1].instances) == ["v1", "v2"]
    assert never_mixed(world)


def test_a_cloud_that_gives_a_newer_version_now_costs_one_node_more_and_no_loop() -> None:
    world = pairs()
    world.offer(EAST, 1.0, 8)
    world.demand(1.0)
    world.wait(100)
    world.wait(1)  # the plan that asks for two nodes is out
    world.engine = "simulated-2"
    first, *_ = sorted(world.nodes)
    world.nodes[first] = world.nodes[first].model_copy(update={"engine": "simulated-1"})
    for name in sorted(world.nodes)[1:]:
        world.nodes[name] = world.nodes[name].model_copy(update={"engine": "simulated-2"})
    world.demand(1.0)
    (instance,) = world.plans[-1].instances
    assert (instance.role, instance.engine) == ("serving", "simulated-2")
    assert len({c.id for p in world.plans for c in p.claims}) == 3
    assert len(world.plans[-1].claims) == 2
    assert never_mixed(world)


def test_too_few_of_every_version_is_a_refusal_that_is_named_and_tried_once_a_back_off() -> None:
    world = pairs(unfit_ms=600_000)
    world.static(EAST, 1.0, "v1", "v2")
    world.offer(WEST, 9.0, 0)
    claims = []
    for _ in range(4):
        world.demand(1.0, windows=60)
        claims.append(len({c.id for p in world.plans for c in p.claims}))
    assert not any(p.instances for p in world.plans)
    assert [u.binding for u in world.plans[-1].target.unmet] == ["refused: engine_version"]
    assert claims == [3, 6, 6, 9], "two nodes and one more that is not there, after 10 min, after 20 more"


def test_the_upgrade_of_the_odd_node_ends_the_wait() -> None:
    world = pairs()
    one, two = world.static(EAST, 1.0, "v1", "v2")
    world.demand(1.0, windows=2)
    assert world.serving() == 0
    world.change(one, engine="v2")
    world.demand(1.0, windows=8)
    assert world.serving() == 1
    assert [i.engine for i in world.plans[-1].instances] == ["v2"]
    assert never_mixed(world)
    assert two in {c.node for c in world.plans[-1].claims}


def test_a_rolling_upgrade_restarts_nothing_and_the_next_attempt_takes_the_new_version() -> None:
    world = settled(2.0)
    before = world.plans[-1].instances
    for name in sorted(world.nodes):
        world.change(name, engine="simulated-2")
        world.wait(5_000)
    assert world.plans[-1].instances == before
    first = before[0]
    name = world.plans[-1].claim(next(iter(first.claims))).node or ""
    world.set_stage(name, (first.id, 1, 0), "failed", "killed by hand")
    world.demand(2.0)
    after = {i.id: (i.attempt, i.engine, i.role) for i in world.plans[-1].instances}
    assert after == {first.id: (2, "simulated-2", "serving"), before[1].id: (1, "simulated-1", "serving")}


def test_a_failure_half_way_through_an_upgrade_waits_for_nodes_that_agree() -> None:
    world = pairs()
    one, two = world.static(EAST, 1.0, "v1", "v1")
    world.demand(1.0, windows=2)
    (instance,) = world.plans[-1].instances
    world.change(one, engine="v2")
    world.set_stage(one, (instance.id, 1, 0), "failed", "killed by hand")
    world.demand(1.0, windows=2)
    assert world.serving() == 0
    world.change(two, engine="v2")
    world.demand(1.0, windows=2)
    assert [(i.role, i.engine) for i in world.plans[-1].instances] == [("serving", "v2")]
    assert never_mixed(world)


def test_a_refusal_for_the_version_alone_is_the_next_attempts_business() -> None:
    world = settled(1.0)
    (instance,) = world.plans[-1].instances
    (name,) = world.nodes
    world.change(name, engine="simulated-2")
    world.set_stage(name, (instance.id, 1, 0), "refused", "v1 wanted", refusal="engine_version")
    world.demand(1.0)
    assert [(i.id, i.attempt, i.engine, i.role) for i in world.plans[-1].instances] == [
        (instance.id, 2, "simulated-2", "serving")
    ]
    assert not world.state.refused_models


def test_nodes_that_are_all_different_are_each_asked_once_a_try() -> None:
    world = pairs()
    world.static(EAST, 1.0, "v1", "v2", "v3", "v4")
    world.demand(1.0, windows=30)
    assert not any(p.instances for p in world.plans)
    assert [u.binding for u in world.plans[-1].target.unmet] == ["refused: engine_version"]
    assert len({c.id for p in world.plans for c in p.claims}) <= 5
    assert world.plans[-1].claims == ()
