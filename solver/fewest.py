"""Least demand left unmet within a budget: a choice of plans, bill and unmet shares in each other's place.

Where the sum of unmet shares has a price, what bounds the bill bounds that sum for whoever keeps the budget:

    bill of a choice >= bound + price (asked - its sum) + slacks of its plans   and   bill <= budget
    so   its sum     >= asked - (budget - bound) / price + slacks of its plans / price

These plans are listed, and the choice that leaves least among them is looked for, the bill a limit.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from solver.board import Board
from solver.choice import Decide, Limits, Plans, choose
from solver.knapsacks import EVEN
from solver.listing import plans_within
from solver.pricing import Asked, Effort, Prices, Pricing
from solver.program import Ints
from solver.rounds import least_with

CLOSE = 1e-4
"""Choices whose sums differ by less are the same."""
LOOK, MANY = 2_000_000, 4_000
"""Plans looked at to choose among plans, and plans that the integer program takes at most: work limits."""


class Budget(NamedTuple):
    """What bounds a choice."""

    usd: float
    """The most that its bill comes to; columns cost what they add to it."""
    price: float
    """USD that a weighted unmet share is worth at least, so that slack says something of shares."""


class Fewest(NamedTuple):
    """The choice that leaves least of those that leave no more than asked."""

    plan: Ints | None
    """Columns (of `Existing`), one for each instance; None if none was found."""
    proven: bool
    """Whether none leaves less, by more than `CLOSE`; without a plan: whether there is none."""
    prices: Prices


def fewest(
    board: Board,
    asked: Asked,
    budget: Budget,
    start: Prices,
    decide: Decide,
    effort: Effort,
    mark: Callable[[str], None],
) -> Fewest:
    """Look for it.

    Args:
        asked: with a finite total, which choices stay below.
        start: prices to begin with.
        mark: called after each part of the work with its name.
    """
    pricing = Pricing(board.part(least_with(board, asked, start) <= budget.usd), asked, effort)
    prices = pricing.climb(start)
    mark("prices")
    if prices.bound > budget.usd:
        return Fewest(None, True, start)
    if prices.total < budget.price:
        prices = pricing.look(replace(prices, total=budget.price))
    room = max(0.0, budget.usd - prices.bound)
    near = plans_within(pricing, prices, room)
    mark("plans")
    plans, bound = near.plans, asked.total - room / prices.total
    swapped = plans._replace(slack=plans.slack / prices.total, objective=plans.unmet, unmet=plans.objective)
    chosen, proven = _choice(swapped, near.right, bound, asked.total, budget.usd, decide, mark)
    if chosen is None:
        return Fewest(None, near.whole and proven, prices)
    return Fewest(pricing.board.at[near.instances(chosen)], near.whole and proven, prices)


def _choice(
    plans: Plans,
    right: Ints,
    bound: float,
    cutoff: float,
    usd: float,
    decide: Decide,
    mark: Callable[[str], None],
) -> tuple[Ints | None, bool]:
    """The choice of least objective below the cutoff, and whether none has less."""
    chosen = np.full(len(plans.begin) - 1, -1, np.int64)
    limits = Limits(usd, absolute=CLOSE, work=LOOK)
    value, left = choose(plans, right, bound, cutoff, limits, chosen)
    mark("choice")
    if left or len(plans.slack) > MANY:
        return (chosen if np.isfinite(value) else None), left > 0
    found = decide(plans, right, usd, min(cutoff, value))
    mark("integer program")
    proven = found.bound >= min(cutoff - EVEN, value - CLOSE, found.value - CLOSE)
    if found.value < value and plans.unmet[found.chosen].sum() <= usd:
        return found.chosen, proven
    return (chosen if np.isfinite(value) else None), proven and not found.value < value
