"""The core as scripts: instances from their binding to their end."""

from schemas.problems import Answer, Problem
from streams.core.effects import Solve
from tests.streams.doubles import EAST, WEST, greedy, policy
from tests.streams.world import World, settled


def test_an_answer_that_cannot_be_bound_is_asked_for_less_and_less_often() -> None:
    def elsewhere(problem: Problem) -> Answer:
        answer = greedy(problem)
        nowhere = EAST.model_copy(update={"region": "nowhere"})
        return answer.model_copy(
            update={"chosen": tuple(c.model_copy(update={"pool": nowhere}) for c in answer.chosen)}
        )

    world = World(policy(adjust_interval_ms=360_000), solver=elsewhere)
    world.offer(EAST, 1.0, 2)
    world.demand(1.0)
    world.wait(600_000)
    assert sum(isinstance(e, Solve) for _, e in world.effects) <= 14


def test_where_nodes_must_change_hands_one_instance_at_a_time_does() -> None:
    world = World(policy())
    world.offer(EAST, 1.0, 4)
    world.demand(4.0, windows=2)
    before = len(world.plans)
    world.solver = lambda p: greedy(p, ("1xL4", "1xL4"), 2.5)
    world.demand(5.0, windows=6)
    assert world.targets == ["first", "demand_up"]
    capacity = [
        sum(i.rating.throughput for i in p.instances if i.role == "serving")
        for p in world.plans[before - 1 :]
    ]
    assert min(capacity) >= 2.0, "half of it serves at every moment"
    assert world.serving() == 2


def test_a_change_of_which_the_drain_never_ends_uses_no_more_than_there_is() -> None:
    """ai-dynamo/dynamo#12428: starting works, draining fails."""
    world = World(policy())
    world.offer(EAST, 1.0, 4)
    world.demand(4.0, windows=2)
    before = len(world.plans)
    world.drain_ms = 10**9
    world.solver = lambda p: greedy(p, ("1xL4", "1xL4"), 2.5)
    world.demand(5.0, windows=30)
    assert world.targets == ["first", "demand_up"]
    for plan in world.plans[before - 1 :]:
        assert len(plan.claims) <= 4
        used = [claim for i in plan.instances for claim in i.claims]
        assert len(used) == len(set(used)), "nothing starts where something may still run"
        assert sum(i.role == "serving" for i in plan.instances) >= 2, "and the rest goes on serving"


def test_an_instance_that_is_never_ready_is_tried_again_elsewhere() -> None:
    world = World(policy(start_deadline_ms=60_000))
    world.startup_ms = 10**9
    world.offer(EAST, 1.0, 1)
    world.offer(WEST, 2.0, 1)
    world.demand(1.0, windows=20)
    attempts = {i.attempt for p in world.plans for i in p.instances}
    assert attempts == {1, 2, 3}
    world.startup_ms = 2_000
    world.demand(1.0, windows=8)
    assert world.serving() == 1


def test_a_drain_that_never_ends_is_told_and_its_nodes_are_given_back() -> None:
    world = World(policy(scale_down_after_ms=10_000, drain_deadline_ms=60_000))
    world.offer(EAST, 1.0, 4)
    world.demand(2.0, windows=2)
    world.drain_ms = 10**9
    world.demand(1.0, windows=20)
    assert any(name.startswith("InstanceStuck") for name in world.alerts)
    assert len(world.plans[-1].claims) == 1


def test_a_class_has_a_drain_deadline_of_its_own() -> None:
    (served,) = policy().served
    own = served.model_copy(update={"drain_deadline_ms": 60_000})
    world = World(policy(served=(own,), scale_down_after_ms=10_000))
    world.offer(EAST, 1.0, 4)
    world.demand(2.0, windows=2)
    world.drain_ms = 10**9
    world.demand(1.0, windows=20)
    assert {i.drain_deadline_ms for p in world.plans for i in p.instances} == {60_000}
    assert any(name.startswith("InstanceStuck") for name in world.alerts)
    assert len(world.plans[-1].claims) == 1


def test_another_deadline_is_for_what_starts_from_now_on() -> None:
    """Nodes know the one of the plan they started by; both must go by the same."""
    world = World(policy(scale_down_after_ms=10_000))
    world.offer(EAST, 1.0, 4)
    world.demand(2.0, windows=2)
    world.given = policy(scale_down_after_ms=10_000, drain_deadline_ms=60_000)
    world.lead("b")
    world.drain_ms = 10**9
    world.demand(1.0, windows=20)
    assert {i.drain_deadline_ms for p in world.plans for i in p.instances} == {600_000}
    assert not any(name.startswith("InstanceStuck") for name in world.alerts)
    world.demand(3.0, windows=2)
    assert {i.drain_deadline_ms for i in world.plans[-1].instances} == {600_000, 60_000}


def test_steps_that_come_together_go_out_together() -> None:
    world = World(policy())
    world.offer(EAST, 1.0, 40)
    world.demand(30.0, windows=2)
    assert world.serving() == 30
    assert len(world.plans) <= 12


def test_a_failed_stage_is_tried_again_on_its_node_with_back_off_then_elsewhere() -> None:
    """ai-dynamo/dynamo#4420."""
    world = settled(1.0)
    (instance,) = world.plans[-1].instances
    name = next(iter(world.nodes))
    for attempt in (1, 2, 3):
        world.set_stage(name, (instance.id, attempt, 0), "failed", "killed by hand")
        world.wait(20_000)
    attempts = {i.attempt for p in world.plans for i in p.instances if i.id == instance.id}
    assert attempts == {1, 2, 3}
    world.demand(1.0, windows=3)
    assert world.targets == ["first", "instance_failed"]
    assert world.serving() == 1
    assert {c.node for c in world.plans[-1].claims}.isdisjoint({name})


def test_a_refusal_is_remembered_and_planned_around() -> None:
    world = World(policy())
    world.offer(EAST, 1.0, 3)
    world.offer(WEST, 2.0, 3)
    world.level[EAST.key, "1xL4"] = 0  # the cloud says it has them and then refuses
    world.demand(2.0, windows=3)
    assert world.targets[:2] == ["first", "claim_refused"]
    assert world.serving() == 2
    assert {c.pool for c in world.plans[-1].claims} == {WEST}


def test_an_instance_gets_all_of_its_nodes_or_gives_them_back() -> None:
    """kubernetes/autoscaler#5170."""
    world = World(policy(), solver=lambda p: greedy(p, nodes=("1xL4",) * 4))
    world.offer(EAST, 1.0, 4)
    world.level[EAST.key, "1xL4"] = 3
    world.demand(1.0, windows=3)
    assert not world.granted, "three of four nodes came: released"
    assert all(not plan.instances for plan in world.plans)


def test_several_nodes_make_one_instance() -> None:
    world = World(policy(), solver=lambda p: greedy(p, nodes=("1xL4",) * 3))
    world.offer(EAST, 1.0, 4)
    world.demand(1.0, windows=2)
    (instance,) = world.plans[-1].instances
    assert [(s.first_layer, s.layers) for s in instance.stages] == [(0, 2), (2, 2), (4, 2)]
    assert instance.role == "serving"


def test_scaling_down_cancels_the_one_that_is_starting() -> None:
    """ray-project/ray#43034."""
    world = World(policy(scale_down_after_ms=10_000))
    world.offer(EAST, 1.0, 4)
    world.demand(1.0, windows=2)
    (kept,) = world.plans[-1].instances
    world.startup_ms = 10_000_000
    world.demand(2.0, windows=2)
    world.demand(1.0, windows=3)
    (left,) = world.plans[-1].instances
    assert left.id == kept.id
