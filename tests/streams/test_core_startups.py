"""The core as scripts: how long a start takes is measured, and K follows."""

from streams.core.effects import Solve
from streams.core.state import State
from streams.core.step import step
from tests.streams.doubles import EAST, greedy, policy
from tests.streams.world import World


def ratios(world: World) -> list[float]:
    """K of model m in each problem."""
    return [e.problem.startup_ratio["m"] for _, e in world.effects if isinstance(e, Solve)]


def test_k_is_assumed_until_an_instance_was_ready_and_measured_from_then_on() -> None:
    world = World(policy(adjust_interval_ms=100_000))
    world.startup_ms = 20_000
    world.offer(EAST, 1.0, 8)
    world.demand(1.0, windows=4)
    world.demand(2.0, windows=4)
    assert ratios(world)[:2] == [3.0, 0.2], "300 s assumed, 20 s measured, over 100 s"


def test_an_instance_takes_as_long_as_its_slowest_rank() -> None:
    world = World(policy(), solver=lambda p: greedy(p, ("1xL4", "1xL4")))
    world.startup_ms = 10**9
    world.offer(EAST, 1.0, 2)
    world.demand(1.0)
    world.wait(2_000)
    (instance,) = world.plans[-1].instances
    for stage, (name, seconds) in enumerate(zip(sorted(world.nodes), (3.0, 7.0), strict=True)):
        world.set_stage(name, (instance.id, 1, stage), "ready", start_s=seconds)
    world.wait(1_000)
    assert world.state.startups == {"m": [7.0]}


def test_a_start_that_nobody_timed_measures_nothing() -> None:
    world = World(policy())
    world.startup_ms = 10**9
    world.offer(EAST, 1.0, 2)
    world.demand(1.0)
    world.wait(2_000)
    (instance,) = world.plans[-1].instances
    world.set_stage(next(iter(world.nodes)), (instance.id, 1, 0), "ready")
    world.wait(1_000)
    assert world.serving() == 1
    assert world.state.startups == {}


def test_the_median_of_the_last_few_counts_so_that_one_slow_start_does_not() -> None:
    world = World(policy(adjust_interval_ms=100_000))
    world.offer(EAST, 1.0, 40)
    for rate, startup_ms in ((5.0, 10_000), (6.0, 90_000), (8.0, 10_000)):
        world.startup_ms = startup_ms
        world.demand(rate, windows=12)
    world.demand(9.0, windows=1)
    assert ratios(world)[-1] == 0.1
    world.startup_ms = 30_000
    world.demand(30.0, windows=6)
    assert len(world.state.startups["m"]) == 9, "the last few only"
    assert set(world.state.startups["m"]) == {30.0}


def test_what_was_measured_survives_a_snapshot_and_a_replay() -> None:
    world = World(policy())
    world.startup_ms = 12_345
    world.offer(EAST, 1.0, 8)
    world.demand(3.0, windows=3)
    assert world.state.startups == {"m": [12.345] * 3}
    half = len(world.records) // 2
    state = State()
    for record in world.records[:half]:
        step(state, record)
    state = State.model_validate_json(state.model_dump_json())
    for record in world.records[half:]:
        step(state, record)
    assert state == world.state
