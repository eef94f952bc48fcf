"""Every kind of fault seeded into a good answer is found, under its name."""

from collections.abc import Callable
from typing import Any

import pytest

from schemas.problems import Answer, Problem, Unmet
from solver.allocation import solve
from solver.verify import verify

Change = Callable[[Problem, Answer], Answer]


@pytest.fixture
def good(box: Any) -> tuple[Problem, Answer]:
    a, b, other = box.rated(["a"], 1.0), box.rated(["b", "b"], 3.0), box.rated(["b"], 1.0, "n")
    library = box.library(*sorted([a, b, other], key=lambda r: r.template.id))
    stocks = [box.stock("a", 2, 1.1), box.stock("b", 3, 0.7), box.stock("c", 3, 9.0)]
    problem = box.problem(
        library, {"m": 6.0, "n": 1.0}, stocks, running=[box.running(a, 1)], ratio={"m": 0.5}
    )
    answer = solve(problem, library)
    assert verify(problem, answer) == ()
    assert answer.unmet
    assert answer.penalty_usd_per_hour > 0
    return problem, answer


def entry(answer: Answer, **changed: object) -> Answer:
    first = answer.chosen[0].model_copy(update=changed)
    return answer.model_copy(update={"chosen": (first, *answer.chosen[1:])})


FAULTS: dict[str, tuple[str, Change]] = {
    "another problem": ("problem", lambda _, a: a.model_copy(update={"problem": "q"})),
    "an entry twice": ("twice", lambda _, a: a.model_copy(update={"chosen": (*a.chosen, a.chosen[0])})),
    "more than there is": ("capacity", lambda _, a: entry(a, count=50)),
    "a pool without such nodes": (
        "pool",
        lambda _, a: entry(a, pool=a.chosen[0].pool.model_copy(update={"region": "moon"})),
    ),
    "unmet demand left out": ("demand", lambda _, a: a.model_copy(update={"unmet": ()})),
    "unmet demand overstated": (
        "unmet",
        lambda _, a: a.model_copy(
            update={"unmet": (a.unmet[0].model_copy(update={"rate": a.unmet[0].rate * 2, "share": 1.0}),)}
        ),
    ),
    "a share that is not the rate's": (
        "unmet",
        lambda _, a: a.model_copy(update={"unmet": (a.unmet[0].model_copy(update={"share": 0.9}),)}),
    ),
    "a stranger's demand": (
        "service",
        lambda _, a: a.model_copy(
            update={
                "unmet": (
                    *a.unmet,
                    Unmet(
                        service=a.unmet[0].service.model_copy(update={"model": "z"}),
                        rate=1.0,
                        share=1.0,
                        binding="nothing",
                    ),
                )
            }
        ),
    ),
    "a cheaper instance": ("price", lambda _, a: entry(a, usd_per_hour=a.chosen[0].usd_per_hour * 0.99)),
    "a cheaper total": ("price", lambda _, a: a.model_copy(update={"usd_per_hour": a.usd_per_hour - 0.01})),
    "a penalty left out": ("penalty", lambda _, a: a.model_copy(update={"penalty_usd_per_hour": 0.0})),
    "a bound above the cost": ("bound", lambda _, a: a.model_copy(update={"bound_usd_per_hour": 99.0})),
    "a gap too small": ("bound", lambda _, a: a.model_copy(update={"bound_usd_per_hour": 0.5})),
    "a throughput made up": (
        "demand",
        lambda _, a: entry(a, rating=a.chosen[0].rating.model_copy(update={"throughput": 0.01})),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_named(fault: str, good: tuple[Problem, Answer]) -> None:
    problem, answer = good
    name, change = FAULTS[fault]
    assert name in {violation.name for violation in verify(problem, change(problem, answer))}


def test_excluded_configurations_are_found(good: tuple[Problem, Answer]) -> None:
    problem, answer = good
    name = answer.chosen[0].template.nodes[0]
    stricter = problem.model_copy(update={"excluded_configurations": (name,)})
    assert "excluded" in {v.name for v in verify(stricter, answer)}


def test_more_than_a_refusal_allows_is_found(box: Any, good: tuple[Problem, Answer]) -> None:
    problem, answer = good
    first = answer.chosen[0]
    stricter = problem.model_copy(
        update={"unfit": (box.unfit(first.template.nodes[0], first.template.model),)}
    )
    assert "unfit" in {v.name for v in verify(stricter, answer)}


def test_two_ratings_of_one_template_are_found(box: Any, good: tuple[Problem, Answer]) -> None:
    problem, answer = good
    first = answer.chosen[0]
    twin = first.model_copy(
        update={"pool": box.west, "rating": first.rating.model_copy(update={"throughput": 9.0})}
    )
    found = verify(problem, answer.model_copy(update={"chosen": (*answer.chosen, twin)}))
    assert "rating" in {v.name for v in found}
