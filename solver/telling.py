"""Plans that a search tells of on its way, so that there is one whenever it is stopped."""

from collections.abc import Callable

from schemas.problems import Answer
from solver.answers import make_answer
from solver.columns import Question
from solver.keeping import running_plan, serves_more
from solver.program import Finish, Solved

SAME = 1e-9
"""USD per hour, as a share, that is no saving."""


class Telling:
    """Tells of each plan that leaves less unmet than all before it, or as much at less cost.

    The search takes no notice of it, so it changes no answer.
    """

    def __init__(self, question: Question, better: Callable[[Answer], None]) -> None:
        self._question, self._better = question, better
        self._best: Solved | None = None

    def __call__(self, solved: Solved, *, kept: bool = False) -> None:
        if self._best is None or self._improves(solved, self._best):
            self._best = solved
            self._better(make_answer(self._question, solved, kept=kept, done=False))

    def running(self, finish: Finish) -> None:
        """First what runs, trimmed to today's stock, which may be nothing: it is there before any search."""
        plan = running_plan(self._question, finish)
        if plan is not None:
            self(plan, kept=bool(self._question.program.specials))

    def _improves(self, solved: Solved, than: Solved) -> bool:
        program = self._question.program
        if serves_more(program, solved.unmet, than.unmet):
            return True
        cheaper = solved.value < than.value * (1 - SAME)
        return cheaper and not serves_more(program, than.unmet, solved.unmet)
