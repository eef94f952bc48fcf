"""Moments to plan at: they follow from the seed, keep to the set-up, and are as scarce as they say."""

from dataclasses import replace

import pytest

from agents.traces import SHIPPED_TRACES, StepTrace, read_steps
from schemas.catalog import PAPER_CATALOG, load_catalog
from schemas.performance import load_efficiencies
from solver.building import build_library
from solver.figures import Figures
from solver.grown import more_models, more_regions
from solver.library import Library
from solver.methods import METHODS
from solver.scarcity import SCALES, WHOLE, factor, least_share
from solver.setups import Setup, paper_setup
from solver.snapshots import (
    MOVED,
    demands_of,
    later,
    prices_of,
    shape_of,
    snapshot,
)

TRACE = read_steps(SHIPPED_TRACES / "bamboo_2020_g4dn.csv.gz")


@pytest.fixture(scope="module")
def core() -> Setup:
    found = paper_setup("core", load_catalog(PAPER_CATALOG))
    return replace(found, scope=found.scope.with_limits(n_max=1))


@pytest.fixture(scope="module")
def library(core: Setup) -> Library:
    return build_library(Figures(core.catalog, load_efficiencies(), None), core.scope, cores=1)


def test_a_snapshot_follows_from_its_seed(core: Setup, library: Library) -> None:
    one = snapshot(core, library, TRACE, seed=1)
    assert one == snapshot(core, library, TRACE, seed=1)
    other = snapshot(core, library, TRACE, seed=2)
    assert one.demands == other.demands
    assert [s.nodes for s in one.stocks] != [s.nodes for s in other.stocks]


def test_demand_is_the_papers_requests_times_mean_lengths(core: Setup) -> None:
    rates = {d.service.key: d.rate for d in demands_of(core)}
    assert len(rates) == 6
    assert rates["phi-4-14b/interactive/prefill"] == pytest.approx(10 * 1615)
    assert rates["phi-4-14b/interactive/decode"] == pytest.approx(10 * 106)


def test_a_set_up_without_requests_has_no_demand_of_its_own(core: Setup) -> None:
    with pytest.raises(ValueError, match="demand: the set-up 'mine' has none of its own"):
        demands_of(replace(core, name="mine"))


def test_prices_are_the_shipped_ones_and_places_without_one_have_no_stock(
    core: Setup, library: Library
) -> None:
    prices = prices_of(core)
    assert {place.pool.region for place in prices} == {"us-east-2", "ap-northeast-2"}
    listed = {(p.region, p.configuration): p.usd_per_hour for p in core.catalog.prices}
    assert all(usd == listed[place.pool.region, place.configuration] for place, usd in prices.items())
    stocks = snapshot(core, library, TRACE, seed=0).stocks
    assert [(s.pool, s.configuration) for s in stocks] == list(prices)


def test_scales_are_multiples_of_the_least_that_could_do(core: Setup, library: Library) -> None:
    worth = {}
    for scale in SCALES:
        problems = [snapshot(core, library, TRACE, seed, scale) for seed in range(6)]
        worth[scale] = sum(s.nodes * s.usd_per_hour for problem in problems for s in problem.stocks)
    assert worth["full"] > worth["x0.3"] > worth["x0.15"] > 0
    assert worth["x0.3"] / worth["full"] == pytest.approx(0.3, abs=0.1)
    assert factor("core", "scarce") / WHOLE["core"] == pytest.approx(1.25)
    assert factor("extended", "x0.15") / factor("extended", "full") == pytest.approx(0.15)
    with pytest.raises(ValueError, match="setup: 'mine', expected one of core, extended"):
        factor("mine", "scarce")


def test_so_much_of_a_stock_meets_the_demand_in_fractions(core: Setup, library: Library) -> None:
    shape = shape_of(core, TRACE, 0)
    demand = {d.service.key: d.rate for d in demands_of(core)}
    share = least_share(library, demand, shape)
    doubled = {place: 2 * nodes for place, nodes in shape.items()}
    assert least_share(library, demand, doubled) == pytest.approx(share / 2)
    assert least_share(library, {key: 3 * rate for key, rate in demand.items()}, shape) == pytest.approx(
        3 * share
    )
    with pytest.raises(ValueError, match="no stock of these places could meet the demand"):
        least_share(library, demand, dict.fromkeys(shape, 0.0))


def test_stock_moves_as_the_trace_does(core: Setup) -> None:
    steady = shape_of(core, StepTrace((0.0, 200_000.0), (10, 10)), 0)
    stormy = shape_of(core, StepTrace((0.0, 40_000.0, 200_000.0), (10, 1, 1)), 0)
    assert {round(stormy[place] / steady[place], 9) for place in steady} == {1.0, 0.1}


def test_what_is_drawn_for_a_place_stays_when_others_are_added(core: Setup) -> None:
    small, large = shape_of(core, TRACE, 3), shape_of(more_regions(core, 2, 2), TRACE, 3)
    assert len(large) == 2 * len(small)
    assert all(large[place] == nodes for place, nodes in small.items())


def test_later_demand_has_moved_and_the_plan_runs(core: Setup, library: Library) -> None:
    problem = snapshot(core, library, TRACE, seed=0)
    (solve,) = METHODS.values()
    answer = solve(problem, library)
    again = later(problem, answer, seed=1)
    assert [(r.template.id, r.pool, r.count) for r in again.running] == [
        (c.template.id, c.pool, c.count) for c in answer.chosen
    ]
    moved = [new.rate / old.rate for old, new in zip(problem.demands, again.demands, strict=True)]
    assert all(1 - MOVED <= share <= 1 + MOVED for share in moved)
    assert len(set(moved)) == len(moved)


def test_copies_of_regions_have_prices_of_their_own(core: Setup) -> None:
    prices = prices_of(more_regions(core, 4, 4))
    assert len(prices) == 4 * len(prices_of(core))
    assert len({usd for place, usd in prices.items() if place.configuration == "1xL4"}) == 8
    assert demands_of(more_regions(core, 4, 4))[0].rate == 4 * demands_of(core)[0].rate


def test_copies_of_models_have_templates_of_their_own(core: Setup, library: Library) -> None:
    setup, wider = more_models(core, library, 2)
    assert len(wider.by_service) == 2 * len(library.by_service)
    first = wider.by_service["phi-4-14b/interactive/decode"][0]
    copy = wider.by_service["phi-4-14b-copy2/interactive/decode"][0]
    assert copy.nodes == first.nodes
    assert copy.throughput != first.throughput
    assert copy.rated.template.model == "phi-4-14b-copy2"
    assert copy.rated.rating.throughput == copy.throughput
    problem = snapshot(setup, wider, TRACE, seed=0)
    assert len(problem.demands) == 12
    assert problem.library == wider.digest
