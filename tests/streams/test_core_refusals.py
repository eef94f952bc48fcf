"""The core as scripts: what is refused is planned around, and asked for again less and less often."""

from collections.abc import Callable

from schemas.events import Heartbeat, NodeSilent, Refusal, StageReport
from schemas.plans import Instance
from schemas.policy import ServedClass
from streams.core.effects import Solve
from tests.streams.doubles import EAST, WEST, greedy, policy
from tests.streams.world import World

HOUR_MS = 3_600_000


class Refuses:
    """Says no to every start for which `why` has a refusal, and notes at which nodes."""

    def __init__(self, why: Callable[[Heartbeat], Refusal | None]) -> None:
        self.why = why
        self.nodes: list[str] = []

    def __call__(self, node: Heartbeat, _model: str) -> Refusal | None:
        refusal = self.why(node)
        if refusal is not None:
            self.nodes.append(node.node)
        return refusal


def east(refusal: Refusal) -> Refuses:
    """All nodes of the east refuse."""
    return Refuses(lambda node: refusal if node.pool == EAST else None)


def refusing(refuses: Refuses, **given: object) -> World:
    world = World(policy(**given))
    world.refuses = refuses
    return world


def test_a_model_that_one_kind_of_node_refuses_goes_to_another() -> None:
    no = east("unknown_model")
    world = refusing(no)
    world.offer(EAST, 1.0, 4)
    world.offer(WEST, 2.0, 4)
    world.demand(2.0, windows=4)
    assert set(world.targets) == {"first", "instance_failed"}
    assert world.serving() == 2
    assert {c.pool for c in world.plans[-1].claims} == {WEST}
    assert len(no.nodes) == 2, "those that started together, and nobody after them"
    assert "ModelUnfit:m|gcp/east/*/on-demand|1xL4" in world.alerts


def test_a_fleet_that_refuses_for_ever_is_tried_once_a_back_off_and_its_demand_is_named() -> None:
    no = east("unknown_model")
    world = refusing(no, unfit_ms=600_000)
    world.offer(EAST, 1.0, 4)
    world.demand(2.0, windows=2)
    tries = [len(no.nodes)]
    for _ in range(6):
        world.demand(2.0, windows=60)  # ten minutes
        tries.append(len(no.nodes))
    assert tries == [2, 3, 3, 4, 4, 4, 4], "two at once; then one after 10 min, 20 more, 40 more"
    assert [u.binding for u in world.plans[-1].target.unmet] == ["refused: unknown_model"]
    assert world.plans[-1].claims == ()
    assert len([e for _, e in world.effects if isinstance(e, Solve)]) < 20


def test_what_runs_stays_where_others_were_refused() -> None:
    world = World(policy())
    world.offer(EAST, 1.0, 8)
    world.offer(WEST, 2.0, 8)
    world.demand(2.0, windows=2)
    before = {i.id for i in world.plans[-1].instances}
    world.refuses = east("memory")
    world.demand(4.0, windows=3)
    after = {i.id: i.attempt for i in world.plans[-1].instances}
    assert before <= after.keys()
    assert set(after.values()) == {1}
    assert world.serving() == 4
    assert sorted(c.pool.region for c in world.plans[-1].claims) == ["east"] * 2 + ["west"] * 2


def test_what_ran_may_start_again_where_others_were_refused() -> None:
    world = World(policy())
    world.offer(EAST, 1.0, 8)
    world.demand(1.0, windows=2)
    (instance,) = world.plans[-1].instances
    (name,) = world.nodes
    world.refuses = Refuses(lambda node: "memory" if node.node != name else None)
    world.demand(2.0, windows=3)
    world.set_stage(name, (instance.id, 1, 0), "failed", "killed by hand")
    world.demand(2.0, windows=2)
    assert [(i.id, i.attempt, i.role) for i in world.plans[-1].instances] == [(instance.id, 2, "serving")]


def test_an_answer_to_a_question_of_before_the_refusal_starts_nothing_there() -> None:
    world = World(policy())
    world.offer(EAST, 1.0, 4)
    world.demand(1.0, windows=2)
    (first,) = world.plans[-1].instances
    world.demand(3.0)
    assert world.state.pending_solve is not None
    world.set_stage(next(iter(world.nodes)), (first.id, 1, 0), "refused", "no", refusal="memory")
    world.wait(30_000)
    assert {i.id for p in world.plans for i in p.instances} == {first.id}
    assert [u.binding for u in world.plans[-1].target.unmet] == ["refused: memory"]


def test_a_node_that_changed_is_asked_again_at_once() -> None:
    changes: list[dict[str, object]] = [{"models": ("0" * 64,)}, {"engine": "v2"}, {"boot": "b2"}]
    for news in changes:
        no = east("unknown_model")
        world = refusing(no)
        (name,) = world.static(EAST, 1.0, "simulated-1")
        world.demand(1.0, windows=3)
        assert len(no.nodes) == 1
        world.refuses = lambda _node, _model: None
        world.change(name, **news)
        world.demand(1.0, windows=3)
        assert world.serving() == 1, news


def test_a_new_node_like_the_one_that_refused_changes_nothing() -> None:
    no = east("unknown_model")
    world = refusing(no)
    world.static(EAST, 1.0, "simulated-1")
    world.demand(1.0, windows=3)
    world.static(EAST, 1.0, "simulated-1", "simulated-1")
    world.demand(1.0, windows=6)
    assert len(no.nodes) == 1


def test_a_node_that_refuses_is_set_aside_and_the_next_takes_its_place() -> None:
    world = World(policy())
    bad, *good = world.static(EAST, 1.0, "simulated-1", "simulated-1", "simulated-1")
    no = Refuses(lambda node: "port_taken" if node.node == bad else None)
    world.refuses = no
    world.demand(2.0, windows=3)
    plan = world.plans[-1]
    assert world.serving() == 2
    assert {plan.claim(c).node for i in plan.instances for c in i.claims} == set(good)
    assert f"NodeUnfit:{bad}" in world.alerts
    assert no.nodes == [bad]
    world.demand(3.0, windows=3)
    assert world.serving() == 2, "it is no stock"
    assert [u.binding for u in world.plans[-1].target.unmet] == ["refused: port_taken"]
    assert no.nodes == [bad]


def test_a_node_set_aside_is_tried_again_once_its_back_off_is_over() -> None:
    world = World(policy(unfit_ms=600_000))
    world.static(EAST, 1.0, "simulated-1")
    no = Refuses(lambda _node: "device_busy")
    world.refuses = no
    tries = []
    for _ in range(7):
        world.demand(1.0, windows=60)
        tries.append(len(no.nodes))
    assert tries == [1, 2, 2, 3, 3, 3, 3], "again after 10 min, 20 more, 40 more"
    world.refuses = lambda _node, _model: None
    world.demand(1.0, windows=60)
    assert world.serving() == 1
    assert world.state.refused_nodes == {}


def test_a_node_set_aside_comes_back_when_its_agent_is_another() -> None:
    changes: list[dict[str, object]] = [
        {"boot": "b2"},
        {"engine": "v2"},
        {"driver": "570"},
        {"gpu": "L4"},
        {"devices": 2},
    ]
    for news in changes:
        world = World(policy())
        (name,) = world.static(EAST, 1.0, "simulated-1")
        world.refuses = Refuses(lambda _node: "engine_missing")
        world.demand(1.0, windows=2)
        assert world.serving() == 0
        world.refuses = lambda _node, _model: None
        world.change(name, **news)
        world.demand(1.0, windows=3)
        assert world.serving() == 1, news


def test_a_cloud_whose_nodes_all_lack_the_engine_is_not_asked_for_node_after_node() -> None:
    no = east("engine_missing")
    world = refusing(no)
    world.offer(EAST, 1.0, 4)
    world.offer(WEST, 2.0, 4)
    world.demand(1.0, windows=30)
    assert len(no.nodes) == 1
    assert world.serving() == 1
    assert {c.pool for c in world.plans[-1].claims} == {WEST}


def test_one_models_refusal_is_not_anothers() -> None:
    served = [
        ServedClass(model=name, slo_class="interactive", mean_input_tokens=100.0, mean_output_tokens=10.0)
        for name in ("k", "m")
    ]
    world = World(policy(served=tuple(served)))
    world.refuses = lambda _node, model: "unknown_model" if model == "m" else None
    world.offer(EAST, 1.0, 4)
    for _ in range(4):
        world.demand(1.0)
        world.demand(1.0, model="k")
    assert world.serving("m") == 0
    assert world.serving("k") == 1


def test_a_refusal_without_a_name_counts_for_the_model() -> None:
    world = World(policy())
    world.offer(EAST, 1.0, 1)
    world.demand(1.0, windows=2)
    (instance,) = world.plans[-1].instances
    (name,) = world.nodes
    said = StageReport(instance=instance.id, attempt=1, stage=0, state="refused", reason="of an old agent")
    world.change(name, stages=(said,))
    world.wait(200)
    assert [r.unfit.reason for r in world.state.refused_models.values()] == ["unnamed"]


def test_refusals_are_forgotten_in_the_end() -> None:
    world = refusing(east("unknown_model"))
    world.offer(EAST, 1.0, 4)
    world.demand(1.0, windows=3)
    assert world.state.refused_models
    world.refuses = lambda _node, _model: None
    world.now_ms += 25 * HOUR_MS
    world.wait(3_000)
    assert not world.state.refused_models


def fails_at(world: World, *bad: str, state: str = "failed", **more: object) -> list[tuple[str, int]]:
    """Starts on these nodes end like this; returns the instances and attempts that did, as they come."""
    tries: list[tuple[str, int]] = []
    start = world._start

    def fail(name: str, key: tuple[str, int, int], instance: Instance) -> None:
        if name in bad:
            tries.append(key[:2])
            world.set_stage(name, key, state, "vLLM ended with status 1", **more)
        else:
            start(name, key, instance)

    world._start = fail  # type: ignore[method-assign]
    return tries


def test_a_static_node_that_fails_three_times_is_set_aside_and_free_stock_is_used() -> None:
    world = World(policy(unfit_ms=600_000))
    (bad,) = world.static(EAST, 1.0, "v1")
    world.offer(WEST, 2.0, 4)
    tries = fails_at(world, bad)
    world.demand(1.0, windows=6)
    assert [attempt for _, attempt in tries] == [1, 2, 3]
    assert world.serving() == 1
    assert {i.pool for i in world.plans[-1].instances} == {WEST}
    assert f"NodeUnfit:{bad}" in world.alerts
    world.demand(1.0, windows=360)
    assert len(tries) <= 9, "three more after 10 min, and after 20"
    assert world.serving() == 1


def test_a_single_node_that_fails_is_tried_again_once_its_back_off_is_over() -> None:
    world = World(policy(unfit_ms=600_000))
    (only,) = world.static(EAST, 1.0, "v1")
    tries = fails_at(world, only)
    counts = []
    for _ in range(4):
        world.demand(1.0, windows=60)
        counts.append(len(tries))
    assert counts == [3, 6, 6, 9]
    assert [u.binding for u in world.plans[-1].target.unmet] == ["refused: failed"]


def test_a_node_whose_engine_is_another_than_it_says_is_set_aside_at_once() -> None:
    world = World(policy(unfit_ms=600_000))
    (bad,) = world.static(EAST, 1.0, "v1")
    world.offer(WEST, 2.0, 4)
    tries = fails_at(world, bad, state="refused", refusal="engine_version")
    world.demand(1.0, windows=4)
    assert [attempt for _, attempt in tries] == [1]
    assert world.serving() == 1
    assert f"NodeUnfit:{bad}" in world.alerts


def test_a_cloud_whose_nodes_have_another_engine_than_they_say_is_not_asked_for_node_after_node() -> None:
    no = east("engine_version")
    world = refusing(no)
    world.offer(EAST, 1.0, 4)
    world.offer(WEST, 2.0, 4)
    world.demand(1.0, windows=30)
    assert len(no.nodes) == 1
    assert world.serving() == 1


def test_a_node_that_never_gets_ready_is_set_aside_too() -> None:
    world = World(policy(start_deadline_ms=60_000))
    (bad,) = world.static(EAST, 1.0, "v1")
    world.offer(WEST, 2.0, 4)
    tries = fails_at(world, bad, state="starting")
    world.demand(1.0, windows=30)
    assert [attempt for _, attempt in tries] == [1, 2, 3]
    assert world.serving() == 1


def test_of_several_nodes_the_one_that_failed_first_is_set_aside() -> None:
    """Its peers fail because it did, a moment later."""
    world = World(policy(), solver=lambda p: greedy(p, ("1xL4", "1xL4")))
    names = world.static(EAST, 1.0, "v1", "v1", "v1")
    world.startup_ms = 10**9
    world.demand(1.0, windows=2)
    (instance,) = world.plans[-1].instances
    peer, bad = (world.plans[-1].claim(s.ranks[0].claim).node or "" for s in instance.stages)
    for attempt in (1, 2, 3):
        world.set_stage(bad, (instance.id, attempt, 1), "failed", "vLLM ended with status 1")
        world.wait(100)
        world.set_stage(peer, (instance.id, attempt, 0), "failed", "stage 1: vLLM ended with status 1")
        world.wait(20_000)
    assert set(world.state.refused_nodes) == {bad}
    world.startup_ms = 2_000
    world.demand(1.0, windows=4)
    used = {
        c.node for c in world.plans[-1].claims if any(c.id in i.claims for i in world.plans[-1].instances)
    }
    assert used == {*names} - {bad}


def test_nobody_is_set_aside_for_a_peer_that_is_lost() -> None:
    world = World(policy(attempts=1), solver=lambda p: greedy(p, ("1xL4", "1xL4")))
    kept, lost = world.static(EAST, 1.0, "v1", "v1")
    world.demand(1.0, windows=2)
    (instance,) = world.plans[-1].instances
    stages = {world.plans[-1].claim(s.ranks[0].claim).node: s.index for s in instance.stages}
    world.dead.add(lost)
    world.say(NodeSilent(partition=0, node=lost, last_heard_ms=world.now_ms))
    world.set_stage(
        kept, (instance.id, 1, stages[kept]), "failed", f"stage {stages[lost]} was silent for 5 s"
    )
    world.demand(1.0, windows=6)
    assert world.state.refused_nodes == {}
    assert "instance_failed" not in world.targets
