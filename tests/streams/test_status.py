"""What `coral status` says of a fleet, and how soon one sees what is wrong. No Kafka here."""

import pytest

from schemas.events import OperatorRequested
from streams.core.state import State
from streams.status import Status, status_of
from streams.status_view import show
from tests.streams.doubles import EAST
from tests.streams.world import World, settled


def status(world: World, later_ms: int = 0) -> Status:
    return status_of(world.state, world.now_ms + later_ms)


def test_an_empty_log_has_a_status() -> None:
    said = status_of(State(), 1_000)
    assert (said.plan, said.nodes, said.alerts) == (None, (), {})


def test_a_settled_fleet_is_shown_whole() -> None:
    world = settled(3.0)
    said = status(world, later_ms=500)
    plan = world.state.plan
    assert plan is not None
    assert (said.fleet, said.plan, said.confirmed, said.age_s) == ("f", plan.id, True, 0.5)
    assert said.usd_per_hour == plan.usd_per_hour > 0
    (service,) = said.services
    assert service.requests_per_s == pytest.approx(3.0)
    assert service.planned_for >= 3.0
    assert service.headroom == 1.0
    assert service.unmet == 0.0
    assert {i.role for i in said.instances} == {"serving"}
    assert all((i.ready, i.ranks, i.saying) == (1, 1, None) for i in said.instances)
    assert {name for i in said.instances for name in i.nodes} == set(world.nodes)
    assert {(n.node, n.condition) for n in said.nodes} == {(name, "ok") for name in world.nodes}
    assert all(len(n.claims) == 1 for n in said.nodes)


def test_a_node_that_an_operator_drains_says_by_whom() -> None:
    world = settled(3.0)
    world.offer(EAST, 1.0, 4)
    name = next(iter(world.nodes))
    world.say(OperatorRequested(kind="drain", node=name, by="ada"))
    node = next(n for n in status(world).nodes if n.node == name)
    assert (node.condition, node.drained_by) == ("drained", "ada")
    assert f"NodeGoing:{name}" in status(world).alerts


def test_what_cannot_be_met_is_named() -> None:
    world = settled(3.0)
    world.demand(1000.0, windows=3)
    (service,) = status(world).services
    assert 0 < service.unmet <= 1
    assert service.binding


def test_an_instance_that_is_not_ready_says_why() -> None:
    world = settled(3.0)
    instance = status(world).instances[0]
    world.set_stage(instance.nodes[0], (instance.instance, 1, 0), "failed", "out of memory")
    world.wait(10)
    said = next(i for i in status(world).instances if i.instance == instance.instance)
    assert (said.ready, said.saying) == (0, "failed: out of memory")


# --- for people --------------------------------------------------------------------------------------
def shown(said: Status, capsys: pytest.CaptureFixture[str]) -> str:
    show(said)
    return capsys.readouterr().out


def test_a_healthy_fleet_shows_nothing_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    world = settled(3.0)
    text = shown(status(world), capsys)
    assert text.startswith("fleet f, as of 0 s ago: plan 1-1-")
    for name in ("Demand", "Instances", "Nodes", *world.nodes):
        assert name in text
    for wrong in ("LogQuiet", "PlanLate", "waiting"):
        assert wrong not in text


@pytest.mark.parametrize(("later_ms", "wrong"), [(11_000, "LogQuiet"), (91_000, "PlanLate")])
def test_a_control_plane_that_is_down_is_what_one_reads_first(
    later_ms: int, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(status(settled(3.0), later_ms), capsys)
    assert wrong in text
    assert text.index(wrong) < text.index("Demand")


def test_a_fleet_without_a_plan_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no plan yet" in shown(status_of(State(), 1_000), capsys)
