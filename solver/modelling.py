"""Pyomo models handed to HiGHS: one thread, a fixed seed, limits on work and none on time."""

import math
from collections.abc import Iterable, Mapping

import pyomo.environ as pyo
from pyomo.contrib.solver.common.results import Results, TerminationCondition
from pyomo.contrib.solver.solvers.highs import Highs
from pyomo.core.expr.numeric_expr import LinearExpression

ABSOLUTE_GAP = 1e-9
CLOSER = {"mip_feasibility_tolerance": 1e-7}
"""Ten times closer than HiGHS would have it."""


def linear(factors: Iterable[float], variables: Iterable[object]) -> LinearExpression:
    """A sum of products, at a fraction of what Pyomo takes to add it up."""
    return LinearExpression(constant=0, linear_coefs=list(factors), linear_vars=list(variables))


def minimise(
    model: pyo.ConcreteModel,
    objective: pyo.Objective,
    cutoff: float,
    gap: float,
    node_limit: int,
    more: Mapping[str, str | float] | None = None,
    absolute: float = ABSOLUTE_GAP,
) -> Results:
    """Minimise one objective, looking for nothing that is not below the cutoff."""
    options: dict[str, float | str] = {"random_seed": 0, "mip_max_nodes": node_limit, **(more or {})}
    if math.isfinite(cutoff):
        options["objective_bound"] = cutoff
    objective.activate()
    results = _run(model, gap, absolute, options)
    if results.termination_condition == TerminationCondition.error:
        # It ends so where a solution breaks a row by its tolerance to the digit; closer, it finds another.
        results = _run(model, gap, absolute, options | CLOSER)
    return results


def _run(
    model: pyo.ConcreteModel, gap: float, absolute: float, options: Mapping[str, float | str]
) -> Results:
    return Highs().solve(
        model,
        threads=1,
        rel_gap=gap,
        abs_gap=absolute,
        load_solutions=False,
        raise_exception_on_nonoptimal_result=False,  # an unsatisfiable model is an answer (Pyomo#2920)
        solver_options=dict(options),
    )
