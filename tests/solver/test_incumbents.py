"""Plans that a search tells of on its way: each is an answer, and none changes the last one."""

from collections.abc import Sequence

import pytest

from schemas.allocation import AllocationPolicy, Replicas
from schemas.problems import Answer, Problem, Running
from solver.allocation import solve
from solver.verify import verify
from tests.solver.conftest import MadeUp, Toolbox

MOST_MET = AllocationPolicy(scarcity="most-met")
FLOOR = AllocationPolicy(replicas=(Replicas(model="m", at_least=3),))
BUDGET = AllocationPolicy(budget_usd_per_hour=2.5)
BUDGET_AND_FLOOR = FLOOR.model_copy(update={"budget_usd_per_hour": 2.5})


def told_of(problem: Problem, library: MadeUp) -> list[Answer]:
    """All of them, the last word at the end."""
    told: list[Answer] = []
    told.append(solve(problem, library, better=told.append))
    assert told[-1] == solve(problem, library)
    for answer in told:
        assert verify(problem, answer) == ()
    return told


def asked(
    box: Toolbox, nodes: int, running: Sequence[Running] = (), policy: AllocationPolicy | None = None
) -> list[Answer]:
    """Demand for 4 nodes of `a`, or for one of `b`."""
    library = box.library(
        *sorted([box.rated(["a"], 1.0), box.rated(["b"], 4.0)], key=lambda r: r.template.id)
    )
    stocks = [box.stock("a", nodes, 1.0), box.stock("b", nodes // 4, 3.0)]
    return told_of(box.problem(library, {"m": 4.0}, stocks, running=running, policy=policy), library)


@pytest.mark.parametrize(
    ("nodes", "policy"),
    [(9, None), (2, None), (2, MOST_MET), (9, FLOOR), (2, FLOOR), (9, BUDGET), (9, BUDGET_AND_FLOOR)],
)
def test_what_is_told_of_leaves_less_unmet_or_costs_less_each_time(
    box: Toolbox, nodes: int, policy: AllocationPolicy | None
) -> None:
    told = asked(box, nodes, policy=policy)
    assert len(told) >= 2
    order = [(sum(u.share for u in answer.unmet), answer.value) for answer in told]
    assert order == sorted(order, reverse=True)
    assert order[-2] == order[-1], "the last one told of is what the answer proves"


def test_what_runs_is_told_of_first_as_far_as_stock_holds_it(box: Toolbox) -> None:
    """There is a plan from the first moment on: no search comes before it."""
    running = [box.running(box.rated(["a"], 1.0), 3)]
    first, *_ = asked(box, 2, running)
    assert [(c.template.nodes, c.count) for c in first.chosen] == [(("a",), 2)]
    assert (first.kept, first.status, first.gap, first.steps) == (True, "feasible", 1.0, ())
    assert [u.share for u in first.unmet] == [0.5]
