"""Policies that contradict each other or the stock, figures at the edge: a typed error or a typed answer."""

import pytest
from pydantic import ValidationError

from schemas.allocation import AllocationPolicy, Disaggregation, Replicas
from schemas.problems import Answer, Problem, Sliced, Stock
from solver.allocation import solve
from solver.asked import ProblemError
from solver.candidates import Rated
from solver.library import LibraryError
from solver.verify import verify
from tests.solver.conftest import EAST, WEST, MadeUp, Toolbox

KIND = Sliced(gpu="H", gpus={f"{n}xH": n for n in (1, 2, 4, 8)})
PAIR = Disaggregation(
    model="m", slo_class="interactive", prefill_tokens_per_s=100.0, decode_tokens_per_s=50.0
)
SERVICE = "m/interactive/both"


def checked(problem: Problem, library: MadeUp) -> Answer:
    answer = solve(problem, library)
    assert verify(problem, answer) == ()
    return answer


def counts(answer: Answer) -> dict[str, int]:
    return {"+".join(c.template.nodes): c.count for c in answer.chosen}


def shortfall(answer: Answer) -> dict[str, tuple[int, int]]:
    return {breach.policy: (breach.asked, breach.got) for breach in answer.breaches}


@pytest.fixture
def one(box: Toolbox) -> MadeUp:
    return box.library(box.rated(["a"], 1.0))


# ------------------------------------------------------------------------------------- limits against floors


def test_a_floor_above_its_ceiling_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"at_most: 1, expected at least at_least, 2"):
        Replicas(model="m", at_least=2, at_most=1)


def test_a_ceiling_below_the_regions_asked_for_holds_and_the_regions_are_told(
    box: Toolbox, one: MadeUp
) -> None:
    policy = AllocationPolicy(regions_at_least={"m": 3}, replicas=(Replicas(model="m", at_most=1),))
    stocks = [box.stock("a", 2, 8.0), box.stock("a", 2, 8.0, WEST)]
    answer = checked(box.problem(one, {"m": 2.0}, stocks, policy=policy), one)
    assert sum(counts(answer).values()) == 1
    assert shortfall(answer) == {"regions_at_least": (3, 1)}
    assert [u.binding for u in answer.unmet] == [f"replicas of {SERVICE}, at most"]


def test_a_budget_of_nothing_leaves_what_is_paid_anyway(box: Toolbox) -> None:
    library = box.library(
        *sorted([box.rated(["a"], 1.0), box.rated(["b"], 1.0)], key=lambda r: r.template.id)
    )
    reserved = box.stock("b", 1, 1.0).model_copy(
        update={"usd_per_hour": 0.0, "pool": EAST.model_copy(update={"market": "reserved"})}
    )
    policy = AllocationPolicy(budget_usd_per_hour=0.0, replicas=(Replicas(model="m", at_least=2),))
    answer = checked(
        box.problem(library, {"m": 2.0}, [box.stock("a", 9, 1.0), reserved], policy=policy), library
    )
    assert counts(answer) == {"b": 1}
    assert answer.usd_per_hour == 0
    assert shortfall(answer) == {"replicas": (2, 1)}
    assert [(u.share, u.binding.endswith("budget")) for u in answer.unmet] == [(0.5, True)]


def test_no_spot_where_there_is_only_spot_leaves_demand_and_floors_unmet(box: Toolbox, one: MadeUp) -> None:
    policy = AllocationPolicy(
        spot_share={"*": 0.0}, regions_at_least={"m": 2}, replicas=(Replicas(model="m", at_least=3),)
    )
    answer = checked(box.problem(one, {"m": 1.0}, [box.stock("a", 2, 8.0, WEST)], policy=policy), one)
    assert answer.chosen == ()
    assert shortfall(answer) == {"replicas": (3, 0), "regions_at_least": (2, 0)}
    assert [u.binding for u in answer.unmet] == [f"spot share of {SERVICE}"]


def test_floors_are_for_demanded_services_not_for_what_is_pinned_beside_them(box: Toolbox) -> None:
    whole, prefill = box.rated(["a"], 1.0), box.rated(["a"], 1.0, phase="prefill")
    library = box.library(*sorted([whole, prefill], key=lambda r: r.template.id))
    problem = box.problem(
        library,
        {"m": 1.0},
        [box.stock("a", 9, 1.0)],
        running=[box.running(prefill, 1, pinned=1)],
        policy=AllocationPolicy(replicas=(Replicas(model="m", at_least=2),)),
    )
    assert {c.template.phase: c.count for c in checked(problem, library).chosen} == {"both": 2, "prefill": 1}


# ------------------------------------------------------------------------------------------ what is pinned


@pytest.mark.parametrize(
    ("stocks", "excluded", "binding"),
    [
        ([], (), "stock of a"),
        ([("a", 0)], (), "stock of a"),
        ([("a", 2)], ("a",), "excluded: a"),
    ],
)
def test_a_pinned_instance_that_has_no_place_is_told(
    box: Toolbox, one: MadeUp, stocks: list[tuple[str, int]], excluded: tuple[str, ...], binding: str
) -> None:
    problem = box.problem(
        one,
        {"m": 1.0},
        [box.stock(name, nodes, 8.0) for name, nodes in stocks],
        running=[box.running(box.rated(["a"], 1.0), 1, pinned=1)],
        excluded=excluded,
    )
    answer = checked(problem, one)
    assert (answer.chosen, shortfall(answer)) == ((), {"pinned": (1, 0)})
    assert [u.binding for u in answer.unmet] == [binding]


def test_a_pinned_slice_overrides_the_budget_with_the_node_under_it(box: Toolbox) -> None:
    a = box.rated(["1xH"], 1.0)
    library = box.library(a)
    problem = box.problem(
        library,
        {"m": 3.0},
        [box.stock("8xH", 2, 80.0), box.stock("2xH", 1, 30.0)],
        sliced=[KIND],
        running=[box.running(a, 3, pinned=3)],
        policy=AllocationPolicy(budget_usd_per_hour=0.0),
    )
    answer = checked(problem, library)
    assert counts(answer) == {"1xH": 3}
    assert answer.usd_per_hour in {80.0, 110.0}


def test_what_is_kept_keeps_what_is_pinned_where_stock_holds_no_more(box: Toolbox) -> None:
    single, double, other = box.rated(["a"], 1.0), box.rated(["a", "a"], 2.0), box.rated(["b"], 1.0)
    library = box.library(*sorted([single, double, other], key=lambda r: r.template.id))
    for pinned, loose in ((single, double), (double, single)):
        problem = box.problem(
            library,
            {"m": 2.0},
            [box.stock("a", 2, 1.0), box.stock("b", 9, 0.9)],
            running=[box.running(loose, 2), box.running(pinned, 2, pinned=2)],
            policy=AllocationPolicy(minimum_saving=0.5),
        )
        answer = checked(problem, library)
        assert {c.template.id for c in answer.chosen} == {pinned.template.id}


# ------------------------------------------------------------------------------------- excluded and filtered


def test_a_slice_that_is_excluded_is_not_used_and_a_node_that_is_excluded_not_bought(box: Toolbox) -> None:
    library = box.library(box.rated(["1xH"], 1.0))
    stocks = [box.stock("8xH", 2, 80.0), box.stock("1xH", 2, 90.0)]
    small = box.problem(library, {"m": 1.0}, stocks, sliced=[KIND], excluded=["1xH"])
    assert [u.binding for u in checked(small, library).unmet] == ["excluded: 1xH"]
    large = box.problem(library, {"m": 1.0}, stocks, sliced=[KIND], excluded=["8xH"])
    assert [(b.configuration, b.count) for b in checked(large, library).nodes] == [("1xH", 1)]


def test_an_exclusion_of_what_no_template_knows_is_told(box: Toolbox, one: MadeUp) -> None:
    answer = checked(box.problem(one, {"m": 1.0}, [box.stock("a", 1, 1.0)], excluded=["8xZ"]), one)
    assert answer.ignored == ("excluded 8xZ: in no template",)


@pytest.mark.parametrize("allowed", [("fp8",), ()])
def test_variants_that_leave_none_are_named(box: Toolbox, one: MadeUp, allowed: tuple[str, ...]) -> None:
    policy = AllocationPolicy(variants={"m": allowed})
    answer = checked(box.problem(one, {"m": 1.0}, [box.stock("a", 2, 8.0)], policy=policy), one)
    assert [u.binding for u in answer.unmet] == ["variants: none of bf16 is good enough"]


def test_instances_that_restart_all_the_time_serve_nothing_and_are_named(box: Toolbox) -> None:
    library = box.library(box.rated(["a", "a"], 1.0))
    policy = AllocationPolicy(failures_per_node_hour=1.0, recovery_s={"m": 3600.0})
    answer = checked(box.problem(library, {"m": 1.0}, [box.stock("a", 8, 8.0)], policy=policy), library)
    assert answer.chosen == ()
    assert [u.binding for u in answer.unmet] == ["restarts: instances fail as fast as they recover"]


# --------------------------------------------------------------------------------------------- served apart


def test_what_no_template_serves_whole_may_be_served_apart(box: Toolbox) -> None:
    """Whether the library has no template for both phases, or no pool the nodes for it."""
    halves = [box.rated(["b"], 100.0, phase="prefill"), box.rated(["c"], 50.0, phase="decode")]
    stocks = [box.stock("b", 2, 8.0), box.stock("c", 2, 8.0)]
    policy = AllocationPolicy(disaggregation=(PAIR,))
    for rated, sold in (
        (halves, stocks),
        ([*halves, box.rated(["z"], 10.0)], stocks),
        ([*halves, box.rated(["z"], 10.0)], [*stocks, box.stock("z", 0, 1.0)]),
    ):
        library = box.library(*sorted(rated, key=lambda r: r.template.id))
        answer = checked(box.problem(library, {"m": 10.0}, sold, policy=policy), library)
        assert (counts(answer), answer.unmet) == ({"b": 1, "c": 1}, ())


def test_a_pinned_half_counts_for_a_floor_even_where_nothing_can_be_served(box: Toolbox) -> None:
    decode = box.rated(["c"], 50.0, phase="decode")
    library = box.library(decode)
    policy = AllocationPolicy(
        disaggregation=(PAIR,), replicas=(Replicas(model="m", at_least=2),), regions_at_least={"m": 1}
    )
    problem = box.problem(
        library,
        {"m": 10.0},
        [box.stock("c", 2, 8.0)],
        running=[box.running(decode, 1, pinned=1)],
        policy=policy,
    )
    answer = checked(problem, library)
    assert counts(answer) == {"c": 1}
    assert shortfall(answer) == {"replicas": (2, 1)}


def test_halves_that_are_pinned_stay_where_the_whole_has_no_demand(box: Toolbox) -> None:
    halves = [box.rated(["b"], 100.0, phase="prefill"), box.rated(["c"], 50.0, phase="decode")]
    library = box.library(*sorted(halves, key=lambda r: r.template.id))
    problem = box.problem(
        library,
        {"m": 0.0},
        [box.stock("b", 2, 8.0), box.stock("c", 2, 8.0)],
        running=[box.running(half, 1, pinned=1) for half in halves],
        policy=AllocationPolicy(disaggregation=(PAIR,)),
    )
    assert counts(checked(problem, library)) == {"b": 1, "c": 1}


def test_what_is_served_apart_now_is_kept_with_what_its_caches_cost(box: Toolbox) -> None:
    halves = [box.rated(["b"], 100.0, phase="prefill"), box.rated(["c"], 50.0, phase="decode")]
    library = box.library(*sorted([*halves, box.rated(["a"], 10.0)], key=lambda r: r.template.id))
    pair = PAIR.model_copy(update={"transfer_usd_per_hour": 1.0})
    problem = box.problem(
        library,
        {"m": 10.0},
        [box.stock("b", 2, 8.0), box.stock("c", 2, 8.0), box.stock("a", 2, 16.5)],
        running=[box.running(half, 1) for half in halves],
        policy=AllocationPolicy(disaggregation=(pair,), minimum_saving=0.2),
    )
    answer = checked(problem, library)
    assert answer.kept
    assert answer.usd_per_hour == pytest.approx(17.0)


# ---------------------------------------------------------------------------------------------- huge numbers


@pytest.mark.parametrize("rate", [1e4, 1e6])
def test_demand_far_beyond_the_stock_still_uses_all_of_it(box: Toolbox, one: MadeUp, rate: float) -> None:
    """A proof leaves a thousandth of the demand open, which here is all that can be served."""
    stocks, running = [box.stock("a", 4, 1.0)], [box.running(box.rated(["a"], 1.0), 3)]
    for runs in ([], running):
        assert counts(checked(box.problem(one, {"m": rate}, stocks, running=runs), one)) == {"a": 4}


@pytest.mark.parametrize("rate", [2e6, 1e300])
def test_demand_a_million_times_any_template_is_refused(box: Toolbox, one: MadeUp, rate: float) -> None:
    with pytest.raises(ProblemError, match=rf"demands: {SERVICE} has .*expected at most 1e\+06 times"):
        solve(box.problem(one, {"m": rate}, [box.stock("a", 20, 1.0)]), one)


def test_stock_and_prices_without_measure_are_answered(box: Toolbox) -> None:
    a = box.rated(["1xH"], 1.0)
    library = box.library(a)
    dear = [box.stock("1xH", 2**53 - 1, 1e6)]
    answer = checked(box.problem(library, {"m": 1e4}, dear), library)
    assert answer.usd_per_hour == pytest.approx(1e10)
    shared = box.problem(library, {"m": 1e5}, [box.stock("8xH", 2**53 - 1, 80.0)], sliced=[KIND])
    assert [b.count for b in checked(shared, library).nodes] == [12_500]
    for demand, price in ((1e-300, 1.0), (1.0, 1e-300)):
        cheap = box.problem(library, {"m": demand}, [box.stock("1xH", 5, price)])
        assert counts(checked(cheap, library)) == {"1xH": 1}


BAD_RUNNING: dict[str, dict[str, object]] = {
    "rated": {"throughput": float("nan")},
    "running: 0 of": {"count": 0},
    "pinned, expected": {"pinned": -1},
}


@pytest.mark.parametrize("fault", BAD_RUNNING)
def test_what_cannot_run_is_refused(box: Toolbox, one: MadeUp, fault: str) -> None:
    run, changed = box.running(box.rated(["q"], 1.0), 1), BAD_RUNNING[fault]
    if "throughput" in changed:
        changed = {"rating": run.rating.model_copy(update=changed)}
    stocks = [box.stock("a", 1, 1.0), box.stock("q", 1, 1.0)]
    problem = box.problem(one, {"m": 1.0}, stocks, running=[run.model_copy(update=changed)])
    with pytest.raises(ProblemError, match=fault):
        solve(problem, one)


BAD_POLICIES: dict[str, dict[str, object]] = {
    r"policy.weights.m: nan": {"weights": {"m": float("nan")}},
    r"policy.weights.m: 0.0": {"weights": {"m": 0.0}},
    r"policy.budget_usd_per_hour: nan": {"budget_usd_per_hour": float("nan")},
    r"policy.budget_usd_per_hour: -1.0": {"budget_usd_per_hour": -1.0},
    r"policy.surcharge_per_step: nan": {"surcharge_per_step": float("nan")},
    r"policy.spot_share.m: 1.5": {"spot_share": {"m": 1.5}},
}


@pytest.mark.parametrize("fault", BAD_POLICIES)
def test_a_policy_that_cannot_be_is_refused(box: Toolbox, one: MadeUp, fault: str) -> None:
    """Schemas check what enters; copies with changes go round them."""
    policy = AllocationPolicy().model_copy(update=BAD_POLICIES[fault])
    problem = box.problem(one, {"m": 1.0}, [box.stock("a", 1, 1.0)])
    with pytest.raises(ProblemError, match=fault):
        solve(problem.model_copy(update={"policy": policy}), one)


def test_more_configurations_than_a_program_can_number_are_refused(box: Toolbox) -> None:
    rated: list[Rated] = [box.rated([f"c{k}"], 1.0) for k in range(128)]
    library = box.library(*rated)
    stocks: list[Stock] = [box.stock("c0", 1, 1.0)]
    with pytest.raises(LibraryError, match="128 configurations in templates, expected at most 127"):
        solve(box.problem(library, {"m": 1.0}, stocks), library)
