"""One step of the order, in rounds: search, fix columns by what was found, and go on over what is left.

The first search takes the columns of least slack. What it finds excludes most others ("column fixing",
solver.md). Once few are left the integer program decides over them; while there are many, another search
does. Each round has a work limit; where the last one ends without a proof, the bound says how far it came.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from solver.board import Board
from solver.fixing import slacks
from solver.knapsacks import GRID
from solver.packing import FIRST_STEPS, STEPS, Aim, Search
from solver.program import Ends, Finish, Floats, Ints, Step, pick


@dataclass(frozen=True)
class Effort:
    """The work limits of one round."""

    places: int
    """Of the search; with none the integer program is all there is."""
    columns: int
    reach: float = np.inf
    """Columns whose slack is above this share of the bound wait for the next round."""


ROUNDS = (Effort(60, 3000, 0.03), Effort(300, 4000), Effort(0, 0))
FEW = 600
"""Columns that the integer program takes at most: HiGHS needs some tenths of a second for so many."""
WORK = 400_000
"""Places times columns of a search, about a second's worth."""


@dataclass(frozen=True, eq=False)
class Start:
    """What a step begins with."""

    aim: Aim
    step: Step
    ends: Ends
    """Of the steps before."""
    price: Floats
    """[R]: of the rows."""
    dear: Floats
    """[S]: of unmet shares."""
    plan: Ints | None = None
    """Columns of a plan that is there (of `Existing`, one for each instance), and its value."""
    value: float = np.inf
    paid: float = 0.0
    """How much more a value is than the step's objective: the price of what stays unmet."""


@dataclass(frozen=True, eq=False)
class Reached:
    """The best plan of a step, its value, and what no plan is below."""

    plan: Ints | None
    value: float
    bound: float
    survivors: int = 0
    places: int = 0
    climbed: int = 0


def reach(board: Board, start: Start, finish: Finish, mark: Callable[[str], None]) -> Reached:
    """Go through the rounds until the plan is proven good enough.

    Args:
        mark: called after each part of the work with its name.
    """
    aim, price, dear = start.aim, start.price, start.dear
    found = Reached(start.plan, start.value, -np.inf)
    for number, effort in enumerate(ROUNDS):
        base, slack = _slacks(board, aim, price, dear)
        if not np.isfinite(base):
            return replace(found, bound=np.inf)
        found = replace(found, bound=max(found.bound, base))
        target = aim.target(found.value)
        if number and (few := _below(slack, board, target - base)) is not None:
            found = _decide(board, start, finish, found, few)
            mark("integer program")
            break
        if found.bound >= target or not effort.places:
            break
        chosen, rest = _least(slack, min(target - base, effort.reach * max(abs(base), 1.0)), effort)
        ids, items = board.items(chosen, aim.priced)
        places = min(effort.places, max(1, WORK // max(1, len(ids))))
        search = Search(items, replace(aim, places=places), found.value, _hint(board, aim, ids))
        outcome = search.run(search.first(price, dear), STEPS if number else FIRST_STEPS)
        found = Reached(
            plan=found.plan if outcome.plan is None else board.at[ids[outcome.plan]],
            value=outcome.value,
            bound=max(found.bound, min(outcome.bound, base + rest)),
            survivors=len(chosen),
            places=found.places + outcome.places,
            climbed=found.climbed + outcome.steps,
        )
        mark("search" if number else "first search")
        if found.bound >= aim.target(found.value):
            break
        price, dear = outcome.price, outcome.dear
    return found


def _slacks(board: Board, aim: Aim, price: Floats, dear: Floats) -> tuple[float, Floats]:
    """The bound at these prices, and how much more it is for each column."""
    red = board.drawn(price) + (board.cost if aim.priced else 0.0)
    spare = np.ceil(aim.spare * GRID - 1e-7).astype(np.int64)
    base, slack = slacks(red, board.step, board.service, board.once, spare, dear)
    slack[board.most <= 0] = np.inf
    return base - float(price @ aim.right), slack


def _hint(board: Board, aim: Aim, ids: Ints) -> Floats | float:
    """Where columns cost nothing, a tenth of a share for what all services cost."""
    if aim.priced:
        return 0.0
    each = board.cost / board.columns.cover[board.at]
    return 0.1 * board.cost[ids] / (float(np.median(each)) * len(aim.weight))


def _below(slack: Floats, board: Board, most: float) -> Ints | None:
    """The columns (of `Existing`) that a better plan could have, if they are few enough to decide over."""
    within = np.flatnonzero(slack <= most)
    return None if len(within) > FEW else np.unique(board.at[within])


def _least(slack: Floats, most: float, effort: Effort) -> tuple[Ints, float]:
    """The columns of the board with the least slack, and the least slack of those left out."""
    within = np.flatnonzero(slack <= most)
    if len(within) > effort.columns:
        within = np.sort(within[np.argpartition(slack[within], effort.columns - 1)[: effort.columns]])
    out = slack.copy()
    out[within] = np.inf
    return within, float(out.min(initial=np.inf))


def _decide(board: Board, start: Start, finish: Finish, found: Reached, few: Ints) -> Reached:
    """The integer program over all columns that a better plan could have."""
    columns, target = board.columns, start.aim.target(found.value)
    found = replace(found, survivors=len(few))
    if not len(few):
        return replace(found, bound=max(found.bound, target))
    picked = pick(columns.program, columns.block[few], columns.row[few])
    better = finish(columns.program, picked, start.step, start.ends, target - start.paid)
    if better is None:
        return replace(found, bound=max(found.bound, target))
    bound = max(found.bound, min(target, better.bound + start.paid))
    found = replace(found, bound=bound, places=found.places + better.nodes)
    value = better.value + start.paid
    if not np.isfinite(value) or value >= found.value:
        return found
    return replace(found, plan=np.repeat(few, better.counts), value=value)
