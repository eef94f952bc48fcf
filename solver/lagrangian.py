"""The Lagrangian bound: prices on the rows, a knapsack for each service, and steps towards better prices.

    bound(price) = sum_s min over u of (g_s(1 - u) + dear_s u) - price . right

Every price gives a valid bound; Polyak steps along (drawn - right) raise it until it stalls. For the largest
unmet share, `dear` is weight_s times a multiplier, the multipliers being at least 0 and of sum 1: their
average of the weighted shares is at most the largest.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from solver.knapsacks import (
    GRID,
    ONCE,
    Desk,
    Flags,
    Items,
    beside_one,
    breaks,
    cover_all,
    cover_one,
    draw,
    reduced,
    trace,
    undominated,
    use_once,
)  # fmt: skip
from solver.program import Floats, Ints

STALLED, SHORTER, SHORTEST = 3, 0.6, 0.05
"""Steps without progress after which steps get shorter, by how much, and when to stop."""
ROUNDING = 1e-12
"""Reduced costs that differ by less are the same."""
REACH = 0.01
"""How far above the best bound a step aims, as a share of it."""


class Place(NamedTuple):
    """Where in the search a bound is asked for; S services, R rows."""

    columns: Ints
    """Those that may be used, by service."""
    begin: Ints
    """[S + 1]: where each service's begin."""
    room: Ints
    """[S, R + 1]: what a service may draw."""
    right: Floats
    """[R]: what all together may draw."""
    need: Ints
    """[S]: steps to cover."""
    spare: Ints
    """[S]: steps of it that may be left."""
    dear: Floats
    """[S]: price of a share left."""
    wanted: Flags
    """[S, R]: rows that the service has to draw on."""


class Found(NamedTuple):
    """What a bound was reached with."""

    drawn: Ints
    """[S, R + 1]: by the plans of the last prices."""
    cost: Floats
    """[S]: reduced cost of each plan, unmet share included."""
    unmet: Floats
    """[S]."""
    plan: Ints
    """Columns, by service."""
    size: Ints
    """[S + 1]: where each service's begin."""
    forced: Flags
    """[S]: it is not the knapsack's, since something else was required."""


def found(services: int, rows: int) -> Found:
    """Empty, for so many services and rows."""
    return Found(
        np.zeros((services, rows + 1), np.int64), np.zeros(services), np.zeros(services),
        np.zeros(services * (GRID + ONCE), np.int64), np.zeros(services + 1, np.int64),
        np.zeros(services, np.bool_),
    )  # fmt: skip


@njit(cache=True)
def rest_of(place: Place, s: int, step: int, desk: Desk) -> tuple[float, int]:
    """Least cost of what so many steps leave of a service to cover or to leave unmet, and the steps covered
    in all; g must lie on the desk."""
    need = place.need[s]
    best, top = np.inf, need
    for t in range(need, max(0, need - place.spare[s]) - 1, -1):
        rest = t - step
        cost = (desk.least[rest] if rest > 0 else 0.0) + place.dear[s] * (need - t) / GRID
        if cost < best:
            best, top = cost, t
    return best, top


@njit(cache=True)
def _required(
    items: Items, place: Place, s: int, columns: Ints, red: Floats, desk: Desk
) -> tuple[float, int]:
    """Most of, over the rows that must be drawn on: the least cost of a plan with a column that does."""
    most, first = -np.inf, -1
    for row in range(place.wanted.shape[1]):
        if not place.wanted[s, row]:
            continue
        best, which = np.inf, -1
        for j in columns:
            for at in range(items.use.shape[1]):
                if items.use[j, at] == row:
                    cost = red[j] + rest_of(place, s, items.step[j], desk)[0]
                    if cost < best:
                        best, which = cost, j
                    break
        if best > most:
            most, first = best, which
    return most, first


@njit(cache=True)
def _cover(items: Items, columns: Ints, red: Floats, need: int, whole: bool, desk: Desk) -> tuple[int, int]:
    """g onto the desk, of all states or of those that `need` comes down to. How many items are undominated,
    and how many columns may be used once only."""
    many, few = 0, 0
    for j in columns:
        if items.most[j] == 1 and few < ONCE:
            few += 1
            desk.left[len(columns) - few] = j
        else:
            desk.left[many] = j
            many += 1
    count = undominated(desk.left[:many], red, items.step, desk)
    if whole or few:
        cover_all(count, need, desk)
    else:
        cover_one(count, need, desk)
    return count, use_once(desk.left[many : many + few], red, items.step, need, desk)


@njit(cache=True)
def serve(
    items: Items, place: Place, s: int, red: Floats, exact: bool, desk: Desk, spare: Desk, out: Found
) -> None:
    """The cheapest plan of one service; with `exact` the whole of g stays on the desk."""
    columns = place.columns[place.begin[s] : place.begin[s + 1]]
    need, size = place.need[s], out.size[s]
    out.forced[s], out.unmet[s], out.cost[s], out.size[s + 1] = False, 0.0, 0.0, size
    if need <= 0:
        desk.least[0] = 0.0
        return
    leaves, wanted = place.spare[s] > 0, place.wanted[s].any()
    count, once = _cover(items, columns, red, need, exact or leaves or wanted, desk)
    best, top = rest_of(place, s, 0, desk)
    cost, first = _required(items, place, s, columns, red, desk) if wanted else (-np.inf, -1)
    if max(best, cost) == np.inf:
        out.cost[s] = np.inf
        return
    end = trace(top, once, items.step, desk, out.plan, size)
    plain = cost <= best + ROUNDING and not leaves and once == 0
    if plain and breaks(items, out.plan[size:end], place.room[s], desk.drawn):
        cover_all(count, need, desk)
        cost, first = beside_one(items, columns, red, place.room[s], need, desk, spare)
    if best + ROUNDING < cost:
        best = cost
        if first >= 0:
            out.forced[s] = True
            top = rest_of(place, s, items.step[first], desk)[1]
            out.plan[size] = first
            end = trace(max(0, top - items.step[first]), once, items.step, desk, out.plan, size + 1)
    out.cost[s], out.unmet[s], out.size[s + 1] = best, (need - top) / GRID, end


@njit(cache=True)
def value(
    items: Items, place: Place, price: Floats, red: Floats, desk: Desk, spare: Desk, out: Found
) -> float:
    """The bound at these prices ([R + 1], 0 last), with the plans behind it; infinite if there is none."""
    reduced(items, place.columns, price, red)
    total = -float((price[:-1] * place.right).sum())
    out.drawn[:] = 0
    out.size[0] = 0
    for s in range(len(place.need)):
        serve(items, place, s, red, False, desk, spare, out)
        total += float(out.cost[s])
        if total == np.inf:
            return total
        for j in out.plan[out.size[s] : out.size[s + 1]]:
            draw(items, j, 1, out.drawn[s])
    return total


@njit(cache=True)
def climb(
    items: Items,
    place: Place,
    price: Floats,
    weight: Floats,
    balance: bool,
    goal: float,
    steps: int,
    often: Floats,
    red: Floats,
    desk: Desk,
    spare: Desk,
    out: Found,
) -> tuple[float, int]:
    """Polyak steps from `price`, which becomes the best found; with `balance`, `place.dear` is moved too.

    Args:
        goal: stop once the bound is there.
        often: [S, R + 1], filled: nodes that the plans drew, on average, later ones counting more.

    Returns:
        The bound, and the steps that it took.
    """
    best, length, stalled, total, at = -np.inf, 1.0, 0, 0.0, 0
    here, kept, dear = price.copy(), price.copy(), place.dear.copy()
    often[:] = 0.0
    while at < steps:
        at += 1
        bound = value(items, place, here, red, desk, spare, out)
        if bound > best:
            stalled = 0 if bound > best + 2e-4 * abs(best) else stalled + 1
            best = bound
            kept[:], dear[:] = here, place.dear
        else:
            stalled += 1
        if best >= goal:
            break
        often += at * out.drawn
        total += at
        slope = out.drawn.sum(axis=0)[:-1] - place.right
        slope[(here[:-1] <= 0) & (slope < 0)] = 0.0
        lean = weight * out.unmet
        lean -= lean.mean()
        size = (slope * slope).sum() + ((lean * lean).sum() if balance else 0.0)
        if size < 1e-12:
            break
        if stalled >= STALLED:
            length, stalled = length * SHORTER, 0
            if length < SHORTEST:
                break
        aim = min(goal, best + REACH * abs(best) + 1e-6) - bound
        move = length * max(aim, 5e-4 * abs(best) + 1e-9) / size
        here[:-1] = np.maximum(0.0, here[:-1] + move * slope)
        if balance:
            share = np.maximum(0.0, place.dear / weight + move * lean)
            place.dear[:] = weight * share / max(1e-12, share.sum())
    price[:], place.dear[:] = kept, dear
    if total > 0:
        often /= total
    return best, at
