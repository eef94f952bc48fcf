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

from solver.compiled import compiled
from solver.knapsacks import EVEN, Flags, Items, Shorts, Table, Want, cover, fill, leave, trace
from solver.program import Floats, Ints

WHOLE = 1e-7
"""What is left of a share below this is rounding (`solver.partials`)."""
DEEP = 80
"""Instances of a plan at most."""
OWN_STEPS = 8
"""Steps towards a service's own prices, each time its bound is asked for."""
TAKING = 10
"""What taking a column is worth in columns that are but looked at."""
CROWD = 300
"""Columns that may follow the first one of a plan, from which on it is worth a table of its own."""
PAIRS = 300_000_000
"""Pairs of plans that are compared at most."""
SHORTER, REACH, LEAST = 0.6, 0.02, 1e-3
"""What a step is shortened by that did not help; how far one aims above the best bound where no plan is
known, and how far at least, as shares of it."""


class Listed(NamedTuple):
    """Room for plans of one service; n of them at most."""

    use: Shorts
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
    items: Items, s: int, price: Floats, own: Floats, right: Ints, wanted: Want, aim: float, steps: int,
    paper: Table,
) -> tuple[float, int]:  # fmt: skip
    """What no plan of a service is below, at these prices ([R + 1]); the table is filled for it.

    Where the table's plan breaks the stock, `own` ([R + 1]) is moved by up to `steps` Polyak steps.

    Args:
        aim: what a plan is known to reach, infinite if none is known.

    Returns:
        The bound, and how many rows the table has before its last.
    """
    best, kept, here, length = -np.inf, own.copy(), own.copy(), 1.0
    for at in range(steps + 1):
        rows = fill(items, s, price + here, wanted, paper)
        found = paper.open[0, wanted.need] - float((here[:-1] * right).sum())
        if found > best:
            best, kept[:] = found, here
        else:
            length *= SHORTER
        if at == steps or not np.isfinite(found):
            break
        slope = _overdrawn(items, rows, wanted, right, here, paper)
        size = float((slope * slope).sum())
        if size == 0 or (slope.max() <= 0 and not here.any()):
            break
        goal = aim if np.isfinite(aim) else best + REACH * abs(best)
        move = length * max(goal - found, LEAST * abs(best)) / size
        here[:-1] = np.maximum(0.0, here[:-1] + move * slope)
    if not np.array_equal(kept, here):
        rows = fill(items, s, price + kept, wanted, paper)
    own[:] = kept
    return best, rows


@compiled
def _overdrawn(items: Items, rows: int, wanted: Want, right: Ints, own: Floats, paper: Table) -> Floats:
    """[R]: what the table's plan draws beyond the stock; less than that counts where there is a price."""
    plan = np.empty(DEEP, np.int64)
    slope = np.append(-right.astype(np.float64), 0.0)
    for k in range(trace(items, rows, wanted, paper, plan)):
        for use in items.use[plan[k]]:
            slope[use] += 1
    slope = slope[:-1]
    slope[(own[:-1] <= 0) & (slope < 0)] = 0.0
    return slope


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


class _Way(NamedTuple):
    """Where a walk stands, by depth: the column there, and what those before it come to."""

    at: Ints
    """Of the worthwhile columns."""
    runs: Ints
    """How often it has been taken in a row."""
    rest: Ints
    """Steps to cover."""
    covered: Floats
    paid: Floats
    """Reduced cost."""
    owed: Floats
    """Of that, the service's own prices."""
    cost: Floats
    drawn: Ints
    """[R + 1]: by all."""


@compiled
def walk(
    items: Items, s: int, rows: int, own: Floats, right: Ints, wanted: Want, most: float, cheapest: bool,
    work: int, paper: Table, beside: Table, out: Listed,
) -> tuple[int, bool, int]:  # fmt: skip
    """List a service's plans worth at most so much; with `cheapest` only the cheapest, after some of those
    that were the cheapest till then.

    The table must be filled, at prices with `own` on top.

    Args:
        work: columns tried at most.

    Returns:
        How many; whether these are all: the room, or the work limit, did not end the walk; and how much of
        the work is left.
    """
    held = float((own[:-1] * right).sum())
    columns, after = worthwhile(items, s, wanted.need, most + held, paper)
    way = _way(len(right), wanted.need)
    count, depth, whole, crowded, room = 0, 0, True, False, len(out.size)
    if wanted.share <= wanted.spare + WHOLE and wanted.dear * wanted.share <= most:
        count = _note(0, 0, way, columns, 0.0, wanted.share, wanted.dear * wanted.share, out)
        most = wanted.dear * wanted.share - EVEN if cheapest else most
    while depth >= 0:
        k = way.at[depth]
        if k >= len(columns) or work <= 0:
            whole, depth = whole and work > 0, _back(items, columns, way, depth)
            continue
        j, work = columns[k], work - 1
        unmet, rest, stop = _stop(items, j, way, depth, wanted)
        on = paper.open[min(j - items.begin[s] + 1, rows), rest]
        on = max(on, beside.open[0, rest]) if crowded and depth > 0 else on
        here = way.paid[depth] + paper.red[j]
        if here + min(on, stop) > most + held:  # others that cover as much cost more
            way.at[depth] = after[k] if way.rest[depth] > items.step[j] else k + 1
            continue
        fits, work = _take(items, j, way, depth, right), work - TAKING
        if depth == 0:
            crowded = fits and rest > 0 and len(columns) - k > CROWD
            if crowded:
                work -= len(columns) - k + rest
                _beside(items, columns[k:], right, way.drawn, wanted, rest, paper.red, beside)
                fits = here + min(beside.open[0, rest], stop) <= most + held
        worth = here + stop - way.owed[depth] - _owed(items, j, own)
        if fits and worth <= most:
            if count == room and not cheapest:
                return count, False, work
            cost, count = way.cost[depth] + items.cost[j], min(count, room - 1)
            count = _note(count, depth + 1, way, columns, cost, unmet, worth, out)
            most = worth - EVEN if cheapest else most
        if fits and rest > 0 and depth + 1 < DEEP:
            depth = _go_on(items, j, rest, paper.red[j], own, way, depth)
            continue
        whole = whole and not (fits and rest > 0)  # too deep
        _put_back(items, j, way)
        way.at[depth] += 1
    return count, whole, work


@compiled
def _stop(items: Items, j: int, way: _Way, depth: int, wanted: Want) -> tuple[float, int, float]:
    """With one more instance of a column: the share that is left, the steps, and what to leave it costs;
    infinite if that may not be."""
    unmet = max(0.0, wanted.share - way.covered[depth] - items.cover[j])
    stop = wanted.dear * unmet if unmet <= wanted.spare + WHOLE else np.inf
    if unmet <= WHOLE:
        return 0.0, 0, stop
    return unmet, max(1, way.rest[depth] - items.step[j]), stop


@compiled
def _beside(
    items: Items, columns: Ints, right: Ints, drawn: Ints, wanted: Want, rest: int, red: Floats, paper: Table
) -> None:
    """A table of one row, for so many steps, of those columns that fit beside what is drawn already.

    Where many columns could follow the first one of a plan, most of what the service's own table promises
    them breaks the stock together with it.
    """
    cheapest, which = paper.cheapest, paper.which
    cheapest[: rest + 1], which[: rest + 1] = np.inf, -1
    for j in columns:
        step = min(items.step[j], rest)
        if red[j] < cheapest[step] and fits(items, j, right, drawn):
            cheapest[step], which[step] = red[j], j
    cover(rest, 0, paper)
    left = Want(wanted.share, wanted.spare, wanted.dear, rest, min(rest, wanted.left))
    leave(paper.least[0], paper.open[0], left, paper.steps)


@compiled
def fits(items: Items, j: int, right: Ints, drawn: Ints) -> bool:
    """Whether one more instance of a column does, where equal nodes stand side by side."""
    run, before = 0, -1
    for use in items.use[j]:
        run = run + 1 if use == before else 1
        before = use
        if use < len(right) and drawn[use] + run > right[use]:
            return False
    return True


@compiled
def _way(rows: int, need: int) -> _Way:
    """At the beginning of all ways."""
    whole, real = np.zeros((3, DEEP + 1), np.int64), np.zeros((4, DEEP + 1))
    whole[2, 0] = need
    drawn = np.zeros(rows + 1, np.int64)
    return _Way(whole[0], whole[1], whole[2], real[0], real[1], real[2], real[3], drawn)


@compiled
def _owed(items: Items, j: int, own: Floats) -> float:
    """What a column costs by the service's own prices."""
    total = 0.0
    for use in items.use[j]:
        total += own[use]
    return total


@compiled
def _take(items: Items, j: int, way: _Way, depth: int, right: Ints) -> bool:
    """One more instance of a column; whether there may be."""
    fits = True
    for use in items.use[j]:
        way.drawn[use] += 1
        fits = fits and (use == len(right) or way.drawn[use] <= right[use])
    again = depth > 0 and way.at[depth - 1] == way.at[depth]
    way.runs[depth] = way.runs[depth - 1] + 1 if again else 1
    return bool(fits and way.runs[depth] <= items.most[j])


@compiled
def _put_back(items: Items, j: int, way: _Way) -> None:
    for use in items.use[j]:
        way.drawn[use] -= 1


@compiled
def _go_on(items: Items, j: int, rest: int, red: float, own: Floats, way: _Way, depth: int) -> int:
    """To the next instance: of the same column, or of one after it."""
    deeper = depth + 1
    way.paid[deeper], way.cost[deeper] = way.paid[depth] + red, way.cost[depth] + items.cost[j]
    way.owed[deeper] = way.owed[depth] + _owed(items, j, own)
    way.covered[deeper], way.rest[deeper] = way.covered[depth] + items.cover[j], rest
    way.at[deeper] = way.at[depth] + (items.most[j] == 1)
    return deeper


@compiled
def _back(items: Items, columns: Ints, way: _Way, depth: int) -> int:
    """To the instance before, and on to the next column there."""
    if depth > 0:
        _put_back(items, columns[way.at[depth - 1]], way)
        way.at[depth - 1] += 1
    return depth - 1


@compiled
def _note(
    count: int, size: int, way: _Way, columns: Ints, cost: float, unmet: float, worth: float, out: Listed
) -> int:
    """One more plan; how many there are."""
    for row in range(out.use.shape[1]):
        out.use[count, row] = way.drawn[row]
    out.cost[count], out.unmet[count], out.worth[count], out.size[count] = cost, unmet, worth, size
    for k in range(size):
        out.columns[count, k] = columns[way.at[k]]
    return count + 1


@compiled
def needed(out: Listed, order: Ints, keep: Flags) -> bool:
    """Mark the plans that no other one makes needless; `order` by rising worth. Whether the work limit let it
    look at all."""
    kept, count, work, drawn = np.empty(len(order), np.int64), 0, PAIRS, _drawn(out)
    for p in order:
        needless, work = False, work - count
        if work < 0:
            return False
        for k in range(count):
            q = kept[k]
            if drawn[q] & ~drawn[p] == 0 and _no_more(out, q, p):
                needless = True
                break
        if not needless:
            keep[p], kept[count] = True, p
            count += 1
    return True


@compiled
def _drawn(out: Listed) -> Ints:
    """Which rows a plan draws on, as bits, of which rows may share one: most pairs differ there already."""
    found = np.zeros(len(out.use), np.int64)
    for p in range(len(out.use)):
        for row in range(out.use.shape[1]):
            if out.use[p, row] > 0:
                found[p] |= np.int64(1) << (row % 63)
    return found


@compiled
def _no_more(out: Listed, q: int, p: int) -> bool:
    """Whether plan q costs, leaves and draws no more than plan p."""
    if out.cost[q] > out.cost[p] + EVEN or out.unmet[q] > out.unmet[p] + EVEN:
        return False
    for row in range(out.use.shape[1]):  # noqa: SIM110  compiled code has no generators
        if out.use[q, row] > out.use[p, row]:
            return False
    return True
