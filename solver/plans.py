"""Plans of one service: columns that cover its share together, and what they draw on rows.

Once rows have prices, few plans of a service are cheap enough to be part of a good plan for all. They are
listed exactly: a walk over multisets of columns, in which the service's table (`solver.knapsacks`) bounds
what any start can come to. A plan that breaks the stock by itself is none, and one that needs no less of
anything than another, at no less cost, is left out.

Where the cheapest plan by the table breaks the stock, the service's own prices on rows (`own`) go on top of
everybody's: they make the table a tighter bound, and take nothing from what a plan is worth.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solver.compiled import compiled
from solver.knapsacks import EVEN, GRID, Items, Table, fill, trace
from solver.program import Floats, Ints

DEEP = 40
"""Instances of a plan at most."""
OWN_STEPS = 8
"""Steps towards a service's own prices, each time its bound is asked for."""
Counts = NDArray[np.int16]


class Listed(NamedTuple):
    """Room for plans of one service; n of them at most."""

    use: Counts
    """[n, R]."""
    cost: Floats
    """USD per hour, or what else columns cost."""
    unmet: Floats
    worth: Floats
    """Reduced cost, at everybody's prices: what is left unmet is in it."""
    columns: Ints
    """[n, DEEP]."""
    size: Ints


def listed(plans: int, rows: int) -> Listed:
    """Room for so many."""
    return Listed(
        np.zeros((plans, rows), np.int16), np.zeros(plans), np.zeros(plans), np.zeros(plans),
        np.zeros((plans, DEEP), np.int64), np.zeros(plans, np.int64),
    )  # fmt: skip


@compiled
def bound(
    items: Items, s: int, price: Floats, own: Floats, right: Ints, share: float, spare: float, dear: float,
    aim: float, steps: int, paper: Table, plan: Ints,
) -> tuple[float, int]:  # fmt: skip
    """What no plan of a service is below, at these prices ([R + 1]); the table is filled for it.

    Where the table's plan breaks the stock, `own` ([R + 1]) is moved by up to `steps` Polyak steps.

    Args:
        aim: what a plan is known to reach, infinite if none is known.

    Returns:
        The bound, and how many rows the table has before its last.
    """
    need = int(np.ceil(share * GRID - 1e-7))
    best, kept, length = -np.inf, own.copy(), 1.0
    here = own.copy()
    drawn = np.zeros(len(own))
    for at in range(steps + 1):
        rows = fill(items, s, price + here, need, spare, dear, paper)
        held = float((here[:-1] * right).sum())
        found = paper.open[0, need] - held
        if found > best:
            best, kept[:] = found, here
        else:
            length *= 0.6
        if at == steps or not np.isfinite(found):
            break
        drawn[:] = 0.0
        for k in range(trace(items, s, rows, need, spare, dear, paper, plan)):
            for use in items.use[plan[k]]:
                drawn[use] += 1
        slope = drawn[:-1] - right
        if slope.max() <= 0 and not here.any():
            break
        slope[(here[:-1] <= 0) & (slope < 0)] = 0.0
        size = (slope * slope).sum()
        if size == 0:
            break
        goal = aim if np.isfinite(aim) else best + 0.02 * abs(best)
        here[:-1] = np.maximum(0.0, here[:-1] + length * max(goal - found, 1e-3 * abs(best)) / size * slope)
    if not np.array_equal(kept, here):
        rows = fill(items, s, price + kept, need, spare, dear, paper)
    own[:] = kept
    return best, rows


@compiled
def worthwhile(items: Items, s: int, need: int, most: float, paper: Table) -> tuple[Ints, Ints]:
    """The columns that a plan worth at most so much by the table can have, and for each the place after those
    that cover as much: those that can be used once in their order, then the others, who cover most and then
    the cheapest first."""
    low, high = items.begin[s], items.begin[s + 1]
    found, key = np.empty(high - low, np.int64), np.empty(high - low)
    count, dearest = 0, 1.0
    for j in range(low, high):
        if paper.red[j] + paper.open[0, max(0, need - items.step[j])] <= most:
            found[count], key[count] = j, paper.red[j]
            dearest = max(dearest, abs(paper.red[j]))
            count += 1
    found, key = found[:count], key[:count]
    first = int(np.searchsorted(found, low + items.once[s]))
    key = key / (3 * dearest) - items.step[found]
    found = np.append(found[:first], found[first:][np.argsort(key[first:], kind="mergesort")])
    after = np.arange(1, count + 1)
    for k in range(count - 2, first - 1, -1):
        if items.step[found[k]] == items.step[found[k + 1]]:
            after[k] = after[k + 1]
    return found, after


@compiled
def walk(
    items: Items, s: int, rows: int, own: Floats, right: Ints, share: float, spare: float, dear: float,
    most: float, cheapest: bool, work: int, paper: Table, out: Listed,
) -> tuple[int, bool]:  # fmt: skip
    """List a service's plans worth at most so much; with `cheapest` only one that none is cheaper than.

    The table must be filled, at prices with `own` on top.

    Args:
        work: columns tried at most.

    Returns:
        How many, and whether these are all: the room, or the work limit, did not end the walk.
    """
    need = int(np.ceil(share * GRID - 1e-7))
    limit = most + float((own[:-1] * right).sum())
    columns, after = worthwhile(items, s, need, limit, paper)
    low, last, wide = items.begin[s], len(right), items.use.shape[1]
    drawn, left = np.zeros(last + 1, np.int64), np.append(right, 1 << 40)
    at, rest, runs = np.zeros(DEEP + 1, np.int64), np.zeros(DEEP + 1, np.int64), np.zeros(DEEP + 1, np.int64)
    paid, cost, covered = np.zeros(DEEP + 1), np.zeros(DEEP + 1), np.zeros(DEEP + 1)
    rest[0] = need
    count, depth, whole = 0, 0, True
    if share <= spare + EVEN and dear * share <= most:
        count = _note(count, 0, at, columns, drawn, 0.0, share, dear * share, out)
        if cheapest:
            limit += dear * share - most - EVEN
            most = dear * share - EVEN
    while depth >= 0:
        k = at[depth]
        if k >= len(columns) or work <= 0:
            whole = whole and work > 0
            depth -= 1
            if depth >= 0:
                for use in items.use[columns[at[depth]]]:
                    drawn[use] -= 1
                at[depth] += 1
            continue
        j = columns[k]
        work -= 1
        row = min(j - low + 1, rows)
        left_over = share - covered[depth] - items.cover[j]
        t = rest[depth] - items.step[j]
        t = 0 if left_over <= EVEN else max(t, 1)
        paying = paid[depth] + paper.red[j]
        if paying + paper.open[row, t] > limit:
            at[depth] = after[k]  # the others that cover as much cost more
            continue
        fits = True
        for slot in range(wide):
            use = items.use[j, slot]
            drawn[use] += 1
            fits = fits and drawn[use] <= left[use]
        runs[depth] = runs[depth - 1] + 1 if depth > 0 and at[depth - 1] == k else 1
        if fits and runs[depth] <= items.most[j]:
            unmet = max(0.0, left_over) if left_over > EVEN else 0.0
            if unmet <= spare + EVEN:
                worth = paying + dear * unmet
                for row_ in range(last):
                    worth -= own[row_] * drawn[row_]
                if worth <= most:
                    if cheapest:
                        count = 0
                        limit += worth - most - EVEN
                        most = worth - EVEN
                    elif count == len(out.size):
                        return count, False
                    spent = cost[depth] + items.cost[j]
                    count = _note(count, depth + 1, at, columns, drawn, spent, unmet, worth, out)
            if unmet > 0 and depth + 1 < DEEP:
                paid[depth + 1], cost[depth + 1] = paying, cost[depth] + items.cost[j]
                covered[depth + 1], rest[depth + 1] = covered[depth] + items.cover[j], t
                at[depth + 1] = k + 1 if items.most[j] == 1 else k
                depth += 1
                continue
            whole = whole and not (unmet > 0)
        for slot in range(wide):
            drawn[items.use[j, slot]] -= 1
        at[depth] += 1
    return count, whole


@compiled
def _note(
    count: int, size: int, at: Ints, columns: Ints, drawn: Ints, cost: float, unmet: float, worth: float,
    out: Listed,
) -> int:  # fmt: skip
    for row in range(out.use.shape[1]):
        out.use[count, row] = drawn[row]
    out.cost[count], out.unmet[count], out.worth[count], out.size[count] = cost, unmet, worth, size
    for k in range(size):
        out.columns[count, k] = columns[at[k]]
    return count + 1


@compiled
def needed(out: Listed, order: Ints, keep: NDArray[np.bool_]) -> None:
    """Mark the plans that no other one makes needless; `order` by rising worth."""
    kept = np.empty(len(order), np.int64)
    count = 0
    for p in order:
        needless = False
        for k in range(count):
            q = kept[k]
            if out.cost[q] <= out.cost[p] + EVEN and out.unmet[q] <= out.unmet[p] + EVEN:
                needless = True
                for row in range(out.use.shape[1]):
                    if out.use[q, row] > out.use[p, row]:
                        needless = False
                        break
                if needless:
                    break
        if not needless:
            keep[p] = True
            kept[count] = p
            count += 1
