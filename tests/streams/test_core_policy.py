"""What plans keep to, beyond what the golden script shows (`what_plans_are_asked_for`)."""

from schemas.policy import Pin
from tests.streams.doubles import EAST, WEST, policy, template
from tests.streams.real_solver import solved
from tests.streams.world import World

PIN = Pin(template=template("m").id, pool=EAST, count=1)


def regions(world: World) -> list[str]:
    return sorted(i.pool.region for i in world.plans[-1].instances)


def served(**given: object) -> World:
    """Two instances in the east, which then costs three times as much as the west."""
    world = World(policy(**given), solver=solved)
    world.offer(EAST, 1.0, 4)
    world.demand(2.0, windows=2)
    world.offer(WEST, 0.3, 4)
    world.demand(2.0, windows=3)
    return world


def test_what_is_pinned_stays_and_a_pin_that_nothing_runs_of_is_told() -> None:
    assert regions(served()) == ["west", "west"]
    world = served(pinned=(PIN,))
    assert regions(world) == ["east", "west"]
    world.given = policy(pinned=(PIN.model_copy(update={"count": 2}),))
    world.lead("b")
    world.demand(2.0, windows=2)
    (told,) = [text for name, text in world.state.alerts.items() if name.startswith("PolicyBreach:pinned:")]
    assert told == f"pinned: 1 of 2 for {PIN.template} in {EAST.key} run"


def test_what_is_excluded_is_left_at_once() -> None:
    """By the next leader, without waiting for a reason of another kind."""
    world = served()
    world.offer(EAST, 1.0, 4, configuration="1xA10G")
    world.given = policy(excluded_configurations=("1xL4",))
    world.lead("b")
    world.demand(2.0, windows=2)
    assert world.targets[-1] == "policy"
    assert regions(world) == []
