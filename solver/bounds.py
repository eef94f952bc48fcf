"""The allocation's answer with its proof (solver.md, "Stage 2"): from a million columns to one plan.

A program whose rows are only drawn on (stock) goes the fast way, step by step of the order: relaxation by
column generation for the prices to begin with, then rounds of search with the Lagrangian bound
(`solver.rounds`). Demand that can be met takes one step, the cost. Otherwise the largest unmet share comes
first, then their sum, then the cost of leaving no more.

Any other program (nodes bought to be sliced, policies that couple) goes by the relaxation's own bound,
reduced costs and an integer program over what they leave (`solver.coupled`).
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from solver.board import make_board, packs
from solver.column_lp import Relaxed, relax
from solver.coupled import solve_coupled
from solver.packing import Aim
from solver.partials import solved_of, value_of
from solver.program import Ends, Finish, Floats, Ints, Partial, Picked, Program, Solved, Step, pick
from solver.rounds import Reached, Start, reach

GAP = 0.999e-3
"""What an answer is proven within: of the cost as a share of it, of unmet shares as it is."""
DEAR = 100.0
"""Unmet demand, over the dearest way to meet it, where the relaxation shall avoid it."""
SHARE = 1e-6
"""Unmet shares of the relaxation below this are rounding."""


def solve(program: Program, finish: Finish, clock: Callable[[], float] | None = None) -> Solved:
    """The best plan found and what is proven of it; without proofs if no plan was found.

    Args:
        finish: the integer program over some columns (`solver.allocation.finish`).
        clock: seconds, to time the parts of the search with.
    """
    if not packs(program):
        return solve_coupled(program, finish)
    steps = _Steps(program, finish, clock)
    solved = steps.met() or steps.short()
    return replace(solved, seconds=steps.seconds)


class _Steps:
    """The steps over one board."""

    def __init__(self, program: Program, finish: Finish, clock: Callable[[], float] | None) -> None:
        self.program, self.finish = program, finish
        self.seconds: dict[str, float] = {}
        self._clock, self._last = clock, clock() if clock else 0.0
        self.board = make_board(program)
        self.mark("columns")
        self.services = len(program.services)
        self.survivors = self.places = self.climbed = 0
        self._relaxed: Relaxed | None = None

    def mark(self, part: str) -> None:
        """The time since the last mark went into this."""
        if self._clock:
            now = self._clock()
            self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
            self._last = now

    # -------------------------------------------------------------------------------------- demand is met

    def met(self) -> Solved | None:
        """At least cost, or None if no plan was found that meets all demand."""
        if len(np.unique(self.board.service)) < self.services:
            return None
        every, none = np.ones(self.services), np.zeros(self.services)
        dear = np.full(self.services, DEAR * self._dearest())
        relaxed = relax(self.board.columns, self._new_cost(), dear, every)
        self.mark("relaxation")
        if relaxed.unmet.sum() > SHARE:
            return None
        self._relaxed = relaxed
        aim = Aim(self.program.rows.right, self.program.weight, none, none, relative=GAP)
        found = self._reach(Start(aim, "cost", Ends(0.0, 0.0), relaxed.row_price, none))
        if found.plan is None:
            return None
        return self._solved(found.plan, [("cost", self._partial(found, "cost"))])

    # ----------------------------------------------------------------------------------- demand is not met

    def short(self) -> Solved:
        """As little unmet as can be, in the program's order of steps."""
        weight, every, free = self.program.weight, np.ones(self.services), np.zeros(self.board.new)
        relaxed = relax(self.board.columns, free, weight, every, priced=False)
        self.mark("relaxation")
        aim = Aim(self.program.rows.right, weight, weight, every, priced=False, absolute=GAP)
        start = Start(aim, "total", Ends(), relaxed.row_price, weight, plan=np.zeros(0, np.int64))
        steps: list[tuple[Step, Partial]] = []
        if "worst" in self.program.steps:
            price, dear = relaxed.row_price / self.services, weight / self.services
            worst = replace(
                start,
                aim=replace(aim, balance=True),
                step="worst",
                price=price,
                dear=dear,
                value=weight.max(),
            )
            found = self._reach(worst)
            steps.append(("worst", self._partial(found, "worst")))
            most = steps[-1][1].value
            aim = replace(aim, spare=np.minimum(1.0, most / weight))
            start = replace(start, aim=aim, ends=Ends(worst=most), plan=found.plan)
        found = self._reach(replace(start, value=self._value(start.plan, "total")))
        steps.append(("total", self._partial(found, "total")))
        return self._cheapest(replace(start, plan=found.plan), steps)

    def _cheapest(self, start: Start, steps: list[tuple[Step, Partial]]) -> Solved:
        """The last step: least cost of leaving no more unmet, which is priced so that more hardly pays."""
        total, weight = steps[-1][1].value, self.program.weight
        price = self._dearest()
        value = self._value(start.plan, "cost")
        self._relaxed = relax(self.board.columns, self._new_cost(), price * weight, start.aim.spare)
        dear, unmet = price * weight, price * total
        aim = replace(start.aim, dear=dear, priced=True, relative=GAP, absolute=0.0, paid=unmet, total=total)
        found = self._reach(
            replace(
                start,
                aim=aim,
                step="cost",
                ends=start.ends._replace(total=total),
                price=self._relaxed.row_price,
                dear=dear,
                value=value + unmet,
                paid=unmet,
            )
        )
        steps.append(("cost", self._partial(found, "cost", unmet)))
        return self._solved(found.plan, steps)

    # ---------------------------------------------------------------------------------------------- parts

    def _new_cost(self) -> Floats:
        return self.board.cost[: self.board.new]

    def _dearest(self) -> float:
        """USD per hour that meeting a whole need costs, by the dearest of each service's best columns."""
        each = self.board.cost / self.board.columns.cover[self.board.at]
        least = np.full(self.services, np.inf)
        np.minimum.at(least, self.board.service, each)
        return 1.0 + float(least[np.isfinite(least)].max(initial=0.0))

    def _reach(self, start: Start) -> Reached:
        found = reach(self.board, start, self.finish, self.mark)
        self.survivors = found.survivors
        self.places, self.climbed = self.places + found.places, self.climbed + found.climbed
        return found

    def _counts(self, plan: Ints | None) -> tuple[Picked, Ints]:
        """A plan's columns and how many instances of each."""
        columns = self.board.columns
        used, counts = np.unique(np.zeros(0, np.int64) if plan is None else plan, return_counts=True)
        return pick(self.program, columns.block[used], columns.row[used]), counts

    def _value(self, plan: Ints | None, step: Step) -> float:
        picked, counts = self._counts(plan)
        return value_of(self.program, picked, counts, np.zeros(0), step)

    def _partial(self, found: Reached, step: Step, paid: float = 0.0) -> Partial:
        _, counts = self._counts(found.plan)
        value = self._value(found.plan, step)
        bound = float(max(0.0, min(found.bound - paid, value)))
        return Partial(counts, np.zeros(0), value, bound)

    def _solved(self, plan: Ints | None, steps: list[tuple[Step, Partial]]) -> Solved:
        solved = replace(
            solved_of(self.program, self._counts(plan)[0], steps),
            survivors=self.survivors,
            iterations=self.climbed,
            nodes=self.places,
        )
        if self._relaxed is None:
            return solved
        return replace(solved, row_price=self._relaxed.row_price, service_price=self._relaxed.service_price)
