"""The core as scripts: events in, decisions out."""

from schemas.events import (
    ClaimGranted,
    ClaimReleased,
    DemandClosed,
    NodeGone,
    NodeSilent,
    Offer,
    OperatorRequested,
    PriceChanged,
    Solved,
)
from schemas.policy import ServedClass
from schemas.problems import Answer, Problem, Service, Template, Unmet
from streams.core.effects import Publish, PutAside, Solve
from streams.core.record import Malformed
from streams.core.state import State
from streams.core.step import step
from tests.streams.world import EAST, WEST, World, greedy, policy


def settled(rate: float = 3.0, **given: object) -> World:
    """A fleet that serves `rate` on four obtainable nodes in the east, more in the west."""
    world = World(policy(**given))
    world.offer(EAST, 1.0, 4)
    world.offer(WEST, 2.0, 4)
    world.demand(rate, windows=2)
    return world


def test_first_demand_brings_nodes_and_serves() -> None:
    world = settled(3.0)
    assert world.targets == ["first"]
    assert world.serving() == 3
    assert {c.pool for c in world.plans[-1].claims} == {EAST}
    assert world.state.pending_publish is None
    assert world.state.pending_solve is None


def test_demand_up_adds_and_takes_the_next_pool_when_the_first_is_full() -> None:
    world = settled(3.0)
    world.demand(6.0, windows=2)
    assert world.targets == ["first", "demand_up"]
    assert world.serving() == 6
    assert sorted(c.pool.region for c in world.plans[-1].claims) == ["east"] * 4 + ["west"] * 2


def test_demand_down_waits_for_the_look_back_then_drains_and_releases() -> None:
    world = settled(3.0)
    world.demand(1.0, windows=4)
    assert world.serving() == 3, "the look-back of 60 s still holds the peak"
    world.demand(1.0, windows=6)
    assert world.targets == ["first", "demand_down"]
    assert world.serving() == 1
    assert len(world.plans[-1].claims) == 1
    roles = [{i.role for i in plan.instances} for plan in world.plans]
    assert any("draining" in r for r in roles)


def test_silence_is_not_zero() -> None:
    world = settled(3.0)
    world.wait(600_000)
    assert world.serving() == 3
    assert "TelemetryStale:m/interactive" in world.alerts
    assert world.alerts.count("TelemetryStale:m/interactive") == 1


def test_no_load_starts_nothing() -> None:
    world = World(policy())
    world.offer(EAST, 1.0, 4)
    world.demand(0.0, windows=10)
    assert all(not plan.instances and not plan.claims for plan in world.plans)


def test_demand_that_wavers_around_a_boundary_changes_the_target_at_most_twice() -> None:
    world = World(policy(headroom=0.2, rate_windows=3, scale_down_after_ms=300_000))
    world.offer(EAST, 1.0, 20)
    for window in range(360):  # one hour
        world.demand(5.0 * (1.1 if window % 2 else 0.9))
    assert len(world.targets) <= 2 + 1, world.targets


def test_more_demand_than_there_is_names_what_is_unmet() -> None:
    world = World(policy())
    world.offer(EAST, 1.0, 2)
    world.demand(5.0, windows=3)
    assert world.serving() == 2
    (unmet,) = world.plans[-1].target.unmet
    assert unmet.binding == "stock of 1xL4"
    assert "UnmetDemand:m/interactive/both" in world.alerts
    assert len(world.targets) == 1, "the same shortage is solved once"


def test_new_stock_is_taken_while_demand_is_unmet() -> None:
    world = World(policy())
    world.offer(EAST, 1.0, 2)
    world.demand(5.0, windows=3)
    world.offer(EAST, 1.0, 5)
    world.demand(5.0, windows=2)
    assert world.targets == ["first", "availability"]
    assert world.serving() == 5


def test_a_price_that_moves_little_or_without_stock_moves_nothing() -> None:
    world = settled(3.0)
    world.level[WEST.key, "1xL4"] = 0
    world.stock(WEST)
    world.demand(3.0)
    solves = sum(isinstance(e, Solve) for _, e in world.effects)
    for usd in (1.94, 0.5):
        offer = Offer(pool=WEST, configuration="1xL4", source="test")
        world.say(PriceChanged(offer=offer, usd_per_hour=usd, at_ms=world.now_ms))
        world.demand(3.0)
    assert sum(isinstance(e, Solve) for _, e in world.effects) == solves
    assert world.targets == ["first"]


def test_a_price_that_saves_enough_moves_the_fleet_without_a_gap() -> None:
    world = settled(3.0)
    world.offer(WEST, 0.4, 4)
    before = len(world.plans)
    world.demand(3.0, windows=3)
    assert world.targets == ["first", "price"]
    assert {c.pool for c in world.plans[-1].claims} == {WEST}
    assert all(sum(i.role == "serving" for i in p.instances) >= 3 for p in world.plans[before - 1 :])


def test_a_price_in_a_wrong_unit_is_quarantined() -> None:
    world = settled(3.0)
    offer = Offer(pool=WEST, configuration="1xL4", source="test")
    world.say(PriceChanged(offer=offer, usd_per_hour=0.01, at_ms=world.now_ms + 1))
    world.demand(3.0, windows=2)
    assert world.alerts == ["PriceQuarantined:aws/west/*/spot|1xL4|test"]
    assert world.targets == ["first"]


def test_a_quarantined_price_that_is_said_for_an_hour_is_believed() -> None:
    world = settled(3.0)
    offer = Offer(pool=WEST, configuration="1xL4", source="test")
    for _ in range(62):
        world.say(PriceChanged(offer=offer, usd_per_hour=0.15, at_ms=world.now_ms + 1))
        world.demand(3.0, windows=6)
    assert world.targets == ["first", "price"]
    assert {c.pool for c in world.plans[-1].claims} == {WEST}


def test_a_model_nobody_serves_is_not_kept() -> None:
    world = settled(1.0)
    world.demand(9.0, model="made-up")
    assert set(world.state.demand) == {"m/interactive"}


def test_a_suspect_node_is_no_place_for_anything_new_and_no_reason_to_ask_again_and_again() -> None:
    served = [
        ServedClass(model=name, slo_class="interactive", mean_input_tokens=100.0, mean_output_tokens=10.0)
        for name in ("k", "m")
    ]
    world = World(policy(served=tuple(served)))
    world.offer(EAST, 1.0, 1)
    world.demand(1.0, windows=2)
    name = next(iter(world.nodes))
    world.dead.add(name)
    world.say(NodeSilent(partition=0, node=name, last_heard_ms=world.now_ms))
    world.silent_partitions = True
    before = sum(isinstance(e, Solve) for _, e in world.effects)
    world.demand(1.0, model="k")
    world.wait(300_000)
    assert sum(isinstance(e, Solve) for _, e in world.effects) - before <= 3


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


def test_no_saving_is_worth_an_interruption() -> None:
    world = World(policy())
    world.offer(EAST, 1.0, 4)
    world.demand(4.0, windows=2)
    before = len(world.plans)
    world.solver = lambda p: greedy(p, ("1xL4", "1xL4"), 2.0).model_copy(update={"usd_per_hour": 3.0})
    world.offer(EAST, 0.9, 4)
    world.demand(4.0, windows=6)
    assert world.targets == ["first"]
    assert all(sum(i.role == "serving" for i in p.instances) == 4 for p in world.plans[before - 1 :])


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


def test_an_answer_that_serves_less_is_not_taken_to_save() -> None:
    world = settled(3.0)
    unmet = Unmet(service=Service(model="m", slo_class="interactive"), rate=3.0, share=1.0, binding="test")
    world.solver = lambda p: greedy(p).model_copy(
        update={"chosen": (), "unmet": (unmet,), "usd_per_hour": 0.0}
    )
    world.offer(EAST, 0.9, 4)
    world.demand(3.0, windows=3)
    assert world.targets == ["first"]
    assert world.serving() == 3


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


def test_a_claim_given_back_in_use_is_lost_and_replaced() -> None:
    world = settled(2.0)
    claim = next(iter(world.state.claims.values())).claim
    world.say(ClaimReleased(claim=claim.id, node=claim.node))
    world._release(claim.node or "")
    world.demand(2.0, windows=2)
    assert world.targets == ["first", "node_lost"]
    assert world.serving() == 2


def test_the_first_node_of_a_claim_keeps_it() -> None:
    world = settled(1.0)
    claim = next(iter(world.state.claims.values())).claim
    before = len(world.plans)
    world.say(ClaimGranted(claim=claim.id, node="twin"))
    world.say(NodeGone(claim=claim.id, node="twin", reason="a mistake"))
    world.demand(1.0, windows=2)
    assert world.plans[before:] == []


def test_steps_that_come_together_go_out_together() -> None:
    world = World(policy())
    world.offer(EAST, 1.0, 40)
    world.demand(30.0, windows=2)
    assert world.serving() == 30
    assert len(world.plans) <= 12


def test_a_window_counts_once() -> None:
    world = settled(3.0)
    window = next(r.event for r in reversed(world.records) if isinstance(r.event, DemandClosed))
    before = world.state.demand["m/interactive"][-1]
    world.say(window.model_copy(update={"offered": 999}))
    assert world.state.demand["m/interactive"][-1] == before


def test_a_node_that_is_gone_is_planned_around() -> None:
    world = settled(3.0)
    victim = next(iter(world.nodes))
    world._release(victim)
    world.say(NodeGone(node=victim, reason="preempted"))
    world.demand(3.0, windows=2)
    assert world.targets == ["first", "node_lost"]
    assert world.serving() == 3
    assert victim not in {c.node for c in world.plans[-1].claims}


def test_a_silent_node_is_suspect_after_10_s_and_lost_after_30_s() -> None:
    world = settled(3.0)
    victim = next(iter(world.nodes))
    world.dead.add(victim)
    world.say(NodeSilent(partition=0, node=victim, last_heard_ms=world.now_ms))
    world.wait(9_000)
    assert f"NodeSuspect:{victim}" not in world.alerts
    world.wait(2_000)
    assert f"NodeSuspect:{victim}" in world.alerts
    assert victim in world.state.nodes
    world.wait(20_000)
    assert victim not in world.state.nodes
    world.demand(3.0, windows=2)
    assert world.serving() == 3


def test_silence_on_a_partition_that_nobody_listens_to_loses_nothing() -> None:
    world = settled(3.0)
    victim = next(iter(world.nodes))
    world.say(NodeSilent(partition=0, node=victim, last_heard_ms=world.now_ms))
    world.silent_partitions = True
    world.demand(3.0, windows=12)
    assert victim in world.state.nodes


def test_when_most_go_silent_together_the_listener_is_blind_and_holds() -> None:
    world = settled(4.0)
    for name in list(world.nodes)[:3]:
        world.say(NodeSilent(partition=0, node=name, last_heard_ms=world.now_ms))
    world.demand(4.0, windows=12)
    assert "FleetBlind" in world.alerts
    assert len(world.state.nodes) == 4
    assert world.targets == ["first"]


def test_released_nodes_that_fall_silent_blind_nobody() -> None:
    world = World(policy(scale_down_after_ms=20_000))
    world.offer(EAST, 1.0, 8)
    world.demand(8.0, windows=2)
    before = set(world.nodes)
    world.demand(2.0, windows=4)
    for name in sorted(before - set(world.nodes)):
        world.say(NodeSilent(partition=0, node=name, last_heard_ms=world.now_ms))
    world.demand(2.0, windows=6)
    assert "FleetBlind" not in world.alerts
    assert set(world.state.nodes) == set(world.nodes)


def test_a_node_that_gives_notice_is_replaced_before_it_goes() -> None:
    world = settled(2.0)
    name = next(iter(world.nodes))
    before = len(world.plans)
    world.nodes[name] = world.nodes[name].model_copy(update={"notice_deadline_ms": world.now_ms + 60_000})
    world.report(name)
    world.demand(2.0, windows=3)
    assert world.targets == ["first", "notice"]
    assert name not in {c.node for c in world.plans[-1].claims}
    assert all(sum(i.role == "serving" for i in p.instances) >= 2 for p in world.plans[before - 1 :])


def test_a_node_that_left_is_not_waited_for() -> None:
    world = settled(2.0)
    name = next(iter(world.nodes))
    world.nodes[name] = world.nodes[name].model_copy(update={"leaving": True, "stages": ()})
    world.report(name)
    world.dead.add(name)
    world.demand(2.0, windows=2)
    assert name not in world.state.nodes
    assert world.serving() == 2


def test_what_node_agents_cannot_run_is_never_applied() -> None:
    def coral(problem: Problem) -> Answer:
        answer = greedy(problem)
        chosen = answer.chosen[0]
        fields = chosen.template.model_dump() | {"runtime": "coral"}
        fields["id"] = Template.identity(
            "m", "bf16", {}, "both", "coral", chosen.template.nodes, chosen.template.stages
        )
        alien = chosen.model_copy(update={"template": Template.model_validate(fields)})
        return answer.model_copy(update={"chosen": (alien,)})

    world = World(policy(), solver=coral)
    world.offer(EAST, 1.0, 4)
    world.demand(1.0, windows=6)
    assert "SolveFailed" in world.alerts
    assert not world.plans
    assert sum(isinstance(e, Solve) for _, e in world.effects) <= 6, "a failing solver is asked less often"


def test_eight_of_twelve_preempted_at_once_are_planned_around() -> None:
    world = World(policy())
    world.offer(EAST, 1.0, 12)
    world.offer(WEST, 2.0, 12)
    world.demand(12.0, windows=2)
    assert world.serving() == 12
    world.level[EAST.key, "1xL4"] = 4
    for name in list(world.nodes)[:8]:
        world._release(name)
        world.say(NodeGone(node=name, reason="preempted"))
    world.demand(12.0, windows=3)
    assert world.serving() == 12
    assert sorted(c.pool.region for c in world.plans[-1].claims) == ["east"] * 4 + ["west"] * 8


def test_a_failed_stage_is_tried_again_on_its_node_with_back_off_then_elsewhere() -> None:
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
    world = World(policy(scale_down_after_ms=10_000))
    world.offer(EAST, 1.0, 4)
    world.demand(1.0, windows=2)
    (kept,) = world.plans[-1].instances
    world.startup_ms = 10_000_000
    world.demand(2.0, windows=2)
    world.demand(1.0, windows=3)
    (left,) = world.plans[-1].instances
    assert left.id == kept.id


def test_an_operator_drains_a_node() -> None:
    world = settled(2.0)
    name = next(iter(world.nodes))
    world.say(OperatorRequested(kind="drain", node=name, by="ops"))
    world.demand(2.0, windows=3)
    assert world.targets == ["first", "operator"]
    assert world.serving() == 2
    assert name not in {c.node for c in world.plans[-1].claims}


def test_an_unreadable_record_is_put_aside_until_confirmed() -> None:
    world = World(policy())
    effects = world.say(Malformed("no JSON"), b"\xff")
    assert [e for e in effects if isinstance(e, PutAside)] == [PutAside(offset=2, reason="no JSON")]
    assert world.state.put_aside == {2: "no JSON"}
    world.wait(10)
    assert world.state.put_aside == {}


def test_a_new_leader_does_again_what_is_not_confirmed_and_drops_old_answers() -> None:
    world = World(policy())
    world.offer(EAST, 1.0, 4)
    world.demand(2.0)
    problem = world.state.pending_solve
    assert problem is not None
    old_epoch = world.state.epoch
    world.lead("b")
    again = [e for _, e in world.effects if isinstance(e, Solve)]
    assert [e.epoch for e in again] == [old_epoch, world.state.epoch]
    answer = greedy(problem.problem)
    world.say(Solved(epoch=old_epoch, problem=problem.problem.id, answer=answer))
    assert world.state.target is None, "an answer of an older epoch is dropped"
    world.demand(2.0, windows=2)
    assert world.serving() == 2
    before = world.plans[-1]
    world.lead("c")
    assert world.plans[-1].order > before.order
    assert world.plans[-1].instances == before.instances


def test_the_plan_is_repeated_every_minute() -> None:
    world = settled(1.0)
    told = [e.plan.id for _, e in world.effects if isinstance(e, Publish)]
    world.wait(125_000)
    later = [e.plan.id for _, e in world.effects if isinstance(e, Publish)][len(told) :]
    assert later == [told[-1]] * 2


def test_the_same_log_gives_the_same_history_and_a_snapshot_goes_on_where_it_was() -> None:
    world = settled(3.0)
    world.demand(5.0, windows=3)
    half = len(world.records) // 2
    state = State()
    for record in world.records[:half]:
        step(state, record)
    state = State.model_validate_json(state.model_dump_json())
    for record in world.records[half:]:
        step(state, record)
    assert state.history == world.state.history
    assert state == world.state
