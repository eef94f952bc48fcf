"""What counts of columns come to."""

import numpy as np
import pytest

from solver.partials import solved_of
from solver.program import Partial, pick_all
from tests.solver.programs import paper_program


def test_each_step_tells_what_the_plan_reaches() -> None:
    """A later step may come upon a plan that leaves less unmet than the one it was to keep to."""
    program = paper_program(uses=[[[1], [2]]], cover=[[0.3, 0.6]], price=[[1.0]], stock=[[2]])
    picked = pick_all(program)
    first, last = (
        Partial(np.array(counts), np.zeros(0), value, bound)
        for counts, value, bound in (([1, 0], 0.7, 0.4), ([0, 1], 2.0, 2.0))
    )
    worst, cost = solved_of(program, picked, [("worst", first), ("cost", last)]).proofs
    assert worst.value == pytest.approx(0.4)
    assert worst.bound == 0.4
    assert cost.value == 2
