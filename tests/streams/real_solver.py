"""The solver itself in the world of doubles, over their one kind of template."""

from schemas.problems import Answer, Problem, Rating
from solver import allocation
from solver.candidates import Rated
from solver.verify import verify
from tests.solver.conftest import MadeUp
from tests.streams.doubles import template

RATING = Rating(slo_class="interactive", throughput=1.0, workload="w", engine="e")
LIBRARY = MadeUp((Rated(template=template("m"), rating=RATING),), ())


def solved(problem: Problem) -> Answer:
    """Its answer, checked as live."""
    answer = allocation.solve(problem.model_copy(update={"library": LIBRARY.digest}), LIBRARY)
    assert verify(problem, answer) == ()
    return answer
