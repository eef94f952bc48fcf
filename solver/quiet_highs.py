"""HiGHS on arrays: silent, one thread, a fixed seed."""

import os
import sys
from functools import cache

import highspy
import numpy as np

from solver.program import Floats


def quiet() -> highspy.Highs:
    """A new one, for small linear programs solved again and again: the simplex method without presolve."""
    _greeted()
    highs = highspy.Highs()  # type: ignore[no-untyped-call]  # highspy's own
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("random_seed", 0)
    highs.setOptionValue("presolve", "off")
    highs.setOptionValue("solver", "simplex")
    return highs


def add_columns(highs: highspy.Highs, cost: Floats, amounts: Floats) -> None:
    """Columns from 0 up, with their entries ([n, rows])."""
    count, (column, row) = len(cost), np.nonzero(amounts)
    start = np.searchsorted(column, np.arange(count)).astype(np.int32)
    highs.addCols(
        count, cost, np.zeros(count), np.full(count, highspy.kHighsInf), len(column), start,
        row.astype(np.int32), amounts[column, row],
    )  # fmt: skip


@cache
def _greeted() -> None:
    """HiGHS greets on file descriptor 1 when a process makes its first one, and plans are written there."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        highspy.Highs()  # type: ignore[no-untyped-call]  # the same
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
