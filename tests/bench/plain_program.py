"""The allocation as one integer program over every column, for HiGHS as it is: what ours is compared with.

A process of its own, since HiGHS does not always keep its time limit: question on standard input, as JSON;
what it found on the last line of standard output. Unmet demand has a price high enough to come first, all
shares in one sum: the order that the largest comes first is not for one program.
"""

import json
import sys
import time
from pathlib import Path

import highspy
import numpy as np
from scipy.sparse import csc_matrix, csr_matrix, hstack, identity, vstack

from schemas.catalog import PAPER_CATALOG, load_catalog
from schemas.performance import load_efficiencies
from schemas.problems import Problem
from solver.columns import make_question
from solver.figures import Figures
from solver.library_file import load_library
from solver.picking import pick_all
from solver.program import FREE, Picked, Program

UNMET_USD = 10_000.0
"""Per hour, of a whole demand."""


def main() -> None:
    asked = json.load(sys.stdin)
    figures = Figures(load_catalog(PAPER_CATALOG), load_efficiencies(), None)
    library = load_library(Path(asked["library"]), figures)
    problem = Problem.model_validate_json(json.dumps(asked["problem"]))
    program = make_question(problem, library).program
    picked = pick_all(program)
    began = time.perf_counter()
    highs = highspy.Highs()  # type: ignore[no-untyped-call]  # highspy's own
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("time_limit", float(asked["limit_s"]))
    highs.setOptionValue("mip_rel_gap", 1e-3)
    highs.passModel(model_of(program, picked))
    highs.run()
    info = highs.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    value = info.objective_function_value if found else None
    bound = info.mip_dual_bound if abs(info.mip_dual_bound) < highspy.kHighsInf else None
    unmet = sum(highs.getSolution().col_value[-len(program.services) :]) if found else None
    seconds = time.perf_counter() - began
    told = {"value": value, "bound": bound, "unmet": unmet, "seconds": seconds, "columns": len(picked)}
    print(json.dumps(told))


def model_of(program: Program, picked: Picked) -> highspy.HighsLp:
    """Columns: new instances, instances that run, unmet shares. Rows: what limits them, then what covers.

    An instance that runs pays no start-up, so the two are apart; programs with extras are not for this.
    """
    assert not program.extras.name
    n, services, limits = len(picked), len(program.services), len(program.rows.right)
    runs = np.flatnonzero(picked.running > 0)
    at = np.concatenate([np.arange(n), runs])  # which column each variable is of
    terms = csr_matrix((picked.term_amount, (picked.term_row, picked.term_column)), shape=(limits, n))
    cover = csr_matrix((picked.cover, (picked.service, np.arange(n))), shape=(services, n))
    unmet = vstack([csr_matrix((limits, services)), identity(services)])
    matrix = csc_matrix(hstack([vstack([terms[:, at], cover[:, at]]), unmet]))
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(at) + services, limits + services
    lp.col_cost_ = np.concatenate(
        [picked.price + picked.start, picked.price[runs], UNMET_USD * program.weight]
    )
    lp.col_lower_ = np.zeros(lp.num_col_)
    most = np.minimum(picked.limit, FREE).astype(float)
    lp.col_upper_ = np.concatenate([most, picked.running[runs].astype(float), np.ones(services)])
    lp.row_lower_ = np.concatenate([np.full(limits, -highspy.kHighsInf), program.needs])
    lp.row_upper_ = np.concatenate([program.rows.right, np.full(services, highspy.kHighsInf)])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.indptr, matrix.indices, matrix.data
    whole, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    lp.integrality_ = [whole] * len(at) + [real] * services
    return lp


if __name__ == "__main__":
    main()
