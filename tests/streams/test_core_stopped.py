"""Searches that were stopped, or failed: what stays in force, and that they are put again."""

from schemas.events import NodeGone, OperatorRequested
from schemas.problems import Answer, Problem, Template
from streams.core.effects import Alert, Solve
from streams.core.state import State
from streams.core.step import step
from tests.streams.doubles import greedy
from tests.streams.world import World, settled

FUSE = "fuse: no answer to p within 20 s"


def stopped(problem: Problem) -> Answer:
    """All but one of the instances that would be needed."""
    answer = greedy(problem.model_copy(update={"demands": _less(problem)}))
    unmet = greedy(problem.model_copy(update={"stocks": ()})).unmet[0]
    share = 1.0 / problem.demands[0].rate
    short = unmet.model_copy(update={"share": share, "rate": 1.0})
    return answer.model_copy(update={"unmet": (short,), "stopped": FUSE, "gap": 1.0})


def _less(problem: Problem) -> tuple[object, ...]:
    return tuple(d.model_copy(update={"rate": d.rate - 1.0}) for d in problem.demands)


def solves(world: World) -> int:
    return sum(isinstance(effect, Solve) for _, effect in world.effects)


def nodes(world: World) -> set[str | None]:
    plan = world.plans[-1]
    return {plan.claim(claim).node for instance in plan.instances for claim in instance.claims}


def test_the_best_plan_so_far_is_taken_and_the_question_put_again_less_and_less_often() -> None:
    world = settled(2.0)
    world.solver = stopped
    world.demand(5.0, windows=2)
    assert world.serving() == 4
    assert world.plans[-1].target.stopped == FUSE
    told = [e.text for _, e in world.effects if isinstance(e, Alert) and e.name == "SolveStopped"]
    assert told[0].endswith(f": {FUSE}; its best plan so far is taken")
    before = solves(world)
    world.demand(5.0, windows=30)
    assert 2 <= solves(world) - before <= 6, "in five minutes"
    world.solver = greedy
    world.demand(5.0, windows=40)
    last = world.plans[-1].target
    assert (world.serving(), last.stopped, world.state.failed_solves) == (5, None, 0)


def test_a_stopped_search_is_replayed_to_the_same_digest() -> None:
    world = settled(2.0)
    world.solver = stopped
    world.demand(5.0, windows=3)
    state = State()
    for record in world.records:
        step(state, record)
    assert state.history == world.state.history


def test_where_no_plan_was_told_of_what_runs_stays_without_the_nodes_that_are_gone() -> None:
    """The plan in force is the running one, trimmed to today's stock."""

    def undeployable(problem: Problem) -> Answer:  # which is a failed solve
        answer = greedy(problem)
        chosen = answer.chosen[0]
        t = chosen.template
        of = Template.identity(t.model, t.variant, {}, t.phase, "coral", t.nodes, t.stages)
        alien = t.model_copy(update={"runtime": "coral", "id": of})
        return answer.model_copy(update={"chosen": (chosen.model_copy(update={"template": alien}),)})

    world = settled(3.0)
    world.solver = undeployable
    victim = min(world.nodes)
    world._release(victim)
    world.say(NodeGone(node=victim, reason="preempted"))
    world.demand(3.0, windows=2)
    assert "SolveFailed" in world.alerts
    assert (world.serving(), victim in nodes(world)) == (2, False)
    world.solver = greedy
    world.demand(3.0, windows=6)
    assert world.serving() == 3, "it was asked again"


def test_what_broke_is_still_a_reason_after_a_stopped_search() -> None:
    world = settled(2.0)
    name = min(world.nodes)
    world.solver = lambda problem: greedy(problem).model_copy(update={"stopped": FUSE})
    world.say(OperatorRequested(kind="drain", node=name, by="ops"))
    world.wait(500)
    assert "operator" in world.state.needs
