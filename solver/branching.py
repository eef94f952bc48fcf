"""What follows from a bound that is not yet enough: columns that no better plan has, what to decide next."""

import numpy as np
from numba import njit

from solver.knapsacks import Desk, Flags, Items, cover_all, reduced, undominated
from solver.lagrangian import Found, Place, rest_of, serve
from solver.program import Floats

UNDECIDED = 0.02
"""Where the plans of a bound agree on all but this share, there is nothing to decide."""


@njit(cache=True)
def narrow(
    items: Items,
    place: Place,
    price: Floats,
    slack: float,
    red: Floats,
    desk: Desk,
    spare: Desk,
    out: Found,
    needed: Floats,
) -> int:
    """Keep, at the front of `place.columns`, those that a plan within `slack` of the bound could have.

    Using column j at least once costs at least red_j + g(1 - t_j) more than the bound says of its service
    ("column fixing", solver.md). `needed` [S, R + 1] becomes the least more for drawing on a row at all.

    Returns:
        How many are kept; `place.begin` is set anew.
    """
    reduced(items, place.columns, price, red)
    needed[:] = np.inf
    kept = 0
    begin = place.begin.copy()
    out.size[0] = 0
    for s in range(len(place.need)):
        columns = place.columns[begin[s] : begin[s + 1]].copy()
        serve(items, place, s, red, True, desk, spare, out)
        place.begin[s] = kept
        for j in columns:
            more = red[j] - out.cost[s] + rest_of(place, s, items.step[j], desk)[0]
            if more <= slack:
                place.columns[kept] = j
                kept += 1
                for at in range(items.use.shape[1]):
                    needed[s, items.use[j, at]] = min(needed[s, items.use[j, at]], more)
    place.begin[len(place.need)] = kept
    return kept


@njit(cache=True)
def choose(
    items: Items,
    place: Place,
    price: Floats,
    often: Floats,
    needed: Floats,
    slack: float,
    red: Floats,
    desk: Desk,
    out: Found,
    decided: Flags,
) -> tuple[int, int]:
    """The (service, row) to decide on: whether the one draws on the other. (-1, -1) if there is none.

    Both answers should raise the bound: doing without by what the next best plan costs more, drawing on it
    by `needed`; the product counts (as in strong branching), and how undecided the plans were.
    """
    best, service, row = -1.0, -1, -1
    least = 0.02 * slack
    for s in range(len(place.need)):
        for r in range(often.shape[1] - 1):
            share = often[s, r] - np.floor(often[s, r])
            if decided[s, r] or share < UNDECIDED or share > 1 - UNDECIDED or often[s, r] > 1:
                continue
            without = 0.0
            if out.drawn[s, r] > 0 and not out.forced[s]:
                without = min(slack, _without(items, place, s, r, red, desk) - out.cost[s])
            with_it = min(slack, max(0.0, needed[s, r]))
            score = (without + least * share) * (with_it + least * (1 - share)) * min(share, 1 - share)
            if price[r] <= 1e-9:
                score *= 0.1
            if score > best:
                best, service, row = score, s, r
    return service, row


@njit(cache=True)
def _without(items: Items, place: Place, s: int, row: int, red: Floats, desk: Desk) -> float:
    """Least reduced cost of a service that does not draw on a row."""
    size = 0
    for j in place.columns[place.begin[s] : place.begin[s + 1]]:
        uses = False
        for at in range(items.use.shape[1]):
            uses = uses or items.use[j, at] == row
        if not uses:
            desk.left[size] = j
            size += 1
    count = undominated(desk.left[:size], red, items.step, desk)
    cover_all(count, place.need[s], desk)
    return rest_of(place, s, 0, desk)[0]
