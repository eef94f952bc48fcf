"""The core as scripts: nodes that come, fall silent, leave and are lost."""

from schemas.events import ClaimGranted, ClaimReleased, NodeGone, NodeSilent, OperatorRequested
from schemas.policy import ServedClass
from streams.core.effects import Solve
from tests.streams.doubles import EAST, WEST, greedy, policy
from tests.streams.world import World, settled


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


def test_a_silent_node_that_its_peers_guards_miss_is_lost_once_it_is_suspect() -> None:
    world = World(policy(), solver=lambda p: greedy(p, ("1xL4", "1xL4")))
    world.offer(EAST, 1.0, 4)
    world.demand(1.0, windows=2)
    (instance,) = world.plans[-1].instances
    head, victim = (world.plans[-1].claim(s.ranks[0].claim).node or "" for s in instance.stages)
    world.dead.add(victim)
    world.say(NodeSilent(partition=0, node=victim, last_heard_ms=world.now_ms))
    world.set_stage(head, (instance.id, 1, 0), "failed", "stage 1 was silent for 5 s")
    world.wait(9_000)
    assert victim in world.state.nodes
    world.wait(2_000)
    assert victim not in world.state.nodes, "not 30 s"
    world.demand(1.0)
    assert world.serving() == 1


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


def test_an_operator_drains_a_node() -> None:
    world = settled(2.0)
    name = next(iter(world.nodes))
    world.say(OperatorRequested(kind="drain", node=name, by="ops"))
    world.demand(2.0, windows=3)
    assert world.targets == ["first", "operator"]
    assert world.serving() == 2
    assert name not in {c.node for c in world.plans[-1].claims}


def test_a_drained_node_is_still_drained_when_it_comes_back_from_a_reboot() -> None:
    world = World(policy())
    first, second = world.static(EAST, 1.0, "v1", "v1")
    world.demand(1.0, windows=2)
    world.say(OperatorRequested(kind="drain", node=first, by="ops"))
    world.demand(1.0, windows=3)
    world.dead.add(first)
    world.say(NodeSilent(partition=0, node=first, last_heard_ms=world.now_ms))
    world.wait(40_000)
    assert first not in world.state.nodes, "lost"
    world.dead.discard(first)
    world.change(first, boot="another")
    world.demand(2.0, windows=3)
    serving = {world.plans[-1].claim(c).node for i in world.plans[-1].instances for c in i.claims}
    assert serving == {second}


def test_a_drained_node_is_not_handed_out_again_until_it_is_undrained() -> None:
    world = World(policy())
    first, second, third = world.static(EAST, 1.0, "v1", "v1", "v1")
    world.demand(1.0, windows=2)
    world.say(OperatorRequested(kind="drain", node=first, by="ops"))
    world.demand(1.0, windows=3)
    assert {i.role for i in world.plans[-1].instances} == {"serving"}
    assert {c.node for c in world.plans[-1].claims} == {first, second}, "kept, so that nobody is given it"
    world.demand(2.0, windows=3)
    serving = {world.plans[-1].claim(c).node for i in world.plans[-1].instances for c in i.claims}
    assert serving == {second, third}
    world.demand(3.0, windows=2)
    assert world.serving() == 2
    world.say(OperatorRequested(kind="undrain", node=first, by="ops"))
    world.demand(3.0, windows=3)
    assert world.serving() == 3
