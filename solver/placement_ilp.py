"""The paper's integer program of one placement (coral.md, "Stage 1"), for runtime `coral`: the reference.

Nothing on the way to a library calls this: it takes seconds where `solver.stage_search` takes microseconds.
It is here so that tests can hold the fast search against the program as the paper wrote it, and the benchmark
can say how many times faster the search is.

Written in Pyomo, solved by HiGHS on one thread. Pyomo captures the file descriptors of its process meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyomo.environ as pyo
from pyomo.contrib.solver.common.results import SolutionStatus, TerminationCondition
from pyomo.contrib.solver.solvers.highs import Highs

from solver.shapes import Floats
from solver.tables import POSITIONS, NodeTable, Position

TOLERANCE = 1e-9
"""HiGHS's for rows and for whole numbers; its default, 1e-6, is all that an optimum may be off here."""


class Unproven(RuntimeError):
    """The time limit came before the proof."""


class Program(NamedTuple):
    """The data of one program: a combination as S stages."""

    that: Floats
    """Shape (S, nodes, layers): what node k gives as stage s while it holds j layers (at j - 1)."""

    @property
    def stages(self) -> range:
        return range(self.that.shape[0])

    @property
    def nodes(self) -> range:
        return range(self.that.shape[1])

    @property
    def layers(self) -> int:
        """L, of the model."""
        return int(self.that.shape[2])

    def slices(self, stage: int) -> list[int]:
        """The layers a stage may hold: the others hold one each, and some node must give something."""
        most = self.layers - len(self.stages) + 1
        return [j for j in range(1, most + 1) if self.that[stage, :, j - 1].any()]


@dataclass(frozen=True)
class Optimum:
    """A best placement, stages from first to last, and the proof of it."""

    throughput: float
    """The least of its stages', reckoned from the placement itself, in the table's unit."""
    bound: float
    """No placement gives more (HiGHS's dual bound; within its tolerances it may be below `throughput`)."""
    layers: tuple[int, ...]
    """Of each stage."""
    stage_of: tuple[int, ...]
    """Stage of each node, in the order the nodes were given."""


def solve_placement(table: NodeTable, nodes: Sequence[int], *, time_limit_s: float = 600) -> Optimum | None:
    """The best placement over every number of stages the table has, up to one a node; None where nothing can.

    Args:
        table: throughputs by position, stages, configuration and layers.
        nodes: the combination: for each node, its configuration's index in the table.
        time_limit_s: of each program.

    Raises:
        Unproven: a program was not solved to optimality within the limit.
    """
    counts = [s for s in table.stages if s <= min(len(nodes), table.throughput.shape[-1])]
    found = [solve_program(program(table, nodes, s), time_limit_s=time_limit_s) for s in counts]
    bound = max((f.bound for f in found if f), default=0.0)
    best = max((f for f in found if f), key=lambda f: f.throughput, default=None)
    return best and Optimum(best.throughput, bound, best.layers, best.stage_of)


def program(table: NodeTable, nodes: Sequence[int], stages: int) -> Program:
    """The data of one program: the first stage embeds, the last has the LM head, those between do neither."""
    depth = table.stages.index(stages)
    places = [POSITIONS.index(position(s, stages)) for s in range(stages)]
    return Program(np.stack([table.throughput[p, depth][list(nodes)] for p in places]))


def position(stage: int, stages: int) -> Position:
    """Where a stage lies. The table has the one of a lone stage, which is both ends, under every name."""
    if stage == 0:
        return "first"
    return "last" if stage == stages - 1 else "middle"


def solve_program(data: Program, *, time_limit_s: float = 600) -> Optimum | None:
    """The best placement as that many stages; None if there is none that gives anything.

    Raises:
        Unproven: it was not solved to optimality within the limit.
    """
    if not all(data.slices(s) for s in data.stages):
        return None
    unit = float(data.that.max())  # HiGHS's tolerances are absolute
    model = build_model(Program(data.that / unit))
    results = Highs().solve(
        model,
        threads=1,
        time_limit=time_limit_s,
        rel_gap=0.0,
        abs_gap=0.0,
        load_solutions=False,
        raise_exception_on_nonoptimal_result=False,
        solver_options={
            "random_seed": 0,
            "mip_feasibility_tolerance": TOLERANCE,
            "primal_feasibility_tolerance": TOLERANCE,
            "dual_feasibility_tolerance": TOLERANCE,
        },
    )
    if results.termination_condition == TerminationCondition.provenInfeasible:
        return None
    if results.solution_status != SolutionStatus.optimal:
        raise Unproven(f"{len(data.stages)} stages: {results.termination_condition} within {time_limit_s} s")
    chosen = results.solution_loader.get_vars([*model.x.values(), *model.y.values()])
    layers = tuple(j for _, j in sorted(key for key, var in model.x.items() if round(chosen[var])))
    stage_of = tuple(s for _, s in sorted((k, s) for (s, k), var in model.y.items() if round(chosen[var])))
    return _optimum(data, layers, stage_of, unit * float(results.objective_bound))


def _optimum(
    data: Program, layers: tuple[int, ...], stage_of: tuple[int, ...], bound: float
) -> Optimum | None:
    given = [0.0 for _ in data.stages]
    for k, s in enumerate(stage_of):
        given[s] += float(data.that[s, k, layers[s] - 1])
    return Optimum(min(given), bound, layers, stage_of) if min(given) > 0 else None


# ------------------------------------------------------------------------------------------------- the model


def build_model(data: Program) -> pyo.ConcreteModel:
    """The whole integer program."""
    model = pyo.ConcreteModel()
    define_variables(model, data)
    define_slices(model, data)
    define_stages(model, data)
    define_products(model)
    define_throughput(model, data)
    return model


def define_variables(model: pyo.ConcreteModel, data: Program) -> None:
    """x[s,j]: stage s holds j layers; y[s,k]: node k is in stage s; z[s,j,k]: both; T: throughput."""
    held = [(s, j) for s in data.stages for j in data.slices(s)]
    model.x = pyo.Var(held, domain=pyo.Binary)
    model.y = pyo.Var(data.stages, data.nodes, domain=pyo.Binary)
    model.z = pyo.Var([(s, j, k) for s, j in held for k in data.nodes], bounds=(0, 1))
    model.T = pyo.Var(domain=pyo.NonNegativeReals)
    model.objective = pyo.Objective(expr=model.T, sense=pyo.maximize)


def define_slices(model: pyo.ConcreteModel, data: Program) -> None:
    """Every stage holds one number of layers, and together they hold the model's.

    sum over j of x[s,j] = 1; sum over s, j of j x[s,j] = L
    """
    model.one_slice = pyo.Constraint(
        data.stages, rule=lambda m, s: sum(m.x[s, j] for j in data.slices(s)) == 1
    )
    model.all_layers = pyo.Constraint(expr=sum(j * x for (_, j), x in model.x.items()) == data.layers)


def define_stages(model: pyo.ConcreteModel, data: Program) -> None:
    """Every node is in one stage: sum over s of y[s,k] = 1."""
    model.one_stage = pyo.Constraint(data.nodes, rule=lambda m, k: sum(m.y[s, k] for s in data.stages) == 1)


def define_products(model: pyo.ConcreteModel) -> None:
    """z is x times y: z <= x, z <= y, z >= x + y - 1."""
    keys = list(model.z)
    model.at_most_x = pyo.Constraint(keys, rule=lambda m, s, j, k: m.z[s, j, k] <= m.x[s, j])
    model.at_most_y = pyo.Constraint(keys, rule=lambda m, s, j, k: m.z[s, j, k] <= m.y[s, k])
    model.at_least = pyo.Constraint(keys, rule=lambda m, s, j, k: m.z[s, j, k] >= m.x[s, j] + m.y[s, k] - 1)


def define_throughput(model: pyo.ConcreteModel, data: Program) -> None:
    """What each stage's nodes give together is at least T: sum over j, k of That[s,j,k] z[s,j,k] >= T."""

    def row(m: pyo.ConcreteModel, s: int) -> object:
        held = [(j, k) for j in data.slices(s) for k in data.nodes]
        return sum(float(data.that[s, k, j - 1]) * m.z[s, j, k] for j, k in held) >= m.T

    model.throughput = pyo.Constraint(data.stages, rule=row)
