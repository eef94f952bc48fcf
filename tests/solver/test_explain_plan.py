"""A plan explained: reasons by what its templates give for their price, neighbours by planning again; and
compared with the next one."""

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from schemas.allocation import AllocationPolicy
from schemas.catalog import PAPER_CATALOG, load_catalog
from schemas.performance import load_efficiencies
from schemas.problems import Answer, Chosen, Pool, Problem, Running, Service, ServiceDemand, Sliced, Stock
from solver.allocation import solve, solve_whole
from solver.answers import make_answer
from solver.building import build_library
from solver.columns import make_question
from solver.explain_plan import Neighbour, Outcome, dearest_gpu, explain_plan, merit, outcome_of
from solver.figures import Figures
from solver.library import Library
from solver.plan_changes import Moves, held, moves
from solver.plan_reasons import best_per_usd, node_prices, nodes_left, reasons
from solver.setups import paper_setup
from solver.simpler import Templates, alike
from solver.verify import verify
from solver.verify_parts import key_of

EAST = Pool(cloud="aws", region="east", market="on-demand")
WEST = Pool(cloud="aws", region="west", market="on-demand")
QWEN = Service(model="qwen3-32b", slo_class="interactive", phase="decode")


@pytest.fixture(scope="module")
def library() -> Library:
    """Decode of one model on L40S alone, where two kinds of node together give more than apart."""
    setup = paper_setup("core", load_catalog(PAPER_CATALOG))
    scope = replace(
        setup.scope.with_limits(n_max=2),
        levels=((QWEN.model, QWEN.slo_class),),
        phases=("decode",),
        configurations=tuple(c for c in setup.scope.configurations if c.name in {"1xL40S", "2xL40S"}),
    )
    return build_library(Figures(setup.catalog, load_efficiencies(), None), scope, cores=1)


@pytest.fixture
def asked(library: Library) -> Callable[..., Problem]:
    """A question by rate and stocks of (pool, configuration, nodes, price)."""

    def make(rate: float, *stocks: tuple[Pool, str, int, float]) -> Problem:
        return Problem(
            id="p",
            library=library.digest,
            demands=(ServiceDemand(service=QWEN, rate=rate),),
            stocks=tuple(
                Stock(pool=pool, configuration=name, nodes=nodes, usd_per_hour=usd)
                for pool, name, nodes, usd in stocks
            ),
        )

    return make


def found_of(other: Neighbour) -> Outcome:
    assert other.outcome is not None
    return other.outcome


def test_the_best_are_said_to_be_and_others_what_kept_those_out(
    library: Library, asked: Callable[..., Problem]
) -> None:
    rate = best_per_usd(asked(1.0, (EAST, "2xL40S", 9, 5.0)), library)[QWEN.key].throughput
    problem = asked(rate, (EAST, "2xL40S", 9, 5.0))
    (best,) = reasons(problem, solve(problem, library), library)
    assert best.of_best == pytest.approx(1)
    assert best.why == "gives most per USD"
    problem = asked(rate, (EAST, "2xL40S", 0, 5.0), (WEST, "2xL40S", 9, 10.0))
    (second,) = reasons(problem, solve(problem, library), library)
    assert second.of_best == pytest.approx(0.5)
    assert second.why == "2 x 2xL40S in aws/east is best: no 2xL40S left"


def test_what_runs_and_is_pinned_is_said_to(library: Library, asked: Callable[..., Problem]) -> None:
    problem = asked(2000.0, (EAST, "2xL40S", 9, 5.0), (WEST, "2xL40S", 9, 10.0))
    (best,) = solve(problem, library).chosen
    run = Running(template=best.template, rating=best.rating, pool=WEST, count=best.count, pinned=1)
    kept = problem.model_copy(update={"running": (run,)})
    answer = solve(kept, library)
    said = dict(zip((c.pool for c in answer.chosen), reasons(kept, answer, library), strict=True))
    assert said[WEST].why.startswith("1 of 1 running already, 1 pinned; ")


def test_what_is_best_may_give_more_than_one_instance_has_to(
    library: Library, asked: Callable[..., Problem]
) -> None:
    top = best_per_usd(asked(1.0, (EAST, "2xL40S", 9, 5.0)), library)[QWEN.key]
    small = asked(0.1 * top.throughput, (EAST, "2xL40S", 9, 5.0), (EAST, "1xL40S", 9, 2.6))
    (reason,) = reasons(small, solve(small, library), library)
    assert reason.of_best < 1
    said = f"is best, but of its {top.throughput:,.0f} only"
    assert said in reason.why
    half = AllocationPolicy(half_rule=(QWEN.slo_class,))
    halved = asked(1.5 * top.throughput, (EAST, "2xL40S", 9, 5.0)).model_copy(update={"policy": half})
    assert all(
        reason.why == "gives most per USD" or said in reason.why
        for reason in reasons(halved, solve(halved, library), library)
    )


def test_the_best_per_usd_goes_by_the_problems_prices(
    library: Library, asked: Callable[..., Problem]
) -> None:
    cheap = asked(1.0, (EAST, "1xL40S", 1, 1.0), (WEST, "2xL40S", 1, 1.5))
    top = best_per_usd(cheap, library)[QWEN.key]
    assert (set(top.nodes), top.pool) == ({"2xL40S"}, WEST.key)
    assert best_per_usd(cheap.model_copy(update={"stocks": ()}), library) == {}


def test_part_of_a_node_costs_its_share(asked: Callable[..., Problem]) -> None:
    problem = asked(1.0, (EAST, "2xL40S", 1, 5.0)).model_copy(
        update={"sliced": (Sliced(gpu="L40S", gpus={"1xL40S": 1, "2xL40S": 2}),)}
    )
    assert node_prices(problem, ["1xL40S", "2xL40S"])[EAST.key].tolist() == [2.5, 5.0]
    assert node_prices(asked(1.0, (EAST, "2xL40S", 1, 5.0)), ["1xL40S", "2xL40S"])[EAST.key].tolist() == [
        np.inf,
        5.0,
    ]


def test_slices_are_left_as_long_as_they_fit(library: Library, asked: Callable[..., Problem]) -> None:
    problem = asked(900.0, (EAST, "2xL40S", 2, 5.0)).model_copy(
        update={"sliced": (Sliced(gpu="L40S", gpus={"1xL40S": 1, "2xL40S": 2}),)}
    )
    nothing = solve(problem.model_copy(update={"demands": ()}), library)
    assert nodes_left(problem, nothing) == {(EAST.key, "1xL40S"): 4, (EAST.key, "2xL40S"): 2}
    (shelf,) = library.parts.values()
    mixed = shelf.rated(next(r for r in range(len(shelf)) if set(shelf.nodes(r)) == {"1xL40S", "2xL40S"}))
    chosen = Chosen(template=mixed.template, rating=mixed.rating, pool=EAST, count=1, usd_per_hour=7.5)
    used = nodes_left(problem, nothing.model_copy(update={"chosen": (chosen,)}))
    assert used == {(EAST.key, "1xL40S"): 1, (EAST.key, "2xL40S"): 0}  # of two nodes one GPU


def test_ratings_are_the_librarys_or_those_of_what_runs(
    library: Library, asked: Callable[..., Problem]
) -> None:
    problem = asked(1000.0, (EAST, "1xL40S", 9, 1.0), (EAST, "2xL40S", 9, 2.0))
    answer = solve(problem, library)
    assert verify(problem, answer, library.throughput) == ()
    chosen = answer.chosen[0]
    rated = chosen.rating.model_copy(update={"throughput": 1e12})
    broken = answer.model_copy(update={"chosen": (chosen.model_copy(update={"rating": rated}),)})
    assert any(
        v.name == "rating" and "rated 1000000000000.0" in v.detail
        for v in verify(problem, broken, library.throughput)
    )
    assert not any(v.name == "rating" for v in verify(problem, broken))
    few = alike(library, "single nodes")
    mixed = next(c.rated for c in library.candidates if len(c.nodes) == 2)
    entry = chosen.model_copy(update={"template": mixed.template, "rating": mixed.rating})
    other = answer.model_copy(update={"chosen": (entry,)})
    (found,) = (v for v in verify(problem, other, few.throughput) if v.name == "rating")
    assert found.detail == f"{mixed.template.id}: neither in the library nor running"
    runs = Running(template=mixed.template, rating=mixed.rating, pool=EAST, count=1)
    running = problem.model_copy(update={"running": (runs,)})
    assert not any(v.name == "rating" for v in verify(running, other, few.throughput))


def test_simpler_libraries_keep_what_they_say(library: Library) -> None:
    (whole,) = library.arrays
    single, one_kind, one_gpu = (alike(library, kind).arrays[0] for kind in get_args(Templates))
    assert ((single.combination >= 0).sum(axis=1) == 1).all()
    kinds = [len(set(row[row >= 0])) for row in one_kind.combination]
    assert set(kinds) == {1}
    assert 0 < len(single) < len(one_kind) < len(one_gpu) == len(whole)  # all are of L40S
    assert alike(library, "single nodes").digest != library.digest
    assert alike(library, "single nodes").header.parts[0].kept == len(single)


def test_each_neighbour_differs_in_one_thing(library: Library, asked: Callable[..., Problem]) -> None:
    problem = asked(2000.0, (EAST, "1xL40S", 3, 2.0), (EAST, "2xL40S", 2, 5.0), (WEST, "1xL40S", 9, 3.0))
    answer = solve(problem, library)
    seen: list[tuple[Problem, str]] = []

    def watched(question: Problem, of: Library) -> Answer:
        seen.append((question, of.digest))
        return solve(question, of)

    found = explain_plan(problem, answer, library, watched)
    assert found.plan == outcome_of(problem, answer)
    changes = [
        sum(a.nodes != b.nodes for a, b in zip(question.stocks, problem.stocks, strict=True))
        for question, _ in seen
    ]
    simpler = len(get_args(Templates))
    assert changes == [1] * (len(seen) - simpler) + [0] * simpler
    assert all(question.library == digest for question, digest in seen)
    met = [found_of(a).usd_per_hour for a in found.alternatives if not found_of(a).total_unmet]
    assert met == sorted(met)
    assert all(usd >= answer.value - 1e-9 for usd in met)
    assert {more.configuration for more in found.one_more} >= {dearest_gpu(problem, library)}
    without = problem.model_copy(update={"excluded_configurations": ("1xL40S",)})
    assert (dearest_gpu(problem, library), dearest_gpu(without, library)) == ("1xL40S", "2xL40S")
    assert all(found_of(more).usd_per_hour <= answer.value + 1e-9 for more in found.one_more)
    for neighbour in (*found.alternatives, *found.one_more, *found.simpler):
        if by := neighbour.change:
            assert by.at_least - 1e-9 <= by.found <= by.at_most + 1e-9
    assert [simpler.templates for simpler in found.simpler] == list(get_args(Templates))
    with pytest.raises(ValueError, match="--one-more: '1xH100' is sold nowhere"):
        explain_plan(problem, answer, library, solve, "1xH100")


def test_what_is_told_is_what_the_whole_program_says(library: Library, asked: Callable[..., Problem]) -> None:
    """Each neighbour's true cost, and the change between what is proven of it."""
    problem = asked(6000.0, (EAST, "1xL40S", 2, 2.0), (EAST, "2xL40S", 3, 5.0), (WEST, "2xL40S", 9, 7.0))
    answer = solve(problem, library)
    least = whole(problem, library)
    found = explain_plan(problem, answer, library, solve, "2xL40S")
    neighbours = [(other, 0) for other in found.alternatives] + [(more, 1) for more in found.one_more]
    for other, more in neighbours:
        nodes = {(s.pool.key, s.configuration): s.nodes for s in problem.stocks}
        place = (other.pool, other.configuration)
        nodes[place] = more and nodes[place] + 1
        stocks = tuple(
            s.model_copy(update={"nodes": nodes[s.pool.key, s.configuration]}) for s in problem.stocks
        )
        truth = whole(problem.model_copy(update={"stocks": stocks}), library)
        assert found_of(other).usd_per_hour == pytest.approx(truth, rel=1e-3)
        if other.change is None:
            assert found_of(other).total_unmet > 0
        else:
            assert other.change.at_least - 1e-6 <= truth - least <= other.change.at_most + 1e-6


def whole(problem: Problem, library: Library) -> float:
    question = make_question(problem, library)
    return make_answer(question, solve_whole(question.program)).value


def test_one_more_node_makes_no_plan_dearer_though_a_search_may_find_a_worse_one(
    library: Library, asked: Callable[..., Problem]
) -> None:
    problem = asked(2000.0, (EAST, "2xL40S", 2, 5.0))
    answer = solve(problem, library)

    def clumsy(question: Problem, of: Library) -> Answer:
        found = solve(question, of)
        return found.model_copy(
            update={
                "usd_per_hour": found.usd_per_hour + 1,
                "bound_usd_per_hour": found.bound_usd_per_hour - 1,
            }
        )

    (more,) = explain_plan(problem, answer, library, clumsy).one_more
    assert found_of(more).usd_per_hour == answer.value
    assert more.change is not None
    assert more.change.found == 0
    assert more.change.at_least == pytest.approx(-1, abs=0.01)
    assert more.change.at_most == 0


def test_without_a_place_no_plan_is_cheaper_though_a_search_may_find_one(
    library: Library, asked: Callable[..., Problem]
) -> None:
    """The plan that is explained is within its gap of the best; one found without a place may be better."""
    problem = asked(2000.0, (EAST, "2xL40S", 2, 5.0), (WEST, "2xL40S", 4, 5.0))
    answer = solve(problem, library)
    worse = answer.model_copy(update={"usd_per_hour": answer.usd_per_hour + 0.5})
    found = explain_plan(problem, worse, library, solve)
    for other in found.alternatives:
        assert other.change is not None
        assert 0 == other.change.at_least == other.change.found <= other.change.at_most


def test_neighbours_are_held_against_a_plan_by_weight_and_in_the_order_that_was_asked(
    library: Library, asked: Callable[..., Problem]
) -> None:
    problem = asked(9000.0, (EAST, "2xL40S", 1, 5.0))
    heavy = problem.model_copy(update={"policy": AllocationPolicy(weights={QWEN.model: 3.0})})
    light, weighed = (outcome_of(p, solve(p, library)) for p in (problem, heavy))
    assert weighed.worst_unmet == pytest.approx(3 * light.worst_unmet)
    spread, worst = (
        light.model_copy(update={"worst_unmet": w, "total_unmet": t}) for w, t in ((0.2, 0.6), (0.5, 0.5))
    )
    assert merit(spread) < merit(worst)
    assert merit(worst, "most-met") < merit(spread, "most-met")


def test_a_neighbour_without_a_plan_is_one_too_and_comes_last(
    library: Library, asked: Callable[..., Problem]
) -> None:
    problem = asked(6000.0, (EAST, "1xL40S", 2, 2.0), (EAST, "2xL40S", 3, 5.0), (WEST, "2xL40S", 9, 7.0))

    def none_without_east(question: Problem, of: Library) -> Answer | None:
        return solve(question, of) if all(stock.nodes for stock in question.stocks[:2]) else None

    found = explain_plan(problem, solve(problem, library), library, none_without_east)
    assert [other.pool for other in found.alternatives if other.outcome] == [WEST.key]
    assert all(other.change is None for other in found.alternatives[1:])
    assert found.alternatives[-1].outcome is None


def test_places_to_do_without_are_those_worth_least(library: Library, asked: Callable[..., Problem]) -> None:
    problem = asked(6000.0, (EAST, "1xL40S", 2, 2.0), (EAST, "2xL40S", 3, 5.0), (WEST, "2xL40S", 9, 7.0))
    answer = solve(problem, library)
    every, one = (explain_plan(problem, answer, library, solve, most=most) for most in (9, 1))
    assert one.places == every.places == len(every.alternatives) > 1
    (least,) = one.alternatives
    assert least in every.alternatives
    assert explain_plan(problem, answer, library, solve, most=0).alternatives == ()


def test_with_nothing_for_sale_there_is_nothing_to_explain(
    library: Library, asked: Callable[..., Problem]
) -> None:
    problem = asked(10.0)
    found = explain_plan(problem, solve(problem, library), library, solve)
    assert (found.alternatives, found.one_more) == ((), ())
    assert found.plan.worst_unmet == 1


# ------------------------------------------------------------------------------------ one plan and another


def test_what_stays_starts_stops_and_moves_adds_up(library: Library, asked: Callable[..., Problem]) -> None:
    first = solve(asked(2000.0, (EAST, "2xL40S", 9, 2.0)), library)
    (chosen,) = first.chosen
    at = [chosen.model_copy(update={"pool": pool, "count": count}) for pool, count in ((EAST, 3), (WEST, 1))]
    found = moves(
        first.model_copy(update={"chosen": (at[0],)}),
        first.model_copy(update={"chosen": (at[0].model_copy(update={"count": 1}), at[1])}),
    )
    assert [found[key_of(c)] for c in at] == [Moves(1, 0, 1, 0, 1), Moves(0, 0, 0, 1, 0)]
    assert set(moves(first, first).values()) == {Moves(chosen.count, 0, 0, 0, 0)}


def test_a_plan_is_held_against_another_question(library: Library, asked: Callable[..., Problem]) -> None:
    own = asked(2000.0, (EAST, "2xL40S", 9, 2.0))
    answer = solve(own, library)
    nodes = sum(chosen.count * len(chosen.template.nodes) for chosen in answer.chosen)
    gives = sum(chosen.count * chosen.rating.throughput for chosen in answer.chosen)
    assert held(own, own, answer) == (answer.usd_per_hour, {}, {})
    assert held(own, own, answer).does
    more = held(asked(2 * gives, (EAST, "2xL40S", 9, 2.0)), own, answer)
    assert more.unmet == {QWEN.key: pytest.approx(0.5)}
    dearer = held(asked(2000.0, (EAST, "2xL40S", 9, 3.0)), own, answer)
    assert dearer.bill_usd_per_hour == pytest.approx(answer.usd_per_hour + nodes)
    assert dearer.does
    excluded = held(own.model_copy(update={"excluded_configurations": ("2xL40S",)}), own, answer)
    assert (excluded.lacking, excluded.does) == ({(EAST.key, "2xL40S"): nodes}, False)
    gone = held(asked(2000.0, (WEST, "2xL40S", 9, 2.0)), own, answer)
    assert (gone.lacking, gone.does) == ({(EAST.key, "2xL40S"): nodes}, False)
