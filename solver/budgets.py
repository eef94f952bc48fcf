"""Programs of stock under a budget: what may be left unmet, by the least bill of leaving no more.

    bill(W, T) = min over plans of the price of all instances,
                 every service's weighted unmet share at most W, their sum at most T
    worst      = the least W with bill(W, inf) <= budget
    total      = the least T with bill(worst, T) <= budget
    cost       = the least cost of leaving no more, bill <= budget

A plan within the budget shows that a share can be had; a bound on the bill above the budget shows that it
cannot, nor can any smaller one. So `worst` bisects. The bound at any prices is convex in the share: a line
through two shares that prices rule out meets the budget at one that they all but rule out.

For `total` the sum of shares has a price, and the bound falls by it as more may be left: each try at a sum
gives the next, which these prices rule out too. Once none rules out more, the plans that a choice within the
budget can have are listed, in windows, and the choice that leaves least is looked for (`solver.fewest`).

The cost is not the bill (what runs pays no start-up, policies add to it), so the last step prices the budget:

    cost >= max over price >= 0 of (least of (cost + price bill)) - price budget

What is open after a few prices goes to an integer program over the columns that a better plan could have.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from solver.board import packs
from solver.budget_parts import Enough, Leave, Priced, Tried
from solver.choice import Decide
from solver.column_lp import Promise, relax
from solver.fewest import CLOSE, Budget, fewest
from solver.knapsacks import EVEN, Ask
from solver.picking import pick
from solver.pricing import Asked, Effort, Prices
from solver.program import Ends, Finish, Ints, Partial, Program, Rows, Solved, Step, Term
from solver.rounds import FIRST, Goal, Reached, least_with
from solver.stock_steps import GAP, StockSteps

TRIES = 16
"""Shares tried in a step at most."""
FIRST_SUM, WIDER = 0.01, 2.0
"""The first window above a sum that prices rule out, as a share of it, and how much wider the next one is."""
LEAST = 1e-3
"""Of what meeting a share costs at most: what it is worth at least."""
PRICES = 8
"""Prices of the budget tried at most."""
WHOLE, FEW = 2000, 400
"""Columns of the last integer program: all that a better plan could have, or where they are more, some."""
WORK = 50_000
"""Its branch-and-bound nodes times its columns: a work limit."""


def without_budget(program: Program) -> Program | None:
    """The program of stock that is left without the last row; None where that is no budget, or not all that
    couples."""
    last = len(program.rows.right) - 1
    limited = all(block.terms == (Term(last, usd=1.0),) for block in program.blocks)
    if not limited or any(draw.row == last for block in program.blocks for draw in block.draws):
        return None
    stock = replace(
        program,
        blocks=tuple(replace(block, terms=()) for block in program.blocks),
        rows=Rows(program.rows.name[:-1], program.rows.right[:-1]),
    )
    return stock if packs(stock) else None


class BudgetSteps(StockSteps):
    """The steps over the board of what is left without the budget."""

    def __init__(
        self,
        program: Program,
        stock: Program,
        finish: Finish,
        decide: Decide,
        clock: Callable[[], float] | None,
    ) -> None:
        super().__init__(stock, finish, decide, clock)
        self._whole = program
        self._columns = replace(self.board.columns, program=program)
        self._budget = float(program.rows.right[-1])
        self._limit = self._budget + EVEN * max(1.0, self._budget)
        self._bills = self._columns.drawn(np.append(np.zeros(self.rows), 1.0))
        self._by_bill = replace(self.board, items=self.board.items._replace(cost=self._bills[self.board.at]))

    def met(self) -> Solved | None:
        """None too where meeting all demand breaks the budget, or may."""
        return self._within(super().met())

    def short(self) -> Solved:
        """As little unmet as can be."""
        low, row = 0.0, np.zeros(self.rows)
        if self._relaxed is None:  # not even without the budget could all demand be met
            free = super().short()
            if (found := self._within(free)) is not None:
                return found
            low = next((proof.bound for proof in free.proofs if proof.step == "worst"), 0.0)
        else:
            row = self._relaxed.row_price
        return self._from_shares(low, self._prices(row))

    def _from_shares(self, low: float, start: Prices) -> Solved:
        """Step by step; no plan leaves a share less than `low` at worst."""
        leave = Leave(np.ones(self.services), np.inf)
        plan, steps = np.zeros(0, np.int64), list[tuple[Step, Partial]]()
        for step in self.program.steps[:-1]:
            least = self._worst_share if step == "worst" else self._total_share
            plan, bound, start = least(leave, low, plan, start)
            self.mark(f"{step} share")
            steps.append((step, self._proved(plan, step, bound)))
            self._tell(plan, steps)
            value, low = steps[-1][1].value, max(0.0, bound)  # the sum is at least the largest
            start = replace(start, total=self._dearest())
            leave = leave.no_more(step, value, self.program.weight)
            if value == 0.0:
                steps = []
                break
        plan, bound = self._least_cost(leave, plan, start)
        steps.append(("cost", self._proved(plan, "cost", bound)))
        return self._solved(plan, steps)

    # ------------------------------------------------------------------------------------------ the shares

    def _worst_share(self, leave: Leave, low: float, plan: Ints, start: Prices) -> tuple[Ints, float, Prices]:
        """The least largest share: a plan, what no plan leaves less than, and prices."""
        self._effort = Effort()
        tried = Tried(low, self._value(plan, "worst"), self._limit, low if low > 0 else -np.inf)
        for _ in range(TRIES):
            share = tried.next()
            if share is None:
                break
            found = self._try(leave.no_more("worst", share, self.program.weight), start)
            start = found.prices
            if found.plan is not None:
                plan = found.plan
                tried.had(min(share, self._value(plan, "worst")))
            else:
                tried.missed(share, found.prices.bound, proven=found.bound > self._budget)
        return plan, tried.bound, start

    def _total_share(self, leave: Leave, low: float, plan: Ints, start: Prices) -> tuple[Ints, float, Prices]:
        """The least sum of shares: a plan, what no plan leaves less than, and prices."""
        self._effort = Effort()
        value = self._value(plan, "total")
        for _ in range(TRIES):
            if low >= value - GAP:
                return plan, low, start
            leave = leave.no_more("total", low, self.program.weight)
            found = self._try(leave, start)
            start = found.prices
            if found.plan is not None:
                return found.plan, low, start
            further = (found.bound - self._limit) / max(start.total, LEAST)
            low += max(0.0, further)
            if further <= GAP / 4:
                break
        return self._fewest(leave, low, plan, start)

    def _fewest(self, leave: Leave, low: float, plan: Ints, start: Prices) -> tuple[Ints, float, Prices]:
        """The same, once prices rule out no more: windows above what none leaves less than."""
        value = self._value(plan, "total")
        window, narrowed = max(2 * GAP, FIRST_SUM * low), False
        budget = Budget(self._limit, LEAST * self._dearest())
        for _ in range(TRIES):
            if low >= value - GAP:
                break
            edge = min(value - GAP, low + window)
            asked = self._asked(leave.no_more("total", edge, self.program.weight))
            found = fewest(self._by_bill, asked, budget, start, self.decide, self._effort, self.mark)
            start = found.prices
            if found.plan is not None:
                plan, value = found.plan, self._value(found.plan, "total")
            if found.proven:
                low = min(edge, value - CLOSE)
            if narrowed:
                break
            narrowed = not found.proven  # too many plans: once more with half of what is open
            window = (edge - low) / 2 if narrowed else WIDER * window
        return plan, low, start

    def _try(self, leave: Leave, start: Prices) -> Reached:
        """A plan within the budget that leaves no more; without one, whether there is none."""
        nothing = Reached(None, self._limit, -np.inf, start)
        enough = Enough(absolute=FIRST * self._limit, limit=self._limit)
        return self._reach(self._by_bill, self._asked(leave), enough, start, nothing)

    def _asked(self, leave: Leave) -> Asked:
        none = np.zeros(self.services)
        return Asked(Ask(np.ones(self.services), leave.spare, none), self.program.weight, leave.total)

    # -------------------------------------------------------------------------------------------- the cost

    def _least_cost(self, leave: Leave, plan: Ints, start: Prices) -> tuple[Ints, float]:
        """Least cost of leaving no more within the budget: a plan, and what no plan costs less than."""
        self._effort = Effort()
        promise = Promise(total=leave.total, over=self._dearest())
        free, board, asked = np.zeros(self.services), self.board, self._asked(leave)
        self._relaxed = relax(self._columns, self._columns.cost, free, leave.spare, promise=promise)
        self.mark("relaxation")
        best = Priced(plan, self._value(plan, "cost"))
        low, high, price = 0.0, np.inf, 0.0
        for _ in range(PRICES):
            cost = board.items.cost + price * self._by_bill.items.cost
            goal = Goal(absolute=GAP * best.value)
            known = Reached(best.plan, best.value + price * self._bill(best.plan), -np.inf, start)
            priced = replace(board, items=board.items._replace(cost=cost))
            found = self._reach(priced, asked, goal, start, known)
            assert found.plan is not None  # noqa: S101  there was one
            start = found.prices
            best = best.bettered(found.bound - price * self._budget, price, start)
            within = self._bill(found.plan) <= self._limit
            if within and self._value(found.plan, "cost") < best.value:
                best = best._replace(plan=found.plan, value=self._value(found.plan, "cost"))
            if best.closed or (within and price == 0.0):
                break
            low, high = (low, price) if within else (price, high)
            likely = max(2 * low, float(self._relaxed.row_price[-1]), 0.1)
            price = (low + high) / 2 if np.isfinite(high) else likely
        return self._over_few(leave, best)

    def _over_few(self, leave: Leave, best: Priced) -> tuple[Ints, float]:
        """The integer program over columns that a better plan could have."""
        if best.closed or best.prices is None:
            return best.plan, best.bound
        items, target = self._by_bill.items, best.value * (1 - GAP)
        priced = items._replace(cost=self.board.items.cost + best.price * items.cost)
        asked = self._asked(leave)
        least = least_with(replace(self.board, items=priced), asked, best.prices)
        least -= best.price * self._budget
        order = np.argsort(least, kind="stable")
        within = int((least < target).sum())
        few = np.unique(self.board.at[order[: within if within <= WHOLE else FEW]])
        picked = pick(self._whole, self._columns.block[few], self._columns.row[few])
        ends = Ends(leave.worst, leave.total)
        nodes = max(20, WORK // max(1, len(picked)))
        found = self.finish(self._whole, picked, "cost", ends, target, gap=GAP / 2, node_limit=nodes)
        self.mark("integer program over columns")
        bound = best.bound
        if within <= WHOLE:
            bound = max(bound, target if found is None else min(target, found.bound))
        if found is None or not found.value < best.value:
            return best.plan, bound
        return np.repeat(few, found.counts), bound

    # ---------------------------------------------------------------------------------------------- parts

    def _tell(self, plan: Ints, steps: list[tuple[Step, Partial]]) -> None:
        """Only of plans within the budget."""
        if self._bill(plan) <= self._limit:
            super()._tell(plan, steps)

    def _bill(self, plan: Ints) -> float:
        return float(self._bills[plan].sum())

    def _within(self, solved: Solved | None) -> Solved | None:
        """None where its bill is above the budget."""
        if solved is None:
            return None
        counts = [count.instances for count in solved.counts]
        at = [self._columns.find(count.block, count.row) for count in solved.counts]
        return solved if self._bill(np.repeat(np.array(at, np.int64), counts)) <= self._limit else None

    def _solved(self, plan: Ints | None, steps: list[tuple[Step, Partial]]) -> Solved:
        """A budget that was not asked about costs nothing."""
        solved = super()._solved(plan, steps)
        missing = np.zeros(self.rows + 1 - len(solved.row_price))
        return replace(solved, row_price=np.append(solved.row_price, missing))
