"""The allocation against brute force, and its answers where there is not enough."""

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from pydantic import ValidationError

from schemas.problems import Service, ServiceDemand, Stock
from solver import allocation
from solver.allocation import NoAnswerError, solve
from solver.answers import make_answer
from solver.candidates import Refused
from solver.columns import ProblemError, make_question
from solver.methods import METHODS, method
from solver.partials import nothing
from solver.verify import verify
from tests.solver.brute import brute_force, measured, within_the_proof
from tests.solver.cases import random_case


@pytest.mark.parametrize("seed", range(40))
def test_equals_brute_force(seed: int, box: Any) -> None:
    problem, library = random_case(seed, box)
    answer = solve(problem, library)
    assert verify(problem, answer) == ()
    within_the_proof(answer, measured(problem, library, answer), brute_force(problem, library))


def test_same_problem_same_answer(box: Any) -> None:
    for seed in range(5):
        problem, library = random_case(seed, box)
        assert solve(problem, library) == solve(problem, library)


def test_seconds_come_from_the_callers_clock(box: Any) -> None:
    library = box.library(box.rated(["a"], 1.0))
    problem = box.problem(library, {"m": 1.0}, [box.stock("a", 1, 1.0)])
    ticks = count(10.0, 0.5)
    timed = solve(problem, library, clock=lambda: next(ticks))
    assert timed.seconds >= 1
    assert 0 < sum(timed.timings.values()) <= timed.seconds
    assert solve(problem, library).seconds == 0


def test_more_than_there_is_uses_all_and_names_the_stock(box: Any) -> None:
    """ai-dynamo/dynamo#8583: demand for 50 GPUs, 32 exist."""
    library = box.library(box.rated(["a"], 1.0))
    problem = box.problem(library, {"m": 50.0}, [box.stock("a", 32, 2.0)])
    answer = solve(problem, library)
    assert verify(problem, answer) == ()
    assert [c.count for c in answer.chosen] == [32]
    assert answer.usd_per_hour == 64
    (unmet,) = answer.unmet
    assert unmet.rate == pytest.approx(18)
    assert unmet.share == pytest.approx(0.36)
    assert unmet.binding == "stock of a"


def test_short_stock_is_shared_so_that_no_model_starves(box: Any) -> None:
    library = box.library(box.rated(["a"], 1.0, "m"), box.rated(["a"], 1.0, "n"))
    problem = box.problem(library, {"m": 10.0, "n": 10.0}, [box.stock("a", 8, 1.0)])
    answer = solve(problem, library)
    assert sorted(c.count for c in answer.chosen) == [4, 4]
    assert [round(u.share, 6) for u in answer.unmet] == [0.6, 0.6]


def test_no_stock_at_all_is_an_answer(box: Any) -> None:
    """Pyomo/pyomo#2920, #3130: an unsatisfiable model must not raise."""
    library = box.library(box.rated(["a", "b"], 1.0))
    for stocks in ([], [box.stock("a", 0, 1.0)], [box.stock("a", 5, 1.0)]):
        answer = solve(box.problem(library, {"m": 1.0}, stocks), library)
        assert answer.chosen == ()
        assert answer.unmet[0].share == 1
        assert answer.unmet[0].binding.startswith("stock of ")
        assert "b" in answer.unmet[0].binding


def test_an_impossible_slo_is_named(box: Any) -> None:
    """llm-d/llm-d-autoscaling#260: never silently infeasible; the other service is still served."""
    refused = (
        Refused(service=Service(model="n", slo_class="interactive"), reasons={"slo-too-tight": 3}),
        Refused(service=Service(model="o", slo_class="interactive"), reasons={"does-not-fit": 3}),
    )
    library = box.library(box.rated(["a"], 1.0, "m"), refused=refused)
    problem = box.problem(library, {"m": 1.0, "n": 1.0, "o": 1.0, "p": 1.0}, [box.stock("a", 4, 1.0)])
    answer = solve(problem, library)
    assert verify(problem, answer) == ()
    assert [c.service.model for c in answer.chosen] == ["m"]
    assert {u.service.model: u.binding for u in answer.unmet} == {
        "n": "no template meets the SLO",
        "o": "no template fits",
        "p": "the library was not built for this service",
    }


def test_a_search_that_found_nothing_is_no_answer(box: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All zeros would pass for one, and drain whatever runs; what runs is one, as far as the stock goes."""
    a = box.rated(["a"], 1.0)
    library = box.library(a)
    fresh = box.problem(library, {"m": 4.0}, [box.stock("a", 2, 1.0)])
    beside = box.problem(library, {"m": 4.0}, [box.stock("a", 2, 1.0)], running=[box.running(a, 3)])
    monkeypatch.setattr(allocation, "_search", lambda program, *_: replace(nothing(program), proofs=()))
    with pytest.raises(NoAnswerError, match="within 5000 nodes"):
        solve(fresh, library)
    answer = solve(beside, library)
    assert verify(beside, answer) == ()
    assert [c.count for c in answer.chosen] == [2]
    assert (answer.kept, answer.status, answer.bound_usd_per_hour) == (True, "feasible", 0)


def test_no_demand_starts_nothing(box: Any) -> None:
    library = box.library(box.rated(["a"], 1.0))
    for demands in ({}, {"m": 0.0}):
        answer = solve(box.problem(library, demands, [box.stock("a", 4, 1.0)]), library)
        assert (answer.chosen, answer.unmet, answer.usd_per_hour) == ((), (), 0)


def test_what_runs_is_kept_unless_moving_pays(box: Any) -> None:
    a, b = box.rated(["a"], 1.0), box.rated(["b"], 1.0)
    library = box.library(a, b)
    stocks = [box.stock("a", 4, 1.0), box.stock("b", 4, 0.9)]

    def chosen(ratio: float) -> list[str]:
        problem = box.problem(library, {"m": 2.0}, stocks, running=[box.running(a, 2)], ratio={"m": ratio})
        answer = solve(problem, library)
        assert verify(problem, answer) == ()
        return [name for c in answer.chosen for name in c.template.nodes]

    assert chosen(0.2) == ["a"]  # 0.9 x 1.2 is dearer than 1.0
    assert chosen(0.05) == ["b"]


def test_running_templates_stay_selectable_when_the_library_lacks_them(box: Any) -> None:
    library = box.library(box.rated(["a"], 1.0))
    old = box.rated(["b"], 3.0)
    stocks = [box.stock("a", 4, 1.0), box.stock("b", 1, 1.0)]
    problem = box.problem(library, {"m": 3.0}, stocks, running=[box.running(old, 1)], ratio={"m": 0.1})
    answer = solve(problem, library)
    assert [c.template.id for c in answer.chosen] == [old.template.id]
    assert answer.penalty_usd_per_hour == 0


def test_the_librarys_rating_wins_over_a_running_ones(box: Any) -> None:
    library = box.library(box.rated(["a"], 1.0))
    problem = box.problem(
        library, {"m": 2.0}, [box.stock("a", 4, 1.0)], running=[box.running(box.rated(["a"], 5.0), 1)]
    )
    answer = solve(problem, library)
    assert [(c.count, c.rating.throughput) for c in answer.chosen] == [(2, 1.0)]


def test_a_template_stays_in_one_pool_and_off_excluded_nodes(box: Any) -> None:
    library = box.library(box.rated(["a", "b"], 4.0), box.rated(["a"], 1.0))
    stocks = [box.stock("a", 1, 1.0, box.east), box.stock("b", 1, 1.0, box.west)]
    answer = solve(box.problem(library, {"m": 4.0}, stocks), library)
    assert [c.template.nodes for c in answer.chosen] == [("a",)]
    none = solve(box.problem(library, {"m": 4.0}, stocks, excluded=["a"]), library)
    assert none.chosen == ()
    assert none.unmet[0].share == 1


def test_a_place_that_refused_a_model_gets_no_more_of_it_and_other_places_take_over(box: Any) -> None:
    a, other = box.rated(["a"], 1.0), box.rated(["a"], 1.0, "n")
    library = box.library(*sorted([a, other], key=lambda r: r.template.id))
    stocks = [box.stock("a", 6, 1.0), box.stock("a", 1, 9.0, box.west)]
    problem = box.problem(
        library, {"m": 3.0, "n": 1.0}, stocks, running=[box.running(a, 1)], unfit=[box.unfit("a")]
    )
    answer = solve(problem, library)
    assert verify(problem, answer) == ()
    chosen = {(c.service.model, c.pool.region): c.count for c in answer.chosen}
    assert chosen == {("m", "east"): 1, ("m", "west"): 1, ("n", "east"): 1}, "what runs there stays"
    (unmet,) = answer.unmet
    assert unmet.binding == "stock of a; refused: unknown_model on a in c/east/*/on-demand"


def test_once_the_back_off_is_over_one_instance_may_try(box: Any) -> None:
    a = box.rated(["a"], 1.0)
    library = box.library(a)
    problem = box.problem(library, {"m": 3.0}, [box.stock("a", 6, 1.0)], unfit=[box.unfit("a", tries=1)])
    answer = solve(problem, library)
    assert [c.count for c in answer.chosen] == [1]
    assert [u.binding for u in answer.unmet] == ["refused: unknown_model on a in c/east/*/on-demand"]


def test_a_place_that_refuses_everything_leaves_nothing_but_its_name(box: Any) -> None:
    library = box.library(box.rated(["a"], 1.0))
    problem = box.problem(library, {"m": 3.0}, [box.stock("a", 6, 1.0)], unfit=[box.unfit("a")])
    answer = solve(problem, library)
    assert answer.chosen == ()
    assert [u.binding for u in answer.unmet] == ["refused: unknown_model on a in c/east/*/on-demand"]


def test_nodes_that_do_not_count_since_they_refuse_are_named(box: Any) -> None:
    library = box.library(box.rated(["a"], 1.0))
    stock = box.stock("a", 0, 1.0).model_copy(update={"refused": ("port_taken",)})
    problem = box.problem(library, {"m": 3.0}, [stock])
    assert [u.binding for u in solve(problem, library).unmet] == ["stock of a; refused: port_taken"]


BAD_STOCK = {
    "a price of 0": {"usd_per_hour": 0.0},
    "a price below 0": {"usd_per_hour": -1.0},
    "a price that is none": {"usd_per_hour": float("nan")},
    "a price without end": {"usd_per_hour": float("inf")},
    "less than nothing": {"nodes": -1},
}


@pytest.mark.parametrize("fault", BAD_STOCK)
def test_stock_that_cannot_be_is_a_typed_error(box: Any, fault: str) -> None:
    library = box.library(box.rated(["a"], 1.0))
    good = box.problem(library, {"m": 1.0}, [box.stock("a", 1, 1.0)])
    stock = good.stocks[0].model_copy(update=BAD_STOCK[fault])
    with pytest.raises(ProblemError, match=r"stocks: .*a in c/east.*expected"):
        solve(good.model_copy(update={"stocks": (stock,)}), library)
    with pytest.raises(ValidationError):
        Stock.model_validate(stock.model_dump())


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_demand_that_cannot_be_is_a_typed_error(box: Any, rate: float) -> None:
    """ai-dynamo/dynamo#6985, #3131."""
    library = box.library(box.rated(["a"], 1.0))
    good = box.problem(library, {"m": 1.0}, [box.stock("a", 1, 1.0)])
    demand = good.demands[0].model_copy(update={"rate": rate})
    with pytest.raises(ProblemError, match=r"demands: m/interactive/both has .*expected"):
        solve(good.model_copy(update={"demands": (demand,)}), library)
    with pytest.raises(ValidationError):
        ServiceDemand.model_validate(demand.model_dump())


def test_contradictions_are_typed_errors(box: Any) -> None:
    library = box.library(box.rated(["a"], 1.0))
    good = box.problem(library, {"m": 1.0}, [box.stock("a", 1, 1.0)])
    for changed, match in (
        ({"library": "feed"}, "library"),
        ({"stocks": good.stocks * 2}, "stocks"),
        ({"demands": good.demands * 2}, "demands"),
        ({"startup_ratio": {"m": -0.1}}, "startup_ratio"),
        ({"startup_ratio": {"m": float("nan")}}, "startup_ratio"),
    ):
        with pytest.raises(ProblemError, match=match):
            solve(good.model_copy(update=changed), library)


def test_stock_that_no_template_knows_is_told_and_left_out(box: Any) -> None:
    library = box.library(box.rated(["a"], 1.0))
    problem = box.problem(library, {"m": 1.0}, [box.stock("a", 1, 1.0), box.stock("z", 9, 0.1)])
    answer = solve(problem, library)
    assert answer.ignored == ("stock of z in c/east/*/on-demand: in no template",)
    assert [c.template.nodes for c in answer.chosen] == [("a",)]


def test_an_empty_library_and_no_region_at_all_are_answers(box: Any) -> None:
    empty = box.library()
    answer = solve(box.problem(empty, {"m": 1.0}, [box.stock("a", 1, 1.0)]), empty)
    assert (answer.chosen, answer.unmet[0].share, answer.gap) == ((), 1, 0)
    assert answer.unmet[0].binding == "the library was not built for this service"
    one = box.library(box.rated(["a"], 1.0))
    nowhere = solve(box.problem(one, {"m": 1.0}, [], running=[box.running(box.rated(["a"], 1.0), 1)]), one)
    assert (nowhere.chosen, nowhere.unmet[0].binding) == ((), "stock of a")
    assert nowhere.status == "optimal"


def test_what_has_no_node_does_not_hide_what_others_lack(box: Any) -> None:
    """A service that cannot be served at all would be the worst whatever the others get."""
    rated = [box.rated(["a"], 1.0, "m"), box.rated(["a"], 1.0, "n"), box.rated(["z"], 1.0, "o")]
    library = box.library(*sorted(rated, key=lambda r: r.template.id))
    problem = box.problem(library, {"m": 4.0, "n": 4.0, "o": 1.0}, [box.stock("a", 4, 1.0)])
    answer = solve(problem, library)
    assert verify(problem, answer) == ()
    assert {u.service.model: round(u.share, 6) for u in answer.unmet} == {"m": 0.5, "n": 0.5, "o": 1.0}
    assert [step.minimised for step in answer.steps] == ["worst", "total", "cost"]


def test_methods_are_found_by_name() -> None:
    assert method("coral") is METHODS["coral"]
    with pytest.raises(ProblemError, match="expected one of"):
        method("gurobi")


def test_it_prints_nothing(box: Any, capfd: pytest.CaptureFixture[str]) -> None:
    problem, library = random_case(3, box)
    solve(problem, library)
    assert capfd.readouterr() == ("", "")


def test_a_step_tells_what_the_plan_reaches_though_a_later_one_found_it(box: Any) -> None:
    library = box.library(box.rated(["a"], 1.0))
    problem = box.problem(library, {"m": 4.0}, [box.stock("a", 3, 1.0)])
    question = make_question(problem, library)
    solved = allocation.solve_whole(question.program)
    loose = tuple(p if p.step == "cost" else p._replace(value=0.5, bound=0.2) for p in solved.proofs)
    answer = make_answer(question, replace(solved, proofs=loose))
    assert [(s.minimised, round(s.value, 6)) for s in answer.steps] == [
        ("worst", 0.25),
        ("total", 0.25),
        ("cost", 3.0),
    ]
    assert verify(problem, answer) == ()
