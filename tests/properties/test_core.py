"""Whatever happens to the core, its plans stay possible, and when the noise ends demand is met."""

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from schemas.events import NodeGone, NodeSilent, OperatorRequested, Refusal
from streams.core.effects import Publish
from streams.core.record import Malformed
from streams.core.state import State
from streams.core.step import step
from tests.streams.doubles import EAST, WEST, contact, greedy, policy
from tests.streams.world import World

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("demand"), st.integers(0, 8)),
        st.tuples(st.just("level"), st.integers(0, 6)),
        st.tuples(st.just("price"), st.integers(1, 9)),
        st.tuples(st.just("preempt"), st.integers(0, 9)),
        st.tuples(st.just("silence"), st.integers(0, 9)),
        st.tuples(st.just("fail"), st.integers(0, 9)),
        st.tuples(st.just("drain"), st.integers(0, 9)),
        st.tuples(st.just("refuse"), st.integers(0, 1)),
        st.tuples(st.just("decline"), st.integers(0, 3)),
        st.tuples(st.just("decline one"), st.integers(0, 9)),
        st.tuples(st.just("upgrade"), st.integers(0, 9)),
        st.tuples(st.just("pull"), st.integers(0, 20)),
        st.tuples(st.just("lead"), st.integers(0, 1)),
        st.tuples(st.just("garbage"), st.integers(0, 1)),
        st.tuples(st.just("wait"), st.integers(1, 60)),
    ),
    max_size=14,
)


SLOTS = 2
REFUSALS: list[Refusal | None] = [None, "unknown_model", "port_taken", "engine_version"]


def is_static(world: World, name: str) -> bool:
    return world.nodes[name].claim is None


def act(world: World, action: str, number: int) -> None:  # noqa: C901, PLR0912  one flat table
    names = sorted(set(world.nodes) - world.dead)
    name = names[number % len(names)] if names else None
    match action:
        case "demand":
            world.demand(float(number))
        case "level":
            world.level[EAST.key, "1xL4"] = max(number, world.held(EAST))
            world.stock(EAST)
        case "price":
            world.offer(WEST, number / 3, 8)
        case "preempt" if name is not None and not is_static(world, name):
            world._release(name)
            world.say(NodeGone(node=name, reason="preempted"))
        case "silence" if name is not None and not is_static(world, name):
            world.dead.add(name)
            world.say(NodeSilent(partition=0, node=name, last_heard_ms=world.now_ms))
        case "fail" if name is not None and world.nodes[name].stages:
            stage = world.nodes[name].stages[0]
            world.set_stage(name, (stage.instance, stage.attempt, stage.stage), "failed", "test")
        case "drain" if name is not None:
            world.say(OperatorRequested(kind="drain", node=name, by="test"))
        case "refuse":
            world.refuse = bool(number)
        case "decline":
            world.refuses = lambda node, _model: REFUSALS[number] if node.pool == EAST else None
        case "decline one" if name is not None:
            world.refuses = lambda node, _model: "port_taken" if node.node == name else None
        case "upgrade":
            world.engine = f"v{number % 2}"
            if name is not None:
                world.change(name, engine=world.engine, contact=contact(number))
        case "pull":
            world.pull_ms = number * 1000
        case "lead":
            world.lead(f"candidate-{world.state.offset}")
        case "garbage":
            world.say(Malformed("no JSON"), b"\xff")
        case "wait":
            world.wait(number * 1000)
        case _:
            pass


def check_plans(world: World) -> None:
    """Every plan ever decided is newer than the one before; its devices are used once (the model checks)."""
    orders = [plan.order for plan in world.plans]
    assert orders == sorted(set(orders))
    starts: dict[tuple[str, int], tuple[str | None, tuple[str, ...]]] = {}
    for plan in world.plans:
        assert len(plan.pulls) <= 2 * SLOTS, "so many in each region"
        for instance in plan.instances:
            claims = (instance.engine, tuple(sorted(instance.claims)))
            assert starts.setdefault((instance.id, instance.attempt), claims) == claims
            assert instance.endpoint is None or instance.role != "draining"
            if instance.role != "draining":
                assert all(plan.claim(claim).node is not None for claim in instance.claims), (
                    "all nodes or none"
                )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(actions=[("demand", 1), ("demand", 0), ("preempt", 0)], nodes=("1xL4", "1xL4"), static=[])
@given(
    actions=ACTIONS,
    nodes=st.sampled_from([("1xL4",), ("1xL4", "1xL4")]),
    static=st.lists(st.sampled_from(["v0", "v1"]), max_size=4),
)
def test_any_history_leaves_a_fleet_that_serves(
    actions: list[tuple[str, int]], nodes: tuple[str, ...], static: list[str]
) -> None:
    given = policy(pull_slots=SLOTS, unfit_ms=30_000)
    world = World(given, solver=lambda problem: greedy(problem, nodes=nodes))
    world.static(EAST, 1.0, *static)
    world.offer(EAST, 1.0, 4)
    world.offer(WEST, 2.0, 8)
    for action, number in actions:
        act(world, action, number)
        check_plans(world)
    world.refuse = False
    world.refuses = lambda _node, _model: None
    for name in sorted(world.dead & set(world.nodes)):
        world.say(NodeGone(node=name, reason="terminated"))
        world._release(name)
    for name in sorted(world.nodes):
        world.say(OperatorRequested(kind="undrain", node=name, by="test"))
    world.offer(EAST, 1.0, 40)
    world.wait(
        max(0, *(refused.until_ms - world.now_ms for refused in world.state.refused_models.values()), 0)
    )
    world.demand(3.0, windows=20)
    check_plans(world)
    assert world.serving() >= 3, world.targets
    assert world.state.pending_solve is None
    assert world.state.pending_publish is None
    assert not world.state.put_aside
    plan = world.state.plan
    assert plan is not None
    assert {i.role for i in plan.instances} == {"serving"}, "victims end"
    assert {c for i in plan.instances for c in i.claims} == {c.id for c in plan.claims}, "no claim is idle"
    assert len(world.granted) == len(plan.claims), "nothing is held that no plan wants"

    again = State()
    published = []
    for record in world.records:
        if record.offset == len(world.records) // 2:
            again = State.model_validate_json(again.model_dump_json())
        published += [e.plan.id for e in step(again, record) if isinstance(e, Publish)]
    assert again.history == world.state.history
    assert published == [e.plan.id for _, e in world.effects if isinstance(e, Publish)]
