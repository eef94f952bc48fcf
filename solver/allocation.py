"""The allocation (coral.md, "Stage 2"): how many instances of which template in which pool, at least cost.

The integer program in Pyomo, one function per constraint family, for HiGHS on one thread. `solver.bounds`
finds the few columns that a better plan could have and hands them to `finish`; over all columns
(`solve_whole`) the same model is what tests hold it against.

Pyomo captures the file descriptors of its process while HiGHS runs: solve in a worker process.
"""

import math
from collections.abc import Callable

import numpy as np
import pyomo.environ as pyo
from pyomo.contrib.solver.common.results import Results, SolutionStatus, TerminationCondition
from pyomo.core.expr.numeric_expr import LinearExpression

from schemas.problems import Answer, Problem
from solver import bounds
from solver.answers import RELATIVE_GAP, make_answer
from solver.candidates import Templates
from solver.choice import Chosen, Plans
from solver.columns import ProblemError, make_question
from solver.keeping import kept_plan
from solver.modelling import ABSOLUTE_GAP, linear, minimise
from solver.partials import ROUNDING, aside_of, better_of, nothing, solved_of, value_of
from solver.picking import pick_all
from solver.program import Better, Ends, Finish, Floats, Ints, Partial, Picked, Program, Proof, Solved, Step
from solver.telling import Telling

__all__ = ["NoAnswerError", "ProblemError", "build_model", "finish", "solve", "solve_whole"]

PROVEN = 1e-3
"""Where an answer's proof leaves no more open than this, of the cost as a share and of unmet shares as it
is, the search has done."""
SMALL = 2_000
"""Columns that HiGHS takes whole in well under a second."""
NODE_LIMIT = 5_000
"""Branch-and-bound nodes a solve: a work limit keeps answers deterministic, where a time limit would not."""


class NoAnswerError(RuntimeError):
    """There is no plan within the limits, or none was found: what runs had better stay."""


def solve(
    problem: Problem,
    library: Templates,
    *,
    clock: Callable[[], float] | None = None,
    better: Callable[[Answer], None] | None = None,
) -> Answer:
    """Answer a problem; too little stock or no fitting template is an answer with `unmet`, never an error.

    Args:
        clock: seconds, for `Answer.seconds`; without one that is 0 and the caller fills it.
        better: is told of plans on the way, each better than those before: first of what runs, trimmed to
            today's stock.

    Raises:
        ProblemError: the problem names another library, or contradicts itself.
        NoAnswerError: no plan keeps all limits, or the work limit was hit before one was found and nothing
            runs that would do.
    """
    start = clock() if clock else 0.0
    question = make_question(problem, library)
    telling = Telling(question, better) if better else None
    if telling:
        telling.running(finish)
    solved = _search(question.program, clock, telling)
    kept = kept_plan(question, solved, finish)
    if not (kept or solved).proofs:
        raise NoAnswerError(f"no allocation found within {NODE_LIMIT} nodes of the search and all limits")
    answer = make_answer(question, kept or solved, kept=kept is not None)
    return answer.model_copy(update={"seconds": clock() - start}) if clock else answer


def _search(program: Program, clock: Callable[[], float] | None, better: Better | None) -> Solved:
    """The search, and where it leaves a small program open, the whole of it; without columns, nothing."""
    if not program.blocks:
        return nothing(program)
    solved = bounds.solve(program, finish, decide, clock, better)
    if program.size > SMALL or (solved.proofs and all(_closed(program, proof) for proof in solved.proofs)):
        return solved
    whole = solve_whole(program)
    return whole if whole.proofs else solved


def _closed(program: Program, proof: Proof) -> bool:
    """Whether a proof leaves little open; where hardly anything can be served, little of that."""
    if proof.step == "cost":
        return proof.gap <= PROVEN
    weighed = program.weight * program.needs
    nothing_served = float(weighed.max(initial=0.0) if proof.step == "worst" else weighed.sum())
    return proof.gap <= min(PROVEN, 0.1 * (nothing_served - proof.bound))


def finish(
    program: Program,
    picked: Picked,
    step: Step,
    ends: Ends,
    cutoff: float = math.inf,
    *,
    gap: float = RELATIVE_GAP,
    node_limit: int = NODE_LIMIT,
) -> Partial | None:
    """The best counts of some columns, by one step's objective (`solver.program.Finish`). HiGHS's gap is
    relative to all of it: where nobody pays some, a second search goes on to the same share of the rest.

    Returns:
        None where it is proven that there is none below the cutoff. Where the work limit ended the search
        before anything was found, a value of infinity with the bound that was reached.
    """
    model = build_model(program, picked, ends)
    objective = {"cost": model.cost, "total": model.total, "worst": model.most}[step]
    found = _found(model, program, picked, step, minimise(model, objective, cutoff, gap, node_limit))
    if found is None or step != "cost" or not math.isfinite(found.value) or found.nodes >= node_limit:
        return found
    aside = aside_of(program, found.extras)
    within = max(ABSOLUTE_GAP, gap * (found.value - aside))
    if aside <= 0 or found.value - found.bound <= within:
        return found
    results = minimise(model, objective, cutoff, 0.0, node_limit, absolute=within)
    further = _found(model, program, picked, step, results)
    return found if further is None else better_of(found, further)


def _found(
    model: pyo.ConcreteModel, program: Program, picked: Picked, step: Step, results: Results
) -> Partial | None:
    """What HiGHS has found (`finish`)."""
    nodes = max(0, int(getattr(results.extra_info, "mip_node_count", None) or 0))  # not always there
    bound = results.objective_bound
    bound = float(bound) if bound is not None and math.isfinite(bound) else -math.inf
    if results.solution_status not in {SolutionStatus.optimal, SolutionStatus.feasible}:
        if results.termination_condition == TerminationCondition.provenInfeasible:
            return None
        none = np.zeros(len(picked), np.int64)
        return Partial(none, np.zeros(len(program.extras.name)), math.inf, bound, nodes)
    primal = results.solution_loader.get_vars([*model.x.values(), *model.y.values()])
    counts = np.array([round(primal[v]) for v in model.x.values()], np.int64)
    extras = _extras(program, [primal[v] for v in model.y.values()])
    value = value_of(program, picked, counts, extras, step)
    return Partial(counts, extras, value, min(bound, value), nodes)


def solve_whole(program: Program, finisher: Finish = finish) -> Solved:
    """Every step over every column: the reference, for small programs."""
    picked = pick_all(program)
    steps: list[tuple[Step, Partial]] = []
    met = finisher(program, picked, "cost", Ends(0.0, 0.0), math.inf)
    if met is not None and math.isfinite(met.value):
        return solved_of(program, picked, [("cost", met)])
    ends = Ends()
    for step in program.steps:
        found = finisher(program, picked, step, ends, math.inf)
        if found is None or not math.isfinite(found.value):
            break
        steps.append((step, found))
        ends = ends if step == "cost" else ends._replace(**{step: found.value})
    return solved_of(program, picked, steps)


# ----------------------------------------------------------------------------------------- choosing of plans


def decide(plans: Plans, right: Ints, total: float, cutoff: float) -> Chosen:
    """The best choice of one listed plan for each service (`solver.choice.Decide`)."""
    model = build_choice(plans, right, total)
    results = minimise(model, model.cost, cutoff, RELATIVE_GAP, NODE_LIMIT, {"presolve": "off"})
    bound = results.objective_bound
    low = float(bound) if bound is not None and math.isfinite(bound) else -math.inf
    none = np.full(len(plans.begin) - 1, -1, np.int64)
    if results.solution_status not in {SolutionStatus.optimal, SolutionStatus.feasible}:
        infeasible = results.termination_condition == TerminationCondition.provenInfeasible
        return Chosen(none, math.inf, cutoff if infeasible else min(low, cutoff))
    primal = results.solution_loader.get_vars(list(model.z.values()))
    taken = np.flatnonzero([round(primal[v]) for v in model.z.values()])
    # HiGHS may return what is not below the cutoff, where it has shown that nothing is.
    return Chosen(taken.astype(np.int64), float(plans.objective[taken].sum()), min(low, cutoff))


def build_choice(plans: Plans, right: Ints, total: float) -> pyo.ConcreteModel:
    """The integer program over plans; `cost` is its objective."""
    model = pyo.ConcreteModel()
    model.z = pyo.Var(range(len(plans.slack)), domain=pyo.Binary)
    define_choice(model, plans)
    define_stock(model, plans, right)
    define_most_unmet(model, plans, total)
    model.cost = pyo.Objective(expr=linear(plans.objective.tolist(), model.z.values()))
    model.cost.deactivate()
    return model


def define_choice(model: pyo.ConcreteModel, plans: Plans) -> None:
    """Each service takes one plan: sum over its plans p of z_p = 1."""
    z, begin = list(model.z.values()), plans.begin.tolist()
    model.choice = pyo.Constraint(
        range(len(begin) - 1),
        rule=lambda _, s: (1, linear([1.0] * (begin[s + 1] - begin[s]), z[begin[s] : begin[s + 1]]), 1),
    )


def define_stock(model: pyo.ConcreteModel, plans: Plans, right: Ints) -> None:
    """Plans draw no more on a pool's nodes than there are: sum over p of U_c(p) z_p <= A_r(c)."""
    z = list(model.z.values())
    drawn = {row: np.flatnonzero(plans.use[:, row]).tolist() for row in range(len(right))}
    model.stock = pyo.Constraint(
        [row for row, by in drawn.items() if by],
        rule=lambda _, row: (
            None,
            linear(plans.use[drawn[row], row].tolist(), [z[p] for p in drawn[row]]),
            int(right[row]),
        ),
    )


def define_most_unmet(model: pyo.ConcreteModel, plans: Plans, total: float) -> None:
    """What plans leave unmet, by weight, adds up to no more than the step before reached."""
    leaves = np.flatnonzero(plans.unmet).tolist()
    if math.isfinite(total) and leaves:
        z = list(model.z.values())
        sum_ = linear(plans.unmet[leaves].tolist(), [z[p] for p in leaves])
        model.most_unmet = pyo.Constraint(expr=(None, sum_, total))


# ------------------------------------------------------------------------------------------------- the model


def build_model(program: Program, picked: Picked, ends: Ends) -> pyo.ConcreteModel:
    """The integer program over some columns; `cost`, `total` and `most` are its objectives, all inactive."""
    model = pyo.ConcreteModel()
    define_variables(model, program, picked)
    define_rows(model, program, picked)
    define_demand(model, program, picked)
    define_worst_share(model, program)
    define_startup_penalty(model, picked)
    define_promises(model, program, ends)
    define_objectives(model, program, picked)
    return model


def define_variables(model: pyo.ConcreteModel, program: Program, picked: Picked) -> None:
    """x, instances of a column: whole, at least those pinned, at most what its pool could hold.

    y, the other variables: nodes bought to be shared (whole), shares served apart, what a policy is short of.
    unmet, share of a service's demand that is left; worst, the largest of them by weight.
    """
    least, limit = picked.least.tolist(), picked.limit.tolist()
    model.x = pyo.Var(
        range(len(least)), domain=pyo.Integers, bounds=lambda _, j: (least[j], max(least[j], limit[j]))
    )
    extras = program.extras
    model.y = pyo.Var(
        range(len(extras.name)),
        domain=lambda _, k: pyo.Integers if extras.whole[k] else pyo.Reals,
        bounds=lambda _, k: (float(extras.low[k]), float(extras.high[k])),
    )
    needs = program.needs.tolist()
    wanted = [s for s, need in enumerate(needs) if need > 0]
    model.unmet = pyo.Var(wanted, bounds=lambda _, s: (0, needs[s]))
    model.worst = pyo.Var(bounds=(0, None))


def define_rows(model: pyo.ConcreteModel, program: Program, picked: Picked) -> None:
    """Stock, and policies that couple columns: what columns and extras draw on a row is at most what it has.

    sum over tau of U_c(tau) nu_r(tau) <= A_r(c), for every pool r and configuration c; and so on: what each
    row counts is said where it is made (`solver.columns`, `solver.coupling`).
    """
    x, y = list(model.x.values()), list(model.y.values())
    entries: dict[int, tuple[list[float], list[object]]] = {}
    terms = (picked.term_row.tolist(), picked.term_column.tolist(), picked.term_amount.tolist())
    for row, column, amount in zip(*terms, strict=True):
        _add(entries, row, amount, x[column])
    for extra, row, amount in program.extras.draws:
        _add(entries, row, amount, y[extra])
    right = program.rows.right.tolist()
    model.rows = pyo.Constraint(
        sorted(entries), rule=lambda _, row: (None, linear(*entries[row]), right[row])
    )


def define_demand(model: pyo.ConcreteModel, program: Program, picked: Picked) -> None:
    """For every service: the shares that its instances cover, those served apart, and the unmet one, reach 1.

    sum over r, tau of min(T(tau), cap T_m) / T_m nu_r(tau) + unmet_m >= 1.
    """
    x, y = list(model.x.values()), list(model.y.values())
    entries: dict[int, tuple[list[float], list[object]]] = {}
    for column, (service, cover) in enumerate(
        zip(picked.service.tolist(), picked.cover.tolist(), strict=True)
    ):
        _add(entries, service, cover, x[column])
    for extra, service, share in program.extras.covers:
        _add(entries, service, share, y[extra])
    for service in model.unmet:
        _add(entries, service, 1.0, model.unmet[service])
    needs = program.needs.tolist()
    model.demand = pyo.Constraint(list(model.unmet), rule=lambda _, s: (needs[s], linear(*entries[s]), None))


def define_worst_share(model: pyo.ConcreteModel, program: Program) -> None:
    """The worst share is at least every service's unmet one, by weight."""
    weight = program.weight.tolist()
    model.worst_share = pyo.Constraint(list(model.unmet), rule=lambda m, s: m.worst >= weight[s] * m.unmet[s])


def define_startup_penalty(model: pyo.ConcreteModel, picked: Picked) -> None:
    """For every column: its penalty is at least what starting the instances beyond those running costs.

    I_r(tau) >= (nu_r(tau) - running_r(tau)) p_r(tau) K, I >= 0. Where nothing runs this is an equation at any
    optimum, so the penalty is written into the cost and takes no variable.
    """
    pays = np.flatnonzero((picked.running > 0) & (picked.start > 0)).tolist()
    model.penalty = pyo.Var(pays, domain=pyo.NonNegativeReals)
    running, start = picked.running.tolist(), picked.start.tolist()
    model.startup = pyo.Constraint(pays, rule=lambda m, j: m.penalty[j] >= (m.x[j] - running[j]) * start[j])


def define_promises(model: pyo.ConcreteModel, program: Program, ends: Ends) -> None:
    """Steps before left no more unmet: the worst share and the sum of shares are at most what they
    reached."""
    if math.isfinite(ends.worst):
        model.worst.setub(ends.worst + ROUNDING)
        for s, unmet in model.unmet.items():
            unmet.setub(min(program.needs[s], (ends.worst + ROUNDING) / program.weight[s]))
    if math.isfinite(ends.total):
        weighed = _weighed(model, program)
        model.no_more = pyo.Constraint(expr=(None, weighed, ends.total + ROUNDING))


def define_objectives(model: pyo.ConcreteModel, program: Program, picked: Picked) -> None:
    """Cost: price of all instances and extras, and start-up, USD per hour. Total: sum of unmet shares by
    weight. Most: the largest of them."""
    prices = np.where(picked.running > 0, picked.price, picked.price + picked.start).tolist()
    variables = [*model.x.values(), *model.y.values(), *model.penalty.values()]
    factors = [*prices, *program.extras.price.tolist(), *[1.0] * len(model.penalty)]
    model.cost = pyo.Objective(expr=linear(factors, variables))
    model.total = pyo.Objective(expr=_weighed(model, program))
    model.most = pyo.Objective(expr=model.worst)
    for objective in (model.cost, model.total, model.most):
        objective.deactivate()


def _weighed(model: pyo.ConcreteModel, program: Program) -> LinearExpression:
    return linear([float(program.weight[s]) for s in model.unmet], list(model.unmet.values()))


def _add(
    entries: dict[int, tuple[list[float], list[object]]], key: int, factor: float, variable: object
) -> None:
    factors, variables = entries.setdefault(key, ([], []))
    factors.append(factor)
    variables.append(variable)


# ---------------------------------------------------------------------------------------------------- helpers


def _extras(program: Program, values: list[float]) -> Floats:
    """Whole ones rounded, and others that HiGHS's tolerance keeps from a whole number; all within their
    limits."""
    found = np.array(values, np.float64)
    near = np.abs(found - np.round(found)) <= ROUNDING * 10
    found = np.where(program.extras.whole | near, np.round(found), found)
    return np.clip(found, program.extras.low, program.extras.high)
