"""A right answer corrupted in every way: by hand, each under the name of what it breaks, and by number.

The check shares nothing with the search: it knows the question, the answer and arithmetic.
"""

import ast
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import solver.verify
from schemas.allocation import AllocationPolicy, Disaggregation, Replicas
from schemas.problems import Answer, Bought, Breach, Problem, Sliced, Step
from solver.allocation import solve
from solver.verify import verify
from tests.solver.conftest import WEST, Toolbox

KIND = Sliced(gpu="H", gpus={f"{n}xH": n for n in (1, 2, 4, 8)})
PAIR = Disaggregation(
    model="m",
    slo_class="interactive",
    prefill_tokens_per_s=100.0,
    decode_tokens_per_s=50.0,
    transfer_usd_per_hour=0.5,
)
Case = tuple[Problem, Answer]


# ------------------------------------------------------------------------------------------- right answers


def short_of_stock(box: Toolbox) -> Case:
    a, b = box.rated(["a"], 1.0), box.rated(["b", "b"], 3.0)
    library = box.library(*sorted([a, b, box.rated(["b"], 1.0, "n")], key=lambda r: r.template.id))
    stocks = [box.stock("a", 2, 1.1), box.stock("b", 3, 0.7)]
    running = [box.running(a, 1)]
    problem = box.problem(library, {"m": 6.0, "n": 1.0}, stocks, running=running, ratio={"m": 0.5})
    return problem, solve(problem, library)


def with_policies(box: Toolbox) -> Case:
    """Spread, spot share, risk, surcharge, a ceiling, a floor that cannot be kept, and a pinned instance that
    has lost its place."""
    a, mix, n = box.rated(["a"], 1.0), box.rated(["a", "b"], 2.5), box.rated(["b"], 1.0, "n")
    library = box.library(*sorted([a, mix, n], key=lambda r: r.template.id))
    stocks = [
        box.stock("a", 4, 1.0),
        box.stock("a", 4, 0.4, WEST, interruptions_per_hour=0.1),
        box.stock("b", 2, 0.5),
        box.stock("b", 0, 0.5, WEST),
    ]
    policy = AllocationPolicy(
        surcharge_per_step=0.05,
        interruption_hours=2.0,
        replicas=(Replicas(model="n", at_least=3), Replicas(model="m", at_least=2, at_most=6)),
        regions_at_least={"m": 2},
        spot_share={"m": 0.5},
        budget_usd_per_hour=20.0,
        variants={"m": ("bf16",)},
    )
    running = [box.running(n, 1, WEST, pinned=1), box.running(a, 1, pinned=1)]
    problem = box.problem(library, {"m": 4.0, "n": 1.0}, stocks, running=running, policy=policy)
    return problem, solve(problem, library)


def on_slices(box: Toolbox) -> Case:
    rated = [box.rated(["1xH"], 1.0, "m"), box.rated(["4xH"], 1.0, "n")]
    library = box.library(*sorted(rated, key=lambda r: r.template.id))
    stocks = [box.stock("8xH", 3, 80.0), box.stock("4xH", 0, 50.0)]
    problem = box.problem(library, {"m": 3.0, "n": 1.0}, stocks, sliced=[KIND], ratio={"m": 0.1})
    return problem, solve(problem, library)


def served_apart(box: Toolbox) -> Case:
    halves = [box.rated(["b"], 100.0, phase="prefill"), box.rated(["c"], 50.0, phase="decode")]
    library = box.library(*sorted([*halves, box.rated(["a"], 10.0)], key=lambda r: r.template.id))
    stocks = [box.stock("a", 1, 90.0), box.stock("b", 2, 8.0), box.stock("c", 2, 8.0)]
    policy = AllocationPolicy(disaggregation=(PAIR,))
    problem = box.problem(library, {"m": 10.0}, stocks, policy=policy)
    return problem, solve(problem, library)


def kept_as_it_is(box: Toolbox) -> Case:
    a, b = box.rated(["a"], 1.0), box.rated(["b"], 1.0)
    library = box.library(*sorted([a, b], key=lambda r: r.template.id))
    stocks = [box.stock("a", 9, 1.0), box.stock("b", 9, 0.9)]
    policy = AllocationPolicy(minimum_saving=0.15)
    problem = box.problem(library, {"m": 2.0}, stocks, running=[box.running(a, 2)], policy=policy)
    return problem, solve(problem, library)


MAKERS = {
    make.__name__: make for make in (short_of_stock, with_policies, on_slices, served_apart, kept_as_it_is)
}


@pytest.fixture(scope="module")
def cases(box: Toolbox) -> dict[str, Case]:
    made = {name: make(box) for name, make in MAKERS.items()}
    assert all(verify(problem, answer) == () for problem, answer in made.values())
    return made


def test_the_right_answers_have_everything_that_can_be_corrupted(cases: dict[str, Case]) -> None:
    answers = [answer for _, answer in cases.values()]
    for part in ("unmet", "nodes", "apart", "steps", "breaches", "kept", "penalty_usd_per_hour"):
        assert any(getattr(answer, part) for answer in answers), part
    assert {b.policy for a in answers for b in a.breaches} == {"replicas", "pinned"}


# ----------------------------------------------------------------------------------------------- by hand


def first(answer: Answer, part: str, **changed: object) -> Answer:
    """The first entry of a part, changed."""
    entry, *others = getattr(answer, part)
    return answer.model_copy(update={part: (entry.model_copy(update=changed), *others)})


def twice(part: str) -> Callable[[Answer], Answer]:
    return lambda a: a.model_copy(update={part: (*getattr(a, part), getattr(a, part)[0])})


def told(breach: Breach) -> Callable[[Answer], Answer]:
    return lambda a: a.model_copy(update={"breaches": (*a.breaches, breach)})


def off(field: str, factor: float) -> Callable[[Answer], Answer]:
    return lambda a: a.model_copy(update={field: getattr(a, field) * factor})


def step(**changed: object) -> Callable[[Answer], Answer]:
    return lambda a: first(a, "steps", **changed)


FAULTS: dict[str, tuple[str, str, Callable[[Answer], Answer]]] = {
    "one instance more": (
        "short_of_stock",
        "price",
        lambda a: first(a, "chosen", count=a.chosen[0].count + 1),
    ),
    "an instance less than none": ("short_of_stock", "count", lambda a: first(a, "chosen", count=-1)),
    "a price off by a cent": ("short_of_stock", "price", off("usd_per_hour", 1.001)),
    "unmet demand halved": (
        "short_of_stock",
        "demand",
        lambda a: first(a, "unmet", rate=a.unmet[0].rate / 2, share=a.unmet[0].share / 2),
    ),
    "unmet demand told twice": ("short_of_stock", "twice", twice("unmet")),
    "a rate that is none": (
        "short_of_stock",
        "demand",
        lambda a: first(a, "chosen", rating=a.chosen[0].rating.model_copy(update={"throughput": math.nan})),
    ),
    "a template under another's id": (
        "short_of_stock",
        "template",
        lambda a: first(a, "chosen", template=a.chosen[0].template.model_copy(update={"id": "feed"})),
    ),
    "a bound understated": ("short_of_stock", "bound", off("bound_usd_per_hour", 0.9)),
    "a bound that is none": ("short_of_stock", "bound", off("bound_usd_per_hour", math.nan)),
    "a gap that is none": ("short_of_stock", "bound", lambda a: a.model_copy(update={"gap": math.nan})),
    "a bound and a gap that agree, called optimal": (
        "short_of_stock",
        "bound",
        lambda a: a.model_copy(update={"bound_usd_per_hour": a.value / 2, "gap": 0.5, "status": "optimal"}),
    ),
    "a step that reached less": ("short_of_stock", "steps", step(value=0.01, bound=0.01)),
    "a step without its gap": ("short_of_stock", "steps", step(bound=0.0, gap=0.0)),
    "a step that is none": ("short_of_stock", "steps", step(value=math.nan)),
    "steps out of order": (
        "short_of_stock",
        "steps",
        lambda a: a.model_copy(update={"steps": tuple(reversed(a.steps))}),
    ),
    "a cost that is not the answer's": (
        "on_slices",
        "steps",
        lambda a: a.model_copy(
            update={"steps": (*a.steps[:-1], Step(minimised="cost", value=1.0, bound=1.0, gap=0.0))}
        ),
    ),
    "a floor's breach unsaid": ("with_policies", "replicas", lambda a: a.model_copy(update={"breaches": ()})),
    "a breach that says to have less": (
        "with_policies",
        "breach",
        lambda a: a.model_copy(
            update={"breaches": tuple(b.model_copy(update={"got": 0}) for b in a.breaches)}
        ),
    ),
    "a breach of what nobody asked for": (
        "with_policies",
        "breach",
        told(Breach(policy="regions_at_least", subject="n/interactive/both", asked=2, got=1)),
    ),
    "a breach of what is kept": (
        "with_policies",
        "breach",
        told(Breach(policy="regions_at_least", subject="m/interactive/both", asked=2, got=2)),
    ),
    "a breach told twice": ("with_policies", "twice", twice("breaches")),
    "policies that cost nothing": ("with_policies", "policy-price", off("policy_usd_per_hour", 0.0)),
    "nodes bought twice": ("on_slices", "twice", twice("nodes")),
    "nodes not bought": ("on_slices", "slices", lambda a: a.model_copy(update={"nodes": ()})),
    "smaller nodes bought": ("on_slices", "slices", lambda a: first(a, "nodes", configuration="2xH")),
    "a node bought that is not shared": (
        "short_of_stock",
        "slices",
        lambda a: a.model_copy(
            update={"nodes": (Bought(pool=a.chosen[0].pool, configuration="a", count=1, usd_per_hour=1.1),)}
        ),
    ),
    "a share served apart twice": ("served_apart", "twice", twice("apart")),
    "more served apart than is there": ("served_apart", "apart", lambda a: first(a, "apart", share=2.0)),
    "a share that is none": ("served_apart", "apart", lambda a: first(a, "apart", share=math.nan)),
    "apart in another region": ("served_apart", "apart", lambda a: first(a, "apart", region="c/west")),
    "apart as another variant": ("served_apart", "apart", lambda a: first(a, "apart", variant="fp8")),
    "caches sent for nothing": ("served_apart", "price", off("usd_per_hour", 16 / 16.5)),
    "kept, with one more": ("kept_as_it_is", "kept", lambda a: first(a, "chosen", count=3)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_corrupted_answer_is_found_out_by_name(fault: str, cases: dict[str, Case]) -> None:
    case, name, corrupt = FAULTS[fault]
    problem, answer = cases[case]
    assert name in {violation.name for violation in verify(problem, corrupt(answer))}


# ----------------------------------------------------------------------------------- under other questions


STRICTER: dict[str, tuple[str, str, Callable[[Problem], dict[str, Any]]]] = {
    "pool": ("short_of_stock", "pool", lambda p: {"stocks": p.stocks[1:]}),
    "stock": (
        "short_of_stock",
        "capacity",
        lambda p: {"stocks": tuple(s.model_copy(update={"nodes": 0}) for s in p.stocks)},
    ),
    "excluded node under slices": ("on_slices", "excluded", lambda _: {"excluded_configurations": ("8xH",)}),
    "excluded slice": ("on_slices", "excluded", lambda _: {"excluded_configurations": ("1xH",)}),
    "start-up": ("short_of_stock", "penalty", lambda _: {"startup_ratio": {"m": 0.9}}),
    "nothing runs": ("kept_as_it_is", "kept", lambda _: {"running": ()}),
    "demand": ("kept_as_it_is", "demand", lambda p: {"demands": (_more(p),)}),
    "no demand": ("kept_as_it_is", "service", lambda _: {"demands": ()}),
    "no pairs": ("served_apart", "apart", lambda _: {"policy": AllocationPolicy()}),
    "ceiling": (
        "with_policies",
        "replicas",
        lambda p: _policy(p, replicas=(Replicas(model="m", at_most=2),)),
    ),
    "regions": ("with_policies", "regions_at_least", lambda p: _policy(p, regions_at_least={"m": 3})),
    "spot": ("with_policies", "spot_share", lambda p: _policy(p, spot_share={"m": 0.1})),
    "budget": ("with_policies", "budget", lambda p: _policy(p, budget_usd_per_hour=3.0)),
    "variants": ("with_policies", "variants", lambda p: _policy(p, variants={"m": ("fp8",)})),
    "pinned": (
        "with_policies",
        "pinned",
        lambda p: {"running": tuple(r.model_copy(update={"count": 9, "pinned": 9}) for r in p.running)},
    ),
    "room for a pinned one": (
        "with_policies",
        "breach",
        lambda p: {"stocks": tuple(s.model_copy(update={"nodes": 9}) for s in p.stocks)},
    ),
}


def _more(problem: Problem) -> Any:
    return problem.demands[0].model_copy(update={"rate": 3.0})


def _policy(problem: Problem, **changed: object) -> dict[str, Any]:
    return {"policy": problem.policy.model_copy(update=changed)}


@pytest.mark.parametrize("fault", STRICTER)
def test_an_answer_to_another_question_is_found_out_by_name(fault: str, cases: dict[str, Case]) -> None:
    case, name, change = STRICTER[fault]
    problem, answer = cases[case]
    asked = problem.model_copy(update=change(problem))
    assert name in {violation.name for violation in verify(asked, answer)}


# -------------------------------------------------------------------------------------------- by number

FREE = {
    "columns": "how many there were to choose from says the search",
    "seconds": "measured",
    "timings": "measured",
    "binding": "shadow prices are the relaxation's",
    "latency": "describes a template",
    "memory_gb": "describes a template",
    "throughput": "more than is needed is no fault, and only the library knows",
}


def numbers(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where the numbers are in plain data, but for those that no one could check."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inside:
        if key not in FREE:
            yield from numbers(below, (*path, key))
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def changed(data: Any, path: tuple[str | int, ...], value: float) -> Any:
    """A copy with one number changed."""
    if not path:
        return value
    key, *below = path
    copy: Any = dict(data) if isinstance(data, dict) else list(data)
    copy[key] = changed(data[key], tuple(below), value)
    return copy


@pytest.mark.parametrize("case", MAKERS)
def test_no_number_can_be_changed_unseen(case: str, cases: dict[str, Case]) -> None:
    """One more, one less, a tenth more: the schema refuses it, or the check finds it, but for rounding."""
    problem, answer = cases[case]
    data = answer.model_dump(mode="json")
    for path in numbers(data):
        at: Any = data
        for key in path:
            at = at[key]
        for value in (at + 1, at - 1, *([at * 1.1] if isinstance(at, float) and abs(at) > ROUNDING else [])):
            try:
                wrong = Answer.model_validate(changed(data, path, value), strict=False)
            except ValidationError:
                continue
            assert verify(problem, wrong), f"{'.'.join(map(str, path))}: {at} -> {value}"


ROUNDING = 1e-5
"""A tenth of less is within what the check takes for rounding."""
OTHERS = {"schemas", "collections", "dataclasses", "math", "typing"}


def test_the_check_shares_nothing_with_the_search() -> None:
    """Its modules import schemas, the standard library and each other: no Pyomo, no arrays, no columns."""
    folder = Path(solver.verify.__file__).parent
    ours = {path.stem for path in folder.glob("verify*.py")}
    assert len(ours) > 1
    for path in folder.glob("verify*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                top, _, below = name.partition(".")
                assert top in {"schemas", "collections", "dataclasses", "math", "typing"} or below in ours, (
                    name
                )
