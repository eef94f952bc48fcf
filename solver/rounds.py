"""From prices to a plan and its proof: windows over the services' plans, each wider than the one before.

A choice better than the one at hand is made of plans whose slacks add up to less than what is open between
bound and target. So all plans of less slack than a window are listed and the best choice among them is looked
for; what was not listed is above the bound by the window. It ends when that reaches the target.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from solver.board import Board
from solver.choice import Decide, Limits, choose
from solver.compiled import compiled
from solver.cuts import Tighter, nearest, tighten
from solver.knapsacks import GRID, Ask, Flags, Items, Table, fill, table, want
from solver.listing import Within, plans_within
from solver.pricing import CLOSE, Asked, Effort, Pool, Prices, Pricing
from solver.program import Floats, Ints

NEAR = 0.05
"""Columns with more slack than this share of the first bound wait until the end."""
SMALL, NEARER = 25_000, 0.02
"""So many columns do not wait in any case. Once there are good prices, those of more slack than this share
wait."""
CLIMBS, CHECKS = 4, 3
"""Times that prices are climbed to at most, over more columns each time, and over all at last; and times that
plans are listed."""
FIRST, SOON = 0.003, 4.0
"""The first window as a share of the bound, and how much wider it may be where that would be the last."""
WIDER, MANY, SLOWLY = 1.8, 800, 1.25
"""By how much the next is wider at most, and from so many listed plans on."""
WIDEST = 0.1
"""A window as a share of the bound, at most, where there is no choice yet."""
WINDOWS = 16
NARROWER = 3
"""How often a narrower window is tried after one that has too many plans."""
REACH, FEW = 4.0, 3_000
"""How far a first choice is looked for beyond what is listed, over the window; and plans that the integer
program takes at most."""
LOOK, TRY = 6_000_000, 1_000_000
"""Plans looked at to choose among all, and for a first choice: the work limits."""


@dataclass(frozen=True, eq=False)
class Goal:
    """When a choice is good enough: within this share of its objective, or within so much of it."""

    relative: float = 0.0
    absolute: float = 0.0

    def target(self, best: float) -> float:
        """A bound of so much proves it."""
        return best - max(self.relative * abs(best), self.absolute) if np.isfinite(best) else best


@dataclass(frozen=True, eq=False)
class Reached:
    """The best choice, its objective, and what no choice is below."""

    plan: Ints | None
    """Columns (of `Existing`), one for each instance."""
    value: float
    bound: float
    prices: Prices
    plans: int = 0
    """Listed in the last window."""
    steps: int = 0


def reach(
    board: Board,
    asked: Asked,
    goal: Goal,
    start: Prices,
    found: Reached | None,
    decide: Decide,
    effort: Effort,
    mark: Callable[[str], None],
) -> Reached:
    """Prices, then windows.

    Args:
        start: prices to begin with.
        found: a choice that is there.
        mark: called after each part of the work with its name.
    """
    near, prices, worth, slack = _climbed(board, asked, start, effort)
    mark("prices")
    best = replace(found or Reached(None, np.inf, -np.inf, start), steps=prices.steps)
    if not np.isfinite(worth).all():  # some service has no plan
        return replace(best, bound=np.inf)
    above = slack + prices.net(worth, board.right, asked.total)
    edge = prices.bound + NEARER * max(abs(prices.bound), asked.scale)
    for again in range(CHECKS):
        prices = _with(board, prices, worth, np.where(~near & (above < edge), slack, np.inf), asked)
        near = above < edge if np.isfinite(edge) else np.ones(len(board), np.bool_)
        reached = replace(best, prices=prices, bound=prices.bound)
        pricing = Pricing(board.part(near), asked, effort)
        reached = _windows(pricing, goal, reached, decide, mark, at_once=again > 0)
        least = float(above[~near].min(initial=np.inf))
        best = replace(reached, bound=max(best.bound, min(reached.bound, least)))
        mark("check")
        if least >= reached.bound:
            break
        edge = goal.target(best.value)
    return best


def _climbed(
    board: Board, asked: Asked, start: Prices, effort: Effort
) -> tuple[Flags, Prices, Floats, Floats]:
    """Prices climbed to over near columns, until the others take next to nothing from the bound; which these
    are, and what `slacks` says of all at the prices."""
    worth, slack = slacks(board, asked, start)
    base = start.net(worth, board.right, asked.total)
    near = _first_near(base, slack, asked.scale)
    pool = Pool(len(worth))
    for at in range(CLIMBS):
        prices = Pricing(board.part(near), asked, effort, pool).climb(start)
        worth, slack = slacks(board, asked, prices)
        over = _with(board, prices, worth, np.where(near, np.inf, slack), asked)
        enough = prices.bound - over.bound <= CLOSE * abs(prices.bound)
        if near.all() or enough or at == CLIMBS - 1:  # prices know of no others than those that are near
            break
        above = slack + prices.net(worth, board.right, asked.total)
        near |= above < over.bound + NEARER * max(abs(over.bound), asked.scale)
        near |= at == CLIMBS - 2 or not np.isfinite(prices.bound)
        start = prices if base < over.bound < np.inf else start
    return near, prices, worth, slack


def _first_near(base: float, slack: Floats, scale: float) -> Flags:
    """The columns to begin with, by the first bound and their slacks."""
    if len(slack) <= SMALL or not np.isfinite(base):
        return np.ones(len(slack), np.bool_)
    few = float(np.partition(slack, SMALL)[SMALL])
    return slack <= max(NEAR * max(abs(base), scale), few)


def _with(board: Board, prices: Prices, worth: Floats, slack: Floats, asked: Asked) -> Prices:
    """The bound with some more columns: a plan that has one is worth its slack more than the table says."""
    services = len(worth)
    least, begin = np.full(services, np.inf), board.items.begin
    there = np.flatnonzero(np.diff(begin))
    least[there] = worth[there] + np.minimum.reduceat(slack, begin[there])
    least = np.minimum(prices.worth, least)
    return replace(prices, worth=least, bound=prices.net(least, board.right, asked.total), steps=0)


def least_with(board: Board, asked: Asked, prices: Prices) -> Floats:
    """What no choice with a column is below, for each, by the tables at these prices."""
    worth, slack = slacks(board, asked, prices)
    return slack + prices.net(worth, board.right, asked.total)


def slacks(board: Board, asked: Asked, prices: Prices) -> tuple[Floats, Floats]:
    """By the tables at these prices: what no plan of a service is worth less than ([S]), and how much more it
    is with each column."""
    slack, worth = np.empty(len(board)), np.empty(len(asked.weight))
    _slacks(
        board.items, asked.priced(prices.total), np.append(prices.row, 0.0), prices.own, board.right,
        table(len(board)), slack, worth,
    )  # fmt: skip
    return worth, slack


def _windows(
    pricing: Pricing, goal: Goal, best: Reached, decide: Decide, mark: Callable[[str], None], at_once: bool
) -> Reached:
    """`at_once`: the last window first, if there is a choice already."""
    prices, low = best.prices, best.prices.bound
    window = max(FIRST * abs(low), 2 * goal.absolute, 1e-9)
    if at_once or goal.target(best.value) - low <= SOON * window:
        window = max(window, min(goal.target(best.value) - low, WIDEST * abs(low)))
    listed, too_wide, narrowed = 0.0, np.inf, 0
    for _ in range(WINDOWS):
        target = goal.target(best.value)
        if best.bound >= target:
            break
        window = min(window, target - low)
        if window >= too_wide:
            window, narrowed = (listed + too_wide) / 2, narrowed + 1
        near = plans_within(pricing, prices, window)
        mark("plans")
        if not near.whole and narrowed < NARROWER:
            too_wide = window
            continue
        question = _Question(pricing, near, prices.bound, goal, mark)
        best, proven = question.answer(best, low + window, decide)
        edge = low + window if near.whole else low
        best = replace(best, bound=max(best.bound, min(proven, edge, goal.target(best.value))))
        if not near.whole or narrowed == NARROWER or (proven < edge and np.isfinite(best.value)):
            break
        listed = window
        window *= WIDER if len(near.columns) < MANY else SLOWLY
    return best


@dataclass(frozen=True, eq=False)
class _Question:
    """Which of the listed plans to choose."""

    pricing: Pricing
    near: Within
    bound: float
    goal: Goal
    mark: Callable[[str], None]

    def answer(self, best: Reached, edge: float, decide: Decide) -> tuple[Reached, float]:
        """The best choice, if it is better than what is there; and what no choice among these plans is below,
        up to the edge."""
        plans, right, total = self.near.plans, self.near.right, self.pricing.asked.total
        best = replace(best, plans=len(plans.slack))
        every = Tighter(plans, self.bound, np.arange(len(plans.slack)))
        best, left = self._search(best, every, right, edge, TRY)
        self.mark("choice")
        if left:
            return best if np.isfinite(best.value) else self._beyond(best, every, right, edge, decide), edge
        target = self.goal.target(best.value)
        tight = tighten(plans, right, total, min(target, edge), target)
        self.mark("cuts")
        best, left = self._search(best, tight, right, edge, LOOK)
        self.mark("choice")
        if left:  # where it took so much, a better one than the one at hand may be beyond
            return self._beyond(best, tight, right, edge, decide), edge
        few, least = nearest(tight, FEW)
        found = decide(few.plans, right, total, min(self.goal.target(best.value), 2 * edge - self.bound))
        self.mark("integer program")
        if found.value < best.value:
            best = self._taken(best, few.at[found.chosen], found.value)
        return best, max(tight.bound, min(least, found.bound))

    def _beyond(self, best: Reached, among: Tighter, right: Ints, edge: float, decide: Decide) -> Reached:
        """With a choice that is dearer than the edge."""
        best, left = self._search(best, among, right, edge + REACH * (edge - self.bound), TRY)
        self.mark("choice")
        if not left and not np.isfinite(best.value):
            few, _ = nearest(among, FEW)
            found = decide(few.plans, right, self.pricing.asked.total, np.inf)
            self.mark("integer program")
            if np.isfinite(found.value):
                best = self._taken(best, few.at[found.chosen], found.value)
        return best

    def _search(
        self, best: Reached, among: Tighter, right: Ints, edge: float, work: int
    ) -> tuple[Reached, int]:
        """The best choice below edge and target, and how much of the work is left."""
        chosen = np.full(self.pricing.services, -1, np.int64)
        goal, cutoff = self.goal, min(self.goal.target(best.value), edge)
        limits = Limits(self.pricing.asked.total, goal.relative, goal.absolute, first=False, work=work)
        value, left = choose(among.plans, right, among.bound, cutoff, limits, chosen)
        return (self._taken(best, among.at[chosen], value) if value < best.value else best), left

    def _taken(self, best: Reached, chosen: Ints, value: float) -> Reached:
        return replace(best, plan=self.pricing.board.at[self.near.instances(chosen)], value=value)


def tables_at(board: Board, prices: Prices) -> Floats:
    """[S, GRID + 1]: what so many steps of each service are worth at least, where nothing may be left."""
    services = len(prices.own)
    found, none = np.empty((services, GRID + 1)), np.zeros(services)
    ask, price = Ask(np.ones(services), none, none), np.append(prices.row, 0.0)
    _tables(board.items, ask, price, prices.own, board.right, table(len(board)), found)
    return found


# ---------------------------------------------------------------------------------------------- compiled


@compiled
def _slacks(
    items: Items,
    ask: Ask,
    price: Floats,
    own: Floats,
    right: Ints,
    paper: Table,
    slack: Floats,
    worth: Floats,
) -> None:
    for s in range(len(worth)):
        wanted = want(ask, s)
        fill(items, s, price + own[s], wanted, paper)
        whole = paper.open[0, wanted.need]
        worth[s] = whole - float((own[s][:-1] * right).sum())
        for j in range(items.begin[s], items.begin[s + 1]):
            slack[j] = paper.red[j] + paper.open[0, max(0, wanted.need - items.step[j])] - whole


@compiled
def _tables(
    items: Items, ask: Ask, price: Floats, own: Floats, right: Ints, paper: Table, found: Floats
) -> None:
    for s in range(len(found)):
        fill(items, s, price + own[s], want(ask, s), paper)
        found[s] = np.maximum(0.0, paper.least[0] - float((own[s][:-1] * right).sum()))
