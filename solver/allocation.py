"""The allocation (coral.md, "Stage 2"): how many instances of which template in which pool, at least cost.

Written in Pyomo, solved by HiGHS on one thread. Short of stock, the order is lexicographic: least unmet
demand first (its largest share weighs most, so that no model starves), then least cost of leaving no more
than that unmet. A price on unmet demand high enough to come first would drown the cost in HiGHS's
tolerances, so the two are two solves; with enough stock there is one.

Pyomo captures the file descriptors of its process while HiGHS runs: solve in a worker process.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pyomo.environ as pyo
from pyomo.contrib.solver.common.results import SolutionStatus
from pyomo.contrib.solver.solvers.highs import Highs

from schemas.problems import Answer, Problem
from solver.answers import RELATIVE_GAP, SHARE_TOLERANCE, make_answer, unmet_share
from solver.candidates import Templates
from solver.columns import Columns, ProblemError, covers, make_columns, startup_ratio

__all__ = ["NoAnswerError", "ProblemError", "solve"]

NODE_LIMIT = 5_000
"""Branch-and-bound nodes a solve: a work limit keeps answers deterministic, where a time limit would not."""
WORST_WEIGHT = 100.0
"""The largest unmet share against the sum of shares, when there is too little."""


class NoAnswerError(RuntimeError):
    """The work limit ended the search before there was anything to answer with; what runs had better stay."""


@dataclass(frozen=True)
class Solution:
    """Instances per column, and HiGHS's bound on the objective it was solved for."""

    counts: tuple[int, ...]
    bound: float


def solve(problem: Problem, library: Templates, *, clock: Callable[[], float] | None = None) -> Answer:
    """Answer a problem; too little stock or no fitting template is an answer with `unmet`, never an error.

    Args:
        clock: seconds, for `Answer.seconds`; without one that is 0 and the caller fills it.

    Raises:
        ProblemError: the problem names another library, or gives a demand or stock twice.
        NoAnswerError: the work limit was hit before anything was found.
    """
    start = clock() if clock else 0.0
    columns = make_columns(problem, library)
    solution = _optimise(columns) if columns.columns else Solution((), 0.0)
    answer = make_answer(problem, library, columns, solution.counts, solution.bound)
    return answer.model_copy(update={"seconds": clock() - start}) if clock else answer


def _optimise(columns: Columns) -> Solution:
    model = build_model(columns)
    model.unmet.fix(0)
    whole = _run(model, model.cost)
    if whole is not None:
        return whole
    model.unmet.unfix()
    scarce = _run(model, model.shortfall)
    if scarce is None:  # nothing at all is always feasible, so only the work limit gets here
        raise NoAnswerError(f"no allocation found within the solver's work limit of {NODE_LIMIT} nodes")
    limit_shortfall(model, columns, scarce.counts)
    return _run(model, model.cost) or Solution(scarce.counts, 0.0)


# ------------------------------------------------------------------------------------------------- the model


def build_model(columns: Columns) -> pyo.ConcreteModel:
    """The whole integer program; `cost` and `shortfall` are its two objectives, both inactive."""
    model = pyo.ConcreteModel()
    define_variables(model, columns)
    define_capacity(model, columns)
    define_demand(model, columns)
    define_worst_share(model)
    define_startup_penalty(model, columns)
    define_cost(model, columns)
    define_shortfall(model)
    return model


def define_variables(model: pyo.ConcreteModel, columns: Columns) -> None:
    """nu[i], instances of column i: whole, at most what its pool holds and what its demand could need.

    unmet[m], share of a service's demand: 0 to 1, for services with a column. worst, the largest of them.
    """
    served = sorted({c.service.key for c in columns.columns})
    bounds = [min(c.limit, math.ceil(1 / covers(c, columns))) for c in columns.columns]
    model.nu = pyo.Var(range(len(bounds)), domain=pyo.NonNegativeIntegers, bounds=lambda _, i: (0, bounds[i]))
    model.unmet = pyo.Var(served, bounds=(0, 1))
    model.worst = pyo.Var(bounds=(0, 1))


def define_capacity(model: pyo.ConcreteModel, columns: Columns) -> None:
    """For every pool and configuration: nodes used by all instances there are at most its stock.

    sum over tau of U_c(tau) nu_r(tau) <= A_r(c)
    """
    uses: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for i, column in enumerate(columns.columns):
        for name, count in column.uses.items():
            uses.setdefault((column.pool.key, name), []).append((i, count))
    rows = sorted(uses)
    model.capacity = pyo.Constraint(
        range(len(rows)),
        rule=lambda m, k: sum(u * m.nu[i] for i, u in uses[rows[k]]) <= columns.nodes[rows[k]],
    )


def define_demand(model: pyo.ConcreteModel, columns: Columns) -> None:
    """For every service: the shares of its demand that its instances cover, and the unmet one, reach 1.

    sum over r, tau of min(T(tau), T_m) / T_m nu_r(tau) + unmet_m >= 1. Capping T at T_m excludes no whole
    solution and tightens the relaxation (solver.md, "Cap coefficients").
    """
    model.demand = pyo.Constraint(
        list(model.unmet),
        rule=lambda m, key: (
            sum(covers(columns.columns[i], columns) * m.nu[i] for i in columns.of(key)) + m.unmet[key] >= 1
        ),
    )


def define_worst_share(model: pyo.ConcreteModel) -> None:
    """The worst share is at least every service's unmet one."""
    model.worst_share = pyo.Constraint(list(model.unmet), rule=lambda m, key: m.worst >= m.unmet[key])


def define_startup_penalty(model: pyo.ConcreteModel, columns: Columns) -> None:
    """For every column: its penalty is at least K times the price of the instances beyond those running.

    I_r(tau) >= (nu_r(tau) - running_r(tau)) p_r(tau) K, I >= 0. Where nothing runs this is an equation at
    any optimum, so the penalty is written into the cost and takes no variable.
    """
    pays = [i for i, c in enumerate(columns.columns) if c.running and startup_ratio(c, columns) > 0]
    model.penalty = pyo.Var(pays, domain=pyo.NonNegativeReals)

    def row(m: pyo.ConcreteModel, i: int) -> object:
        column = columns.columns[i]
        return m.penalty[i] >= (m.nu[i] - column.running) * column.usd_per_hour * startup_ratio(
            column, columns
        )

    model.startup = pyo.Constraint(pays, rule=row)


def define_cost(model: pyo.ConcreteModel, columns: Columns) -> None:
    """Price of all instances and their start-up penalties, USD per hour."""
    prices = [c.usd_per_hour * (1 + (0 if c.running else startup_ratio(c, columns))) for c in columns.columns]
    expression = sum(p * model.nu[i] for i, p in enumerate(prices)) + sum(model.penalty.values())
    model.cost = pyo.Objective(expr=expression)
    model.cost.deactivate()


def define_shortfall(model: pyo.ConcreteModel) -> None:
    """The largest unmet share, weighed heavily, and the sum of the unmet shares."""
    model.shortfall = pyo.Objective(expr=WORST_WEIGHT * model.worst + sum(model.unmet.values()))
    model.shortfall.deactivate()


def limit_shortfall(model: pyo.ConcreteModel, columns: Columns, counts: tuple[int, ...]) -> None:
    """The worst share and the sum of shares are at most what `counts` leaves unmet."""
    shares = [unmet_share(columns, key, counts) for key in model.unmet]
    model.worst.setub(min(1.0, max(shares) + SHARE_TOLERANCE))
    model.no_more = pyo.Constraint(expr=sum(model.unmet.values()) <= sum(shares) + SHARE_TOLERANCE)


# ---------------------------------------------------------------------------------------------------- helpers


def _run(model: pyo.ConcreteModel, objective: pyo.Objective) -> Solution | None:
    """Minimise one objective; None where no allocation was found."""
    objective.activate()
    results = Highs().solve(
        model,
        threads=1,
        rel_gap=RELATIVE_GAP,
        abs_gap=1e-9,
        load_solutions=False,
        raise_exception_on_nonoptimal_result=False,  # an unsatisfiable model is an answer (Pyomo#2920)
        solver_options={"random_seed": 0, "mip_max_nodes": NODE_LIMIT},
    )
    objective.deactivate()
    if results.solution_status not in {SolutionStatus.optimal, SolutionStatus.feasible}:
        return None
    primal = results.solution_loader.get_vars(list(model.nu.values()))
    bound = results.objective_bound
    finite = bound is not None and math.isfinite(bound)
    return Solution(tuple(round(primal[v]) for v in model.nu.values()), float(bound) if finite else 0.0)
