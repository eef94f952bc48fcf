"""The core as scripts: the log, its leaders and its history."""

import pytest

from schemas.events import DemandClosed, Solved
from schemas.policy import CorePolicy
from schemas.problems import Answer, Bought, Problem, Template
from streams.core import demand, rollout
from streams.core.effects import PutAside, Solve
from streams.core.record import Malformed
from streams.core.state import State
from streams.core.step import step
from tests.streams.doubles import EAST, greedy, policy
from tests.streams.world import World, settled


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


def test_instances_that_would_share_a_node_are_never_applied() -> None:
    """A claim is one instance's: two slices of a node would be given a node each."""

    def sliced(problem: Problem) -> Answer:
        answer = greedy(problem)
        chosen = answer.chosen[0]
        bought = Bought(
            pool=chosen.pool,
            configuration=chosen.template.nodes[0],
            count=1,
            usd_per_hour=chosen.usd_per_hour,
        )
        return answer.model_copy(update={"nodes": (bought,)})

    world = World(policy(), solver=sliced)
    world.offer(EAST, 1.0, 4)
    world.demand(1.0, windows=6)
    assert "SolveFailed" in world.alerts
    assert not world.plans


def test_an_unreadable_record_is_put_aside_until_confirmed() -> None:
    world = World(policy())
    effects = world.say(Malformed("no JSON"), b"\xff")
    assert [e for e in effects if isinstance(e, PutAside)] == [PutAside(offset=2, reason="no JSON")]
    assert world.state.put_aside == {2: "no JSON"}
    world.wait(10)
    assert world.state.put_aside == {}


def test_a_new_leader_does_again_what_is_not_confirmed_and_drops_old_answers() -> None:
    """knative/eventing#6732."""
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
    last = world.plans[-1]
    world.wait(125_000)
    # Each under a number of its own: who counts the plans that lack something waits for no move.
    assert [p.sequence - last.sequence for p in world.plans if p.order > last.order] == [1, 2]
    assert (world.plans[-1].claims, world.plans[-1].instances) == (last.claims, last.instances)


def replayed(world: World) -> State:
    """The state that its log leads to."""
    state = State()
    for record in world.records:
        step(state, record)
    return state


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


def test_a_record_that_trips_a_bug_is_put_aside_and_control_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(state: State, event: DemandClosed) -> None:
        absorb(state, event)
        if event.offered == 70:
            raise KeyError("a bug")

    absorb = demand.absorb
    monkeypatch.setattr("streams.core.step.demand.absorb", fails)
    world = settled(3.0)
    world.expects_bugs = True
    world.demand(7.0)
    (aside,) = [e for _, e in world.effects if isinstance(e, PutAside)]
    assert aside.reason.startswith("cannot be absorbed: KeyError: 'a bug' (test_step.py:")
    world.demand(8.0, windows=3)
    assert world.serving() == 8
    assert world.state.put_aside == {}, "it was confirmed"
    assert replayed(world) == world.state


def test_a_part_that_fails_is_told_once_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(state: State, policy: CorePolicy) -> None:
        if broken:
            raise ValueError("a bug")
        advance(state, policy)

    broken, advance = False, rollout.advance
    monkeypatch.setattr("streams.core.step.rollout.advance", fails)
    world = settled(3.0)
    world.expects_bugs = True
    broken = True
    world.demand(5.0, windows=8)
    assert world.alerts.count("StepFailed:advance") == 1
    assert world.state.plan is not None
    assert world.state.published_ms > world.now_ms - 60_000, "the plan is still said again"
    broken = False
    world.demand(5.0, windows=3)
    assert world.serving() == 5
    assert not [name for name in world.state.alerts if name.startswith("StepFailed")]
