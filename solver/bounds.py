"""The allocation's answer with its proof (solver.md, "Stage 2"): from a million columns to one plan.

A program whose rows are only drawn on (stock) goes the fast way, step by step of the order: relaxation by
column generation, Lagrangian bound, a first search over the columns of least slack, column fixing by what it
found, and a search over the rest. Demand that can be met takes one step, the cost. Otherwise the largest
unmet share comes first, then their sum, then the cost of leaving no more.

Any other program (nodes bought to be sliced, policies that couple) goes by the relaxation's own bound, reduced
costs and an integer program over what they leave (`finish`, in Pyomo).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from solver.board import Board, make_board, packs
from solver.column_lp import Relaxed, relax
from solver.coupled import solve_coupled
from solver.fixing import slacks
from solver.knapsacks import GRID
from solver.packing import FIRST_STEPS, STEPS, Aim, Outcome, Search
from solver.partials import solved_of, value_of
from solver.program import Finish, Floats, Ints, Partial, Picked, Program, Solved, Step, pick

GAP = 0.999e-3
"""What an answer is proven within: of the cost as a share of it, of unmet shares as it is."""
DEAR = 100.0
"""Unmet demand, over the cheapest way to meet it, where the relaxation shall avoid it."""
SHARE = 1e-6
"""Unmet shares of the relaxation below this are rounding."""


@dataclass(frozen=True)
class Effort:
    """The work limits of one round of a step."""

    places: int
    columns: int
    reach: float
    """Columns whose slack is above this share of the bound wait for the next round."""


ROUNDS = (Effort(60, 3000, 0.03), Effort(1500, 6000, np.inf))


def solve(program: Program, finish: Finish, clock: Callable[[], float] | None = None) -> Solved:
    """The best plan found and what is proven of it; without proofs if no plan was found.

    Args:
        finish: the integer program over some columns, for programs that couple by more than stock.
        clock: seconds, to time the parts of the search with.
    """
    if not packs(program):
        return solve_coupled(program, finish)
    watch = _Watch(clock)
    steps = _Steps(program, watch)
    solved = steps.met() or steps.short()
    return replace(solved, seconds=watch.seconds)


class _Watch:
    """Seconds by part, if there is a clock."""

    def __init__(self, clock: Callable[[], float] | None) -> None:
        self._clock, self.seconds = clock, dict[str, float]()
        self._last = clock() if clock else 0.0

    def mark(self, part: str) -> None:
        if self._clock:
            now = self._clock()
            self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
            self._last = now


class _Steps:
    """The steps over one board."""

    def __init__(self, program: Program, watch: _Watch) -> None:
        self.program, self.watch = program, watch
        self.board = make_board(program)
        self.watch.mark("columns")
        self.services = len(program.services)
        self.survivors = self.places = self.climbed = 0
        self._relaxed: Relaxed | None = None

    # -------------------------------------------------------------------------------------- demand is met

    def met(self) -> Solved | None:
        """At least cost, or None if no plan was found that meets all demand."""
        cheapest = np.full(self.services, np.inf)
        np.minimum.at(cheapest, self.board.service, self.board.cost / self.board.columns.cover[self.board.at])
        if not np.isfinite(cheapest).all():
            return None
        every, none = np.ones(self.services), np.zeros(self.services)
        cost = self.board.cost[: self.board.new]
        relaxed = relax(self.board.columns, cost, np.full(self.services, DEAR * (cheapest.max() + 1)), every)
        self.watch.mark("relaxation")
        if relaxed.unmet.sum() > SHARE:
            return None
        self._relaxed = relaxed
        aim = Aim(self.program.rows.right, self.program.weight, none, none, relative=GAP)
        outcome = self._search(aim, relaxed.row_price, none)
        if outcome.plan is None:
            return None
        picked, counts = self._counts(outcome.plan)
        return self._solved(picked, [("cost", self._partial(picked, counts, "cost", outcome.bound))])

    # ----------------------------------------------------------------------------------- demand is not met

    def short(self) -> Solved:
        """As little unmet as can be, in the program's order of steps."""
        weight, every = self.program.weight, np.ones(self.services)
        free = np.zeros(self.board.new)
        relaxed = relax(self.board.columns, free, weight, every, priced=False)
        self.watch.mark("relaxation")
        steps: list[tuple[Step, Partial]] = []
        aim = Aim(self.program.rows.right, weight, weight, every, priced=False, absolute=GAP)
        plan = np.zeros(0, np.int64)
        if "worst" in self.program.steps:
            share = weight / self.services
            price = relaxed.row_price / self.services
            outcome = self._search(replace(aim, balance=True), price, share)
            plan = plan if outcome.plan is None else outcome.plan
            picked, counts = self._counts(plan)
            steps.append(("worst", self._partial(picked, counts, "worst", outcome.bound)))
            aim = replace(aim, spare=np.minimum(1.0, steps[-1][1].value / weight))
        picked, counts = self._counts(plan)
        start = value_of(self.program, picked, counts, np.zeros(0), "total")
        outcome = self._search(aim, relaxed.row_price, weight, best=start)
        plan = plan if outcome.plan is None else outcome.plan
        picked, counts = self._counts(plan)
        steps.append(("total", self._partial(picked, counts, "total", outcome.bound)))
        return self._cheapest(aim, plan, steps)

    def _cheapest(self, aim: Aim, plan: Ints, steps: list[tuple[Step, Partial]]) -> Solved:
        """The last step: least cost of leaving no more unmet, which is priced so that more never pays."""
        total, weight = steps[-1][1].value, self.program.weight
        picked, counts = self._counts(plan)
        value = value_of(self.program, picked, counts, np.zeros(0), "cost")
        per_share = self.board.cost / self.board.columns.cover[self.board.at]
        dear = weight * float(np.median(per_share) * DEAR / 10)
        relaxed = relax(self.board.columns, self.board.cost[: self.board.new], dear, aim.spare)
        self._relaxed = relaxed
        unmet = float(dear[0] / weight[0]) * total
        aim = replace(aim, dear=dear, priced=True, absolute=GAP * value, total=total)
        outcome = self._search(aim, relaxed.row_price, dear, best=value + unmet)
        if outcome.plan is not None:
            picked, counts = self._counts(outcome.plan)
        steps.append(("cost", self._partial(picked, counts, "cost", outcome.bound - unmet)))
        return self._solved(picked, steps)

    # ------------------------------------------------------------------------------------------- a search

    def _search(self, aim: Aim, price: Floats, dear: Floats, best: float = np.inf) -> Outcome:
        """Rounds of search, each over what the one before does not exclude."""
        board, plan, bound = self.board, None, -np.inf
        for number, effort in enumerate(ROUNDS):
            red = board.drawn(price) + (board.cost if aim.priced else 0.0)
            spare = np.ceil(aim.spare * GRID - 1e-7).astype(np.int64)
            base, slack = slacks(red, board.step, board.service, board.once, spare, dear)
            base -= float(price @ aim.right)
            if not np.isfinite(base):
                bound = np.inf
                break
            reach = min(aim.target(best) - base, effort.reach * max(abs(base), 1.0))
            chosen, rest = _least(slack, reach, effort.columns, board.most)
            if number == 0 or len(chosen):
                ids, items = board.items(chosen, aim.priced)
                search = Search(items, replace(aim, places=effort.places), best)
                found = search.run(search.first(price, dear), STEPS if number else FIRST_STEPS)
                self.places, self.climbed = self.places + found.places, self.climbed + found.steps
                if found.plan is not None:
                    plan, best = ids[found.plan], found.value
                price, dear = found.price, found.dear
                self.survivors = len(chosen)
                bound = max(bound, base, min(found.bound, base + rest))
            else:
                bound = max(bound, base + rest)
            self.watch.mark("first search" if number == 0 else "search")
            if bound >= aim.target(best):
                break
        return Outcome(plan, best, bound, self.places, self.climbed, price, dear)

    # ------------------------------------------------------------------------------------------- answers

    def _counts(self, plan: Ints) -> tuple[Picked, Ints]:
        """A plan's columns and how many instances of each."""
        columns, at = self.board.columns, self.board.at[plan]
        picked = pick(self.program, columns.block[at], columns.row[at])
        counts = np.zeros(len(picked), np.int64)
        where = {
            pair: i for i, pair in enumerate(zip(picked.block.tolist(), picked.row.tolist(), strict=True))
        }
        for j in at.tolist():
            counts[where[int(columns.block[j]), int(columns.row[j])]] += 1
        return picked, counts

    def _partial(self, picked: Picked, counts: Ints, step: Step, bound: float) -> Partial:
        none = np.zeros(0)
        value = value_of(self.program, picked, counts, none, step)
        return Partial(counts, none, value, max(0.0, min(bound, value)))

    def _solved(self, picked: Picked, steps: list[tuple[Step, Partial]]) -> Solved:
        solved = replace(
            solved_of(self.program, picked, steps),
            survivors=self.survivors,
            iterations=self.climbed,
            nodes=self.places,
        )
        if self._relaxed is None:
            return solved
        return replace(solved, row_price=self._relaxed.row_price, service_price=self._relaxed.service_price)


def _least(slack: Floats, reach: float, most: int, limit: Ints) -> tuple[Ints, float]:
    """Columns of a slack within reach, the least of them; and the least slack of those left out."""
    within = np.flatnonzero((slack <= reach) & (limit > 0))
    if len(within) > most:
        within = np.sort(within[np.argpartition(slack[within], most - 1)[:most]])
    out = slack.copy()
    out[within] = np.inf
    out[limit <= 0] = np.inf
    return within, float(out.min(initial=np.inf))
