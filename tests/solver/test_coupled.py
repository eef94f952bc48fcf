"""Programs that couple by more than stock, of every kind, against the whole integer program.

Above all: no bound is above what can be reached, and every answer passes the independent check.
"""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyomo.contrib.solver.common.results import Results, SolutionStatus, TerminationCondition

from schemas.allocation import AllocationPolicy, Disaggregation, Replicas
from schemas.problems import Problem, Sliced
from solver import allocation, coupled
from solver.allocation import NoAnswerError, finish, solve, solve_whole
from solver.answers import make_answer
from solver.candidates import Rated
from solver.column_lp import Promise, relax
from solver.columns import make_question
from solver.coupled import GAP, solve_coupled
from solver.dominance import undominated
from solver.existing import existing
from solver.picking import pick, pick_all
from solver.program import Ends, Partial, Picked, Program, Step
from solver.verify import verify
from tests.solver.conftest import WEST, MadeUp, Toolbox

ASKS = ("slices", "replicas", "spread", "spot", "budget", "pinned", "apart", "all")
KIND = Sliced(gpu="H", gpus={f"{n}xH": n for n in (1, 2, 4, 8)})
NODES = (("1xH",), ("2xH",), ("4xH",), ("1xH", "1xH"), ("1xH", "2xH"), ("b",), ("b", "b"), ("2xH", "b"))
RATES = {"both": 3.0, "prefill": 300.0, "decode": 60.0}

asks = pytest.mark.parametrize("ask", ASKS)
seeds = given(seed=st.integers(0, 10_000))
few = settings(max_examples=3, deadline=None)


def templates(box: Toolbox, rng: random.Random, ask: str) -> list[Rated]:
    """Some of each service, bigger ones faster."""
    phases = ("both", "prefill", "decode") if ask in ("apart", "all") else ("both",)
    return [
        box.rated(
            names,
            RATES[phase] * rng.uniform(0.1, 0.3) * sum(KIND.gpus.get(name, 1) for name in names),
            model,
            phase=phase,  # type: ignore[arg-type]
        )
        for model in ("m", "n")
        for phase in phases
        for names in rng.sample(NODES, 5)
    ]


def policy_of(rng: random.Random, ask: str) -> AllocationPolicy:
    fields: dict[str, object] = {"half_rule": ("interactive",), "surcharge_per_step": 0.01}
    if ask in ("replicas", "all"):
        fields["replicas"] = (Replicas(model="m", at_least=rng.randint(0, 3), at_most=rng.randint(3, 5)),)
    if ask in ("spread", "all"):
        fields["regions_at_least"] = {"n": 2}
    if ask in ("spot", "all"):
        fields |= {"spot_share": {"*": rng.choice((0.0, 0.3, 0.6))}, "interruption_hours": 0.5}
    if ask in ("budget", "all"):
        fields["budget_usd_per_hour"] = rng.uniform(5, 25)
    if ask in ("apart", "all"):
        fields["disaggregation"] = tuple(
            Disaggregation(
                model=model,
                slo_class="interactive",
                prefill_tokens_per_s=RATES["prefill"],
                decode_tokens_per_s=RATES["decode"],
                transfer_usd_per_hour=rng.random(),
            )
            for model in ("m", "n")
        )
    return AllocationPolicy.model_validate(fields)


def problem_of(box: Toolbox, seed: int, ask: str) -> tuple[Problem, MadeUp]:
    rng = random.Random(f"{ask} {seed}")
    rated = templates(box, rng, ask)
    library = box.library(*sorted(rated, key=lambda r: r.template.id))
    stocks = [
        box.stock("8xH", rng.randint(0, 2), rng.uniform(8, 12)),
        box.stock("4xH", rng.randint(0, 2), rng.uniform(5, 6)),
        box.stock("1xH", rng.randint(0, 3), rng.uniform(1.2, 2.0)),
        box.stock("b", rng.randint(0, 4), rng.uniform(0.8, 1.5)),
        box.stock("8xH", 1, rng.uniform(3, 5), WEST, 0.1),
        box.stock("b", rng.randint(0, 3), rng.uniform(0.4, 0.6), WEST, 0.1),
    ]
    some = rng.sample(rated, 3) if ask in ("pinned", "all") or seed % 2 else []
    problem = box.problem(
        library,
        {"m": RATES["both"], "n": RATES["both"] * rng.uniform(0.5, 1.5)},
        stocks,
        running=[box.running(r, rng.randint(1, 2), pinned=int(ask in ("pinned", "all"))) for r in some],
        ratio={"m": 0.2},
        sliced=[KIND],
        policy=policy_of(rng, ask),
    )
    return problem, library


@asks
@few
@seeds
def test_each_step_reaches_the_optimum_and_no_bound_is_above_it(box: Toolbox, ask: str, seed: int) -> None:
    """With so few columns in each integer program that some have to be left out and proven useless."""
    question = make_question(*problem_of(box, seed, ask))
    program = question.program
    whole = solve_whole(program)
    for first, most in ((coupled.FIRST, coupled.MOST), (2, 8)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(coupled, "WHOLE", coupled.WHOLE if first == coupled.FIRST else 0)
            patch.setattr(coupled, "FIRST", first)
            patch.setattr(coupled, "MOST", most)
            patch.setattr(coupled, "HARD", most)
            found = solve_coupled(program, finish)
        if first == coupled.FIRST:
            assert [p.step for p in found.proofs] == [p.step for p in whole.proofs]
            assert all(proof.gap <= 1e-3 for proof in found.proofs)
        for best, proof in zip(whole.proofs, found.proofs, strict=False):
            slack = 1e-5 + 1e-6 * abs(best.value)
            near = GAP * (best.value if proof.step == "cost" else 1.0)
            if best.step != proof.step:
                break  # so few columns did not meet what all of them do
            assert proof.bound <= best.value + slack
            assert proof.value >= best.value - slack - near
            if abs(proof.value - best.value) > slack:
                break  # what follows is another question
        if found.proofs:
            assert verify(question.problem, make_answer(question, found)) == ()


@asks
@few
@seeds
def test_the_same_question_has_the_same_answer(box: Toolbox, ask: str, seed: int) -> None:
    problem, library = problem_of(box, seed, ask)
    try:
        first, again = (solve(problem, library) for _ in range(2))
    except NoAnswerError:  # only where the whole program has none either
        assert not solve_whole(make_question(problem, library).program).proofs
        return
    assert verify(problem, first) == ()
    assert first.model_dump_json() == again.model_dump_json()


@asks
@few
@seeds
def test_what_is_left_of_the_columns_does_as_well_as_all(box: Toolbox, ask: str, seed: int) -> None:
    program = make_question(*problem_of(box, seed, ask)).program
    left = undominated(existing(program))
    every = solve_whole(program)
    runs = program.specials
    block, row = (
        [*left.block.tolist(), *(s.block for s in runs)],
        [*left.row.tolist(), *(s.row for s in runs)],
    )
    picked = pick(program, block, row)
    assert len(picked) <= len(pick_all(program))
    for proof in every.proofs[:1]:
        ends = Ends(0.0, 0.0) if proof.step == "cost" else Ends()
        found = finish(program, picked, proof.step, ends, float("inf"))
        assert found is not None
        assert found.value == pytest.approx(proof.value, abs=1e-5, rel=1e-5)


def names_left(box: Toolbox, rated: list[Rated], **asked: object) -> list[tuple[str, ...]]:
    """The templates of which a column is left in the east, with ample stock."""
    library = box.library(*sorted(rated, key=lambda r: r.template.id))
    stocks = [box.stock("8xH", 4, 10.0), box.stock("1xH", 9, 1.5), box.stock("b", 9, 1.0)]
    question = make_question(box.problem(library, {"m": 4.0}, stocks, sliced=[KIND], **asked), library)  # type: ignore[arg-type]
    left = undominated(existing(question.program))
    pairs = zip(left.block.tolist(), left.row.tolist(), strict=True)
    return sorted(question.rated(b, row).template.nodes for b, row in pairs)


def test_a_column_on_fewer_or_smaller_nodes_stands_in(box: Toolbox) -> None:
    small, large, more = box.rated(["1xH"], 2.0), box.rated(["4xH"], 2.0), box.rated(["1xH", "b"], 2.0)
    assert names_left(box, [small, large, more]) == [("1xH",)]
    faster = [box.rated(["4xH"], 2.1), box.rated(["1xH", "b"], 2.1)]
    assert names_left(box, [small, *faster]) == [("1xH",), ("1xH", "b"), ("4xH",)]
    capped = AllocationPolicy(half_rule=("interactive",))
    assert names_left(box, [small, *faster], policy=capped) == [("1xH",)]


def test_another_variant_stands_in(box: Toolbox) -> None:
    pair = [box.rated(["b"], 2.0, variant="bf16"), box.rated(["b"], 3.0, variant="fp8")]
    assert names_left(box, pair) == [("b",)]
    alike = [box.rated(["b"], 2.0, variant="bf16"), box.rated(["b"], 2.0, variant="fp8")]
    assert names_left(box, alike) == [("b",)]


def test_what_runs_stays_and_what_is_limited_stands_in_for_nothing(box: Toolbox) -> None:
    small, large = box.rated(["1xH"], 2.0), box.rated(["4xH"], 2.0)
    assert names_left(box, [small, large], running=[box.running(large, 1)]) == [("1xH",), ("4xH",)]
    assert names_left(box, [small, large], unfit=[box.unfit("1xH", tries=1)]) == [("1xH",), ("4xH",)]


def test_a_row_that_limits_what_is_covered_keeps_who_covers_less(box: Toolbox) -> None:
    """A spot share: replacing an instance by a faster one could break it."""
    slow, fast = box.rated(["b", "b"], 1.0), box.rated(["b"], 1.5)
    library = box.library(*sorted([slow, fast], key=lambda r: r.template.id))
    stocks = [box.stock("b", 9, 1.0), box.stock("b", 9, 0.5, WEST)]
    policy = AllocationPolicy(spot_share={"*": 0.4})
    question = make_question(box.problem(library, {"m": 4.0}, stocks, policy=policy), library)
    left = undominated(existing(question.program))
    regions = [question.pool(b).region for b in left.block.tolist()]
    assert sorted(regions) == ["east", "west", "west"]


def test_a_cost_that_the_work_limit_keeps_from_a_plan_is_that_of_the_plan_at_hand(box: Toolbox) -> None:
    """What its extras say, such as replicas it is short of, is then what it has."""
    question = make_question(*problem_of(box, 2, "replicas"))

    def few_only(
        program: Program, picked: Picked, step: Step, ends: Ends, cutoff: float = np.inf, **limits: float
    ) -> Partial | None:
        if step == "cost" and len(picked) > 8:
            none = np.zeros(len(picked), np.int64), np.zeros(len(program.extras.name))
            return Partial(*none, value=np.inf, bound=-np.inf)
        return finish(program, picked, step, ends, cutoff, **limits)  # type: ignore[arg-type]

    found = solve_coupled(question.program, few_only)
    assert [proof.step for proof in found.proofs][-1] == "cost"
    assert verify(question.problem, make_answer(question, found)) == ()


def test_highs_may_end_before_it_counts_nodes(box: Toolbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures are not valid then, and Pyomo has no count of them."""
    program = make_question(*problem_of(box, 0, "slices")).program
    results = Results()
    results.solution_status = SolutionStatus.noSolution
    results.termination_condition = TerminationCondition.provenInfeasible
    monkeypatch.setattr(allocation, "minimise", lambda *_: results)
    assert finish(program, pick_all(program), "cost", Ends(), 1.0) is None


@few
@seeds
def test_promises_of_earlier_steps_bound_the_relaxation(box: Toolbox, seed: int) -> None:
    """The largest share, their sum, and the cost of leaving no more: each below what whole numbers reach."""
    program = make_question(*problem_of(box, seed, "budget")).program
    columns, none = existing(program), [0.0] * len(program.services)
    whole = {proof.step: proof.value for proof in solve_whole(program).proofs}
    if "worst" not in whole:
        return
    free = np.zeros(len(columns))
    worst = relax(columns, free, np.array(none), program.needs, False, Promise(worst=True))
    assert worst.value <= whole["worst"] + 1e-6
    spare = np.minimum(program.needs, whole["worst"] / program.weight)
    promise = Promise(total=whole["total"], over=1e4)
    cost = relax(columns, columns.cost, np.array(none), spare, promise=promise)
    assert cost.value <= whole["cost"] * (1 + 1e-6)
