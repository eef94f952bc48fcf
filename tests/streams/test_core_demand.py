"""The core as scripts: demand, stock and prices."""

from schemas.events import DemandClosed, Offer, PriceChanged
from schemas.policy import CorePolicy, HeadroomCurve
from schemas.problems import Service, Unmet
from streams.core.effects import Solve
from tests.streams.doubles import EAST, WEST, greedy, policy
from tests.streams.world import World, settled


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
    """kedacore/keda#3065."""
    world = settled(3.0)
    world.wait(600_000)
    assert world.serving() == 3
    assert "TelemetryStale:m/interactive" in world.alerts
    assert world.alerts.count("TelemetryStale:m/interactive") == 1


def test_no_load_starts_nothing() -> None:
    """llm-d/llm-d-autoscaling#380."""
    world = World(policy())
    world.offer(EAST, 1.0, 4)
    world.demand(0.0, windows=10)
    assert all(not plan.instances and not plan.claims for plan in world.plans)


def test_demand_that_wavers_around_a_boundary_changes_the_target_at_most_twice() -> None:
    """ray-project/ray#18925."""
    world = World(policy(headroom=0.2, rate_windows=3, scale_down_after_ms=300_000))
    world.offer(EAST, 1.0, 20)
    for window in range(360):  # one hour
        world.demand(5.0 * (1.1 if window % 2 else 0.9))
    assert len(world.targets) <= 2 + 1, world.targets


def test_more_demand_than_there_is_names_what_is_unmet() -> None:
    """ai-dynamo/dynamo#8583."""
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
    """aws/karpenter-provider-aws#6984."""
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
    """skypilot-org/skypilot#9156, #3615."""
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


def test_a_price_that_nobody_repeats_is_used_and_told_to_be_old() -> None:
    """aws/karpenter-provider-aws#2485: no price for 24 h (10 min here)."""
    world = settled(3.0, price_stale_ms=600_000)
    world.wait(660_000)
    assert world.alerts.count("PriceStale:gcp/east/*/on-demand|1xL4|test") == 1
    world.demand(4.0, windows=2)
    assert world.serving() == 4, "at the last good price"
    world.offer(EAST, 1.0, 4)
    assert "PriceStale:gcp/east/*/on-demand|1xL4|test" not in world.state.alerts


def test_what_a_plan_costs_is_not_reckoned_anew_when_prices_move() -> None:
    """skypilot-org/skypilot#2780: the plan keeps the prices it used."""
    world = settled(3.0)
    before = world.plans[-1]
    offer = Offer(pool=EAST, configuration="1xL4", source="test")
    world.say(PriceChanged(offer=offer, usd_per_hour=1.04, at_ms=world.now_ms))
    world.wait(120_000)
    again = world.state.plan
    assert again is not None
    assert (again.usd_per_hour, again.target.usd_per_hour) == (3.0, 3.0)
    assert (before.usd_per_hour, before.target.usd_per_hour) == (3.0, 3.0)


def test_a_model_nobody_serves_is_not_kept() -> None:
    world = settled(1.0)
    world.demand(9.0, model="made-up")
    assert set(world.state.demand) == {"m/interactive"}


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


def test_a_window_counts_once() -> None:
    """faust-streaming/faust#502: a window that was closed again after a crash of fold."""
    world = settled(3.0)
    window = next(r.event for r in reversed(world.records) if isinstance(r.event, DemandClosed))
    before = world.state.demand["m/interactive"][-1]
    world.say(window.model_copy(update={"offered": 999}))
    assert world.state.demand["m/interactive"][-1] == before


def with_headroom(rates: tuple[float, ...], factor: tuple[float, ...], **given: object) -> CorePolicy:
    plain = policy(**given)
    curve = HeadroomCurve(phase="both", requests_per_s=rates, factor=factor)
    served = tuple(s.model_copy(update={"headroom": (curve,)}) for s in plain.served)
    return plain.model_copy(update={"served": served})


def test_headroom_of_a_service_is_planned_for_by_its_size() -> None:
    world = World(with_headroom((1.0, 4.0), (3.0, 1.5)))
    world.offer(EAST, 1.0, 20)
    world.demand(1.0, windows=2)
    assert world.serving() == 3
    world.demand(4.0, windows=2)
    assert world.serving() == 6


def test_headroom_is_there_before_growth_eats_into_it() -> None:
    """The policy's own share on top is for growth: a solve comes before the service's factor is touched."""
    world = World(with_headroom((1.0,), (2.0,), headroom=0.5))
    world.offer(EAST, 1.0, 20)
    world.demand(4.0, windows=2)
    assert world.serving() == 12, "4 x 2 x 1.5"
    world.demand(5.9, windows=2)
    assert world.serving() == 12
    world.demand(6.1, windows=2)
    assert world.targets[-1] == "demand_up"
    assert world.serving() == 19, "6.1 x 2 x 1.5"


def test_demand_down_keeps_headroom() -> None:
    world = World(with_headroom((1.0,), (2.0,)))
    world.offer(EAST, 1.0, 20)
    world.demand(4.0, windows=2)
    world.demand(1.0, windows=10)
    assert world.targets[-1] == "demand_down"
    assert world.serving() == 2
