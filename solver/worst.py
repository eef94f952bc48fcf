"""The least largest unmet share, by weight: for which share can every service be given the rest?

Prices on rows settle most shares: where even the cheapest plans of all services together are worth more than
the stock, there is no choice of plans. Otherwise a choice has only plans whose slacks add up to no more than
what the stock leaves open, so these are listed, and one for each service is looked for. That bisects.
"""

from dataclasses import dataclass, replace

import numpy as np

from solver.board import Board
from solver.choice import Decide, Limits, choose
from solver.column_lp import Relaxed
from solver.cuts import Tighter, nearest
from solver.knapsacks import GRID, ROUNDING, Ask
from solver.listing import plans_within
from solver.pricing import TINY, Asked, Effort, Prices, Pricing, free_prices
from solver.program import Floats, Ints
from solver.rounds import FEW, LOOK, tables_at

STEPS, LISTS, ROOM = 40, 6_000_000, 8_000
"""Shares tried at most, columns tried for lists of plans, and plans of a service in one."""


@dataclass(frozen=True, eq=False)
class Worst:
    """A plan (columns of `Existing`), the share that it leaves at most, and what no plan leaves less than."""

    plan: Ints
    value: float
    bound: float


def least_worst(board: Board, weight: Floats, gap: float, relaxed: Relaxed, decide: Decide) -> Worst:
    """Bisect until bound and value are within the gap, or what is left cannot be settled.

    Args:
        relaxed: of the same question, over columns.
    """
    free = replace(board, items=board.items._replace(cost=np.zeros(len(board))))
    shares = _Shares(free, weight, decide)
    prices = free_prices(len(weight), len(board.right))
    low = max(shares.above(prices, 0.0), relaxed.value - TINY if relaxed.whole else 0.0, 0.0)
    found = Worst(np.zeros(0, np.int64), float(weight.max()), low)
    low, prices = _by_prices(shares, low, found.value, gap, replace(prices, row=relaxed.row_price))
    found = replace(found, bound=low)
    reach, open_ = 2 * gap, low
    for _ in range(STEPS):
        if found.value - open_ <= gap:
            break
        middle = min((found.value + open_) / 2, open_ + reach)
        plan, settled = shares.plan(middle, prices)
        if plan is not None:
            found = replace(found, plan=plan, value=min(middle, shares.worst(plan)))
            reach = np.inf
            continue
        reach *= 2
        open_ = middle
        if settled:  # nor can less be left, whatever was not settled about it
            found = replace(found, bound=middle)
    return found


def _by_prices(
    shares: "_Shares", low: float, high: float, gap: float, prices: Prices
) -> tuple[float, Prices]:
    """The least share that prices do not rule out, and the prices that ruled out the last."""
    while high - low > gap / 2:
        middle = (low + high) / 2
        tried = shares.climb(middle, prices)
        if tried.bound > TINY:
            prices = tried
            low = max(middle, shares.above(tried, middle))
        else:
            high = middle
    return low, prices


class _Shares:
    """Questions about one share."""

    def __init__(self, board: Board, weight: Floats, decide: Decide) -> None:
        self.board, self.weight, self.decide = board, weight, decide
        self.effort = Effort(lists=LISTS)

    def asked(self, share: float) -> Asked:
        """All but the share of each service's demand."""
        none = np.zeros(len(self.weight))
        left = np.clip(1.0 - share / self.weight, 0.0, 1.0)
        return Asked(Ask(left, none, none), self.weight, feasible=True)

    def climb(self, share: float, start: Prices) -> Prices:
        """Prices that rule a share out (a bound above 0), if there are any."""
        return Pricing(self.board, self.asked(share), self.effort).climb(start)

    def above(self, prices: Prices, share: float) -> float:
        """The largest share that these prices rule out by the services' tables; -1 if none."""
        least = tables_at(self.board, prices)
        held = prices.base(self.board.right, np.inf)
        ruled, tried = -1.0, np.linspace(share, float(self.weight.max()), 2000)
        for one in tried.tolist():
            need = np.ceil(self.asked(one).ask.share * GRID - ROUNDING).astype(np.int64)
            if least[np.arange(len(need)), need].sum() <= held + TINY * max(1.0, held):
                break
            ruled = one
        return ruled

    def plan(self, share: float, prices: Prices) -> tuple[Ints | None, bool]:
        """A plan that leaves no more, None if none was found; and whether that is certain."""
        pricing = Pricing(self.board, self.asked(share), self.effort)
        here = pricing.look(prices)
        if here.bound > TINY:
            return None, True
        near = plans_within(pricing, here, max(0.0, -here.bound) + TINY, ROOM)
        chosen = np.full(len(self.weight), -1, np.int64)
        limits = Limits(first=True, work=LOOK)
        value, left = choose(near.plans, near.right, here.bound, 2 * TINY, limits, chosen)
        if not np.isfinite(value) and left <= 0:
            few, _ = nearest(Tighter(near.plans, here.bound, np.arange(len(near.columns))), FEW)
            found = self.decide(few.plans, near.right, np.inf, np.inf)
            if np.isfinite(found.value):
                value, chosen = found.value, few.at[found.chosen]
        if not np.isfinite(value):
            return None, near.whole and left > 0
        return self.board.at[near.instances(chosen)], True

    def worst(self, plan: Ints) -> float:
        """The largest share that a plan leaves."""
        left = np.ones(len(self.weight))
        columns = self.board.columns
        np.subtract.at(left, columns.service[plan], columns.cover[plan])
        return float((self.weight * np.maximum(left, 0.0)).max())
