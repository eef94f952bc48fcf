"""Faults that users of such systems reported in public, where the allocation is what must not have them.

Others are where their subject is: what cannot be (NaN, prices of 0), more demand than stock, an impossible
SLO and unsatisfiable models in `test_allocation`, hangs in `tests/streams/test_solving`.
"""

from itertools import pairwise

from schemas.allocation import AllocationPolicy
from schemas.problems import Answer, Problem, Running
from solver.allocation import solve
from solver.verify import verify
from tests.solver.conftest import WEST, MadeUp, Toolbox


def running_after(answer: Answer) -> list[Running]:
    return [Running(template=c.template, rating=c.rating, pool=c.pool, count=c.count) for c in answer.chosen]


def test_demand_around_the_edge_of_a_template_changes_the_plan_twice_at_most(box: Toolbox) -> None:
    """ray-project/ray#18925: demand +-10% around a template's throughput for an hour."""
    library = box.library(
        *sorted([box.rated(["a"], 1.0), box.rated(["b"], 5.0)], key=lambda r: r.template.id)
    )
    policy = AllocationPolicy(minimum_saving=0.25)
    plans, running = [], list[Running]()
    for minute in range(12):
        problem = box.problem(
            library,
            {"m": 5.0 * (1.1 if minute % 2 else 0.9)},
            [box.stock("a", 20, 1.0), box.stock("b", 9, 4.0)],
            running=running,
            ratio={"m": 0.1},
            policy=policy,
        )
        answer = solve(problem, library)
        assert verify(problem, answer) == ()
        running = running_after(answer)
        plans.append({(c.template.id, c.pool.key): c.count for c in answer.chosen})
    assert sum(before != after for before, after in pairwise(plans)) <= 2


def test_a_spot_price_that_falls_a_little_moves_nothing_nor_does_one_without_stock(box: Toolbox) -> None:
    """aws/karpenter-provider-aws#6984: spot price -3%, stock 0."""
    a = box.rated(["a"], 1.0)
    library = box.library(a)

    def plan(usd: float, nodes: int) -> Answer:
        stocks = [box.stock("a", 9, 1.0), box.stock("a", nodes, usd, WEST)]
        policy = AllocationPolicy(minimum_saving=0.1)
        problem = box.problem(library, {"m": 2.0}, stocks, running=[box.running(a, 2)], policy=policy)
        answer = solve(problem, library)
        assert verify(problem, answer) == ()
        return answer

    for usd, nodes in ((0.97, 9), (0.5, 0)):
        assert [(c.pool.region, c.count) for c in plan(usd, nodes).chosen] == [("east", 2)]
    assert [(c.pool.region, c.count) for c in plan(0.5, 9).chosen] == [("west", 2)]


def test_nothing_asked_ten_times_starts_nothing(box: Toolbox) -> None:
    """llm-d/llm-d-autoscaling#380: ticks without load."""
    library, running = box.library(box.rated(["a"], 1.0)), list[Running]()
    for _ in range(10):
        problem = box.problem(library, {"m": 0.0}, [box.stock("a", 9, 1.0)], running=running)
        answer = solve(problem, library)
        assert (answer.chosen, answer.usd_per_hour) == ((), 0)
        running = running_after(answer)


def test_an_instance_has_all_its_nodes_or_is_not_planned(box: Toolbox) -> None:
    """kubernetes/autoscaler#5170: three of an instance's four nodes can be had."""
    library = box.library(box.rated(["a"] * 4, 4.0))
    for sold in ([box.stock("a", 3, 1.0)], [box.stock("a", 3, 1.0), box.stock("a", 1, 1.0, WEST)]):
        answer = solve(box.problem(library, {"m": 4.0}, sold), library)
        assert (answer.chosen, answer.usd_per_hour) == ((), 0)
        assert [u.binding for u in answer.unmet] == ["stock of a"]


def test_a_plan_keeps_the_prices_that_it_used(box: Toolbox) -> None:
    """skypilot-org/skypilot#2780: the price changes after the plan."""
    library: MadeUp = box.library(box.rated(["a"], 1.0))
    then = box.problem(library, {"m": 2.0}, [box.stock("a", 9, 1.0)])
    answer = Answer.model_validate_json(solve(then, library).model_dump_json())
    now = then.model_copy(update={"stocks": (box.stock("a", 9, 1.5),)})
    assert (answer.usd_per_hour, answer.chosen[0].usd_per_hour) == (2.0, 1.0)
    assert verify(Problem.model_validate_json(then.model_dump_json()), answer) == ()
    assert {violation.name for violation in verify(now, answer)} == {"price"}


def test_order_of_what_is_asked_changes_nothing(box: Toolbox) -> None:
    """Same inputs, same answer: however they were listed."""
    a, b = box.rated(["a"], 1.0), box.rated(["b"], 1.0)
    library = box.library(*sorted([a, b, box.rated(["a"], 1.0, "n")], key=lambda r: r.template.id))
    stocks = [box.stock("a", 2, 1.0), box.stock("b", 2, 1.0), box.stock("a", 2, 1.0, WEST)]
    running = [box.running(a, 1), box.running(b, 1), box.running(a, 1, WEST)]
    one = box.problem(library, {"m": 3.0, "n": 1.0}, stocks, running=running)
    other = one.model_copy(
        update={name: tuple(reversed(getattr(one, name))) for name in ("demands", "stocks", "running")}
    )
    assert solve(one, library) == solve(other, library)
