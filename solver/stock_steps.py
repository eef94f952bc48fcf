"""Programs of stock, step by step of the order (solver.md, "Stage 2"): from a million columns to one plan.

A step gets prices from the relaxation over columns, better ones from the relaxation over plans
(`solver.pricing`), and a choice among the plans that are cheap enough at these (`solver.rounds`). Demand that
can be met takes one step, the cost. Otherwise the largest unmet share comes first (`solver.worst`), then
their sum, then the cost of leaving no more.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from solver.board import Board, make_board
from solver.choice import Decide
from solver.column_lp import Promise, Relaxed, relax
from solver.greedy import greedy_plan
from solver.knapsacks import Ask
from solver.partials import ROUNDING, solved_of, value_of
from solver.picking import pick
from solver.pricing import Asked, Effort, Prices
from solver.program import Better, Ends, Finish, Floats, Ints, Partial, Picked, Program, Solved, Step
from solver.rounds import Goal, Reached, least_with, reach
from solver.worst import least_worst

GAP = 0.999e-3
"""What an answer is proven within: of the cost as a share of it, of unmet shares as it is."""
DEAR = 100.0
"""Unmet demand, over the dearest way to meet it, where the relaxation shall avoid it."""
SHARE = 1e-6
"""Unmet shares of the relaxation below this are rounding."""
FEW, NODES = 500, 50
"""Columns for the integer program where plans were too many, and nodes of its search: a work limit."""
HINT = 0.2 * GAP
"""What all stock costs while unmet shares are what counts: so that nothing is wasted on them."""


class StockSteps:
    """The steps over one board.

    Attributes:
        better: is told of the plan at hand as soon as there is one, and after each step.
    """

    def __init__(
        self, program: Program, finish: Finish, decide: Decide, clock: Callable[[], float] | None
    ) -> None:
        self.program, self.finish, self.decide = program, finish, decide
        self.better: Better | None = None
        self.seconds: dict[str, float] = {}
        self._clock, self._last = clock, clock() if clock else 0.0
        self.board = make_board(program)
        self.mark("columns")
        self.services, self.rows = len(program.services), len(program.rows.right)
        self.plans = self.steps = 0
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
        if self.better:
            self._tell_at_once()
        if (np.diff(self.board.items.begin) == 0).any():
            return None
        every, none = np.ones(self.services), np.zeros(self.services)
        columns = self.board.columns
        relaxed = relax(columns, columns.cost, np.full(self.services, DEAR * self._dearest()), every)
        self.mark("relaxation")
        if relaxed.unmet.sum() > SHARE:
            return None
        self._relaxed = relaxed
        asked = Asked(Ask(every, none, none), self.program.weight)
        found = self._reach(self.board, asked, Goal(relative=GAP), self._prices(relaxed.row_price), None)
        if found.plan is not None:
            self._tell(found.plan, [("cost", self._partial(found, "cost"))])
        found = self._over_columns(asked, found, Ends(0.0, 0.0), relaxed)
        if found.plan is None:
            return None
        return self._solved(found.plan, [("cost", self._partial(found, "cost"))])

    # ----------------------------------------------------------------------------------- demand is not met

    def short(self) -> Solved:
        """As little unmet as can be, in the program's order of steps."""
        spare, plan = np.ones(self.services), np.zeros(0, np.int64)
        steps: list[tuple[Step, Partial]] = []
        if "worst" in self.program.steps:
            columns, free = self.board.columns, np.zeros(len(self.board.columns))
            promise = Promise(worst=True)
            relaxed = relax(columns, free, np.zeros(self.services), spare, priced=False, promise=promise)
            self.mark("relaxation")
            worst = least_worst(self.board, self.program.weight, GAP, relaxed, self.decide)
            self.mark("worst share")
            plan = self._unless_open(worst.plan, "worst", worst.bound, Ends(), relaxed)
            steps.append(("worst", self._proved(plan, "worst", worst.bound)))
            self._tell(plan, steps)
            spare = np.minimum(1.0, (steps[-1][1].value + ROUNDING) / self.program.weight)
        plan, bound = self._least_total(spare, plan)
        steps.append(("total", self._proved(plan, "total", bound)))
        self._tell(plan, steps)
        return self._cheapest(spare, plan, steps)

    def _least_total(self, spare: Floats, plan: Ints) -> tuple[Ints, float]:
        """The least sum of unmet shares: a plan, and what no sum is below.

        Columns cost next to nothing, and all stock `HINT`: that much a bound may be too high.
        """
        weight, free = self.program.weight, np.zeros(len(self.board.columns))
        relaxed = relax(self.board.columns, free, weight, spare, priced=False)
        self.mark("relaxation")
        scale = HINT / max(1.0, self._all_stock())
        items = self.board.items
        hinted = replace(self.board, items=items._replace(cost=items.cost * scale))
        asked = Asked(Ask(np.ones(self.services), spare, weight), weight, scale=1.0)
        start = self._prices(relaxed.row_price)
        value = self._value(plan, "total") + scale * self._value(plan, "cost")
        found = Reached(plan, value, -np.inf, start)
        found = self._reach(hinted, asked, Goal(absolute=GAP - HINT), start, found)
        assert found.plan is not None  # noqa: S101  there was one
        bound = max(found.bound - HINT, relaxed.value - SHARE if relaxed.whole else 0.0)
        ends = Ends(worst=float((spare * weight).max()))
        return self._unless_open(found.plan, "total", bound, ends, relaxed), bound

    def _cheapest(self, spare: Floats, plan: Ints, steps: list[tuple[Step, Partial]]) -> Solved:
        """The last step: least cost of leaving no more unmet."""
        total, weight, columns = steps[-1][1].value, self.program.weight, self.board.columns
        dear = self._dearest()
        self._relaxed = relax(columns, columns.cost, dear * weight, spare)
        asked = Asked(Ask(np.ones(self.services), spare, np.zeros(self.services)), weight, total + ROUNDING)
        start = replace(self._prices(self._relaxed.row_price), total=dear)
        value = self._value(plan, "cost")
        self.mark("relaxation")
        found = self._reach(
            self.board, asked, Goal(relative=GAP), start, Reached(plan, value, -np.inf, start)
        )
        ends = Ends(float((spare * weight).max()), total + ROUNDING)
        found = self._over_columns(asked, found, ends, self._relaxed)
        steps.append(("cost", self._partial(found, "cost")))
        return self._solved(found.plan, steps)

    # ---------------------------------------------------------------------------------------------- parts

    def _prices(self, row: Floats) -> Prices:
        return Prices(row, 0.0, np.zeros((self.services, self.rows + 1)))

    def _dearest(self) -> float:
        """USD per hour that meeting a whole need costs, by the dearest of each service's best columns."""
        items = self.board.items
        each = items.cost / items.cover
        least = [float(each[a:b].min()) for a, b in zip(items.begin, items.begin[1:], strict=False) if b > a]
        return 1.0 + max(least, default=0.0)

    def _all_stock(self) -> float:
        """USD per hour of all nodes, newly started."""
        dearest = np.zeros(self.rows)
        for block in self.program.blocks:
            for draw in block.draws:
                usd = float(block.price[draw.configuration] + block.start[draw.configuration])
                dearest[draw.row] = max(dearest[draw.row], usd)
        extra = self.board.columns.own
        return float(dearest @ self.board.right) + float(extra.max(initial=0.0)) * float(
            self.board.right.sum()
        )

    def _over_columns(self, asked: Asked, found: Reached, ends: Ends, relaxed: Relaxed) -> Reached:
        """Where plans were too many to list: the integer program over the columns of least slack, and those
        of the relaxation."""
        if found.bound >= Goal(relative=GAP).target(found.value):
            return found
        least = least_with(self.board, asked, found.prices)
        near = self.board.at[np.argsort(least, kind="stable")]
        other = self._of_few(near, relaxed, "cost", ends)
        value = np.inf if other is None else self._value(other, "cost")
        return replace(found, plan=other, value=value) if value < found.value else found

    def _unless_open(self, plan: Ints, step: Step, bound: float, ends: Ends, relaxed: Relaxed) -> Ints:
        """A plan that leaves little more unmet than the bound, or what is found otherwise that leaves less:
        by the integer program over the columns next to the relaxation, or at once."""
        value = self._value(plan, step)
        if value - bound <= GAP:
            return plan
        columns = self.board.columns
        red = columns.drawn(relaxed.row_price) - relaxed.service_price[columns.service] * columns.cover
        near = np.lexsort((columns.cost, np.maximum(0.0, np.round(red, 9))))
        for other in (greedy_plan(self.board, self.program.weight), self._of_few(near, relaxed, step, ends)):
            if other is None or self._value(other, "worst") > ends.worst + ROUNDING:
                continue
            if self._value(other, step) < value:
                plan, value = other, self._value(other, step)
        return plan

    def _of_few(self, near: Ints, relaxed: Relaxed, step: Step, ends: Ends) -> Ints | None:
        """A plan by the integer program over the first of these columns and those of the relaxation."""
        few, columns = np.union1d(near[:FEW], relaxed.columns), self.board.columns
        picked = pick(self.program, columns.block[few], columns.row[few])
        # A cutoff at the plan at hand would take from HiGHS the bad plans that its heuristics begin with.
        found = self.finish(self.program, picked, step, ends, np.inf, node_limit=NODES)
        self.mark("integer program over columns")
        return np.repeat(few, found.counts) if found is not None and np.isfinite(found.value) else None

    def _reach(self, board: Board, asked: Asked, goal: Goal, start: Prices, found: Reached | None) -> Reached:
        reached = reach(board, asked, goal, start, found, self.decide, Effort(), self.mark)
        self.plans, self.steps = reached.plans, self.steps + reached.steps
        return reached

    def _tell_at_once(self) -> None:
        """Of a plan that no search is needed for."""
        plan = greedy_plan(self.board, self.program.weight)
        unmet = self._value(plan, "total") > 0
        self._tell(
            plan, [(s, self._proved(plan, s, 0.0)) for s in self.program.steps if unmet or s == "cost"]
        )

    def _tell(self, plan: Ints, steps: list[tuple[Step, Partial]]) -> None:
        if self.better:
            self.better(self._solved(plan, steps))

    def _counts(self, plan: Ints | None) -> tuple[Picked, Ints]:
        """A plan's columns and how many instances of each."""
        columns = self.board.columns
        used, counts = np.unique(np.zeros(0, np.int64) if plan is None else plan, return_counts=True)
        return pick(self.program, columns.block[used], columns.row[used]), counts

    def _value(self, plan: Ints | None, step: Step) -> float:
        picked, counts = self._counts(plan)
        return value_of(self.program, picked, counts, np.zeros(0), step)

    def _partial(self, found: Reached, step: Step) -> Partial:
        return self._proved(found.plan, step, found.bound)

    def _proved(self, plan: Ints | None, step: Step, bound: float) -> Partial:
        picked, counts = self._counts(plan)
        value = value_of(self.program, picked, counts, np.zeros(0), step)
        return Partial(counts, np.zeros(0), value, float(max(0.0, min(bound, value))))

    def _solved(self, plan: Ints | None, steps: list[tuple[Step, Partial]]) -> Solved:
        """Later steps may have bettered what earlier ones reached; where all demand is met, only the cost was
        a question."""
        reached = [(step, self._proved(plan, step, found.bound)) for step, found in steps]
        if len(steps) > 1 and self._value(plan, "total") == 0.0:
            reached = reached[-1:]
        solved = solved_of(self.program, self._counts(plan)[0], reached)
        solved = replace(solved, survivors=self.plans, iterations=self.steps)
        if self._relaxed is None:
            return solved
        return replace(solved, row_price=self._relaxed.row_price, service_price=self._relaxed.service_price)
