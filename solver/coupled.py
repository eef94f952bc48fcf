"""Programs that couple by more than stock: the relaxation's bound, and integer programs over few columns.

Columns that others stand in for go first (`solver.dominance`). Of the rest, with the relaxation's prices none
that did not enter has a negative reduced cost, and using one at least once costs at least that much more than
the relaxation's value: a plan better than the one at hand has none above the difference. Where whole nodes
are bought to be shared that difference is large (a fifth of the cost of a small fleet), so the last integer
program often has every column left; HiGHS mostly closes it at the root, since its cuts know whole nodes.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from solver.column_lp import Promise, Relaxed, relax
from solver.dominance import undominated
from solver.existing import existing
from solver.partials import ROUNDING, aside_of, solved_of
from solver.picking import pick
from solver.program import Better, Ends, Finish, Floats, Ints, Partial, Picked, Program, Solved, Step

WHOLE = 2000
"""Columns that go into one integer program at once."""
FIRST, MOST, HARD = 400, 6000, 1000
"""Where there are more: of a first one beside the relaxation's own, and of the last, after a first one that
HiGHS closed or did not."""
WORK = 150_000
"""Branch-and-bound nodes of each times its columns: a work limit."""
GAP = 0.999e-3
WITHIN = GAP / 2
"""What an integer program over some columns is solved to."""
DEAR = 20.0
"""Unmet demand, over the dearest way to meet it, where the relaxation shall avoid it."""
SHARE = 1e-5
"""Unmet shares of the relaxation below this in all are rounding."""


class _Found(NamedTuple):
    """A step's plan, over which columns, and the relaxation."""

    picked: Picked
    partial: Partial
    relaxed: Relaxed


def solve_coupled(program: Program, finish: Finish, better: Better | None = None) -> Solved:
    """The steps that are needed, one after the other; without proofs if no plan was found."""
    return _Search(program, finish, better).run()


class _Search:
    """Over the columns of one program that may be needed."""

    def __init__(self, program: Program, finish: Finish, better: Better | None) -> None:
        self._program, self._finish, self._better = program, finish, better
        self._columns = undominated(existing(program))
        self._cost = self._columns.cost
        self._over = DEAR * self._dearest()
        self._guide = self._cost

    def run(self) -> Solved:
        program, met = self._program, Ends(0.0, 0.0)
        last = self._relax("cost", met)
        self._guide = self._reduced("cost", last)
        found = self._step("cost", met, last) if last.unmet.sum() <= SHARE else None
        if found is not None:
            return _solved(program, found, [("cost", found.partial)])
        steps: list[tuple[Step, Partial]] = []
        ends = Ends()
        for step in program.steps:
            relaxed = self._relax(step, ends)
            again = self._step(step, ends, relaxed) or self._of_plan(found, step, ends, relaxed)
            if again is None:
                break
            found = again
            steps.append((step, found.partial))
            ends = ends if step == "cost" else ends._replace(**{step: found.partial.value})
        none = Partial(np.zeros(0, np.int64), program.extras.low, np.inf, -np.inf)
        return _solved(program, found or _Found(pick(program, [], []), none, last), steps)

    # --------------------------------------------------------------------------------------------- a step

    def _relax(self, step: Step, ends: Ends) -> Relaxed:
        program, priced = self._program, step == "cost"
        cost = self._cost if priced else np.zeros(len(self._columns))
        spare = np.minimum(program.needs, (ends.worst + ROUNDING) / program.weight)
        dear = program.weight if step == "total" else np.zeros(len(spare))
        promise = Promise(
            total=ends.total + ROUNDING if ends.total > 0 else np.inf,
            over=0.0 if step == "worst" else self._over if priced else DEAR,
            worst=step == "worst",
        )
        return relax(self._columns, cost, dear, spare, priced, promise)

    def _step(self, step: Step, ends: Ends, relaxed: Relaxed) -> _Found | None:
        """One step's best plan with its bound; None where there is none, or none was found."""
        red, base = self._reduced(step, relaxed), relaxed.value if relaxed.whole else -np.inf
        every, nearest = len(red) <= WHOLE, FIRST + len(relaxed.columns)
        picked, rest = self._pick(red, len(red) if every else nearest, np.inf)
        first = self._over_some(picked, step, ends, np.inf)
        if _nothing(first) and np.isfinite(rest):
            picked, rest = self._pick(red, MOST, np.inf)
            first = self._over_some(picked, step, ends, np.inf)
        if first is None or _nothing(first):
            return None
        if self._better:
            self._better(replace(solved_of(self._program, picked, [(step, first)]), proofs=()))
        paid = first.value - aside_of(self._program, first.extras)
        enough = first.value - GAP * (paid if step == "cost" else 1.0)
        bound = max(base, min(first.bound, base + rest))
        if bound >= enough:
            return _Found(picked, replace(first, bound=min(first.value, bound)), relaxed)
        closed = first.bound >= enough
        most = nearest if every else MOST if closed else HARD  # fewer than every one: for a better plan
        wider, rest = self._pick(red, most, enough - base)
        second = self._over_some(wider, step, ends, enough)
        left = enough if second is None else min(enough, second.bound)
        bound = max(bound, min(left, base + rest))
        if second is None or _nothing(second) or second.value >= first.value:
            return _Found(picked, replace(first, bound=min(first.value, bound)), relaxed)
        return _Found(wider, replace(second, bound=min(second.value, bound)), relaxed)

    def _of_plan(self, found: _Found | None, step: Step, ends: Ends, relaxed: Relaxed) -> _Found | None:
        """The step over the columns of the plan at hand alone: the work limit may keep a search from it, but
        what a plan reaches for nothing, such as extras no higher than it takes, it shall have."""
        if found is None:
            return None
        used = np.flatnonzero(found.partial.counts)
        picked = self._with_running(found.picked.block[used], found.picked.row[used])
        partial = self._over_some(picked, step, ends, np.inf)
        if partial is None or _nothing(partial):
            return None
        bound = relaxed.value if relaxed.whole else -np.inf
        return _Found(picked, replace(partial, bound=min(partial.value, bound)), relaxed)

    # ---------------------------------------------------------------------------------------------- parts

    def _with_running(self, block: Ints, row: Ints) -> Picked:
        """Columns, and all that run."""
        special = self._program.specials
        blocks = np.append(block, [s.block for s in special]).astype(np.int64)
        rows = np.append(row, [s.row for s in special]).astype(np.int64)
        return pick(self._program, blocks, rows)

    def _over_some(self, picked: Picked, step: Step, ends: Ends, cutoff: float) -> Partial | None:
        nodes = max(20, WORK // max(1, len(picked)))
        return self._finish(self._program, picked, step, ends, cutoff, gap=WITHIN, node_limit=nodes)

    def _reduced(self, step: Step, relaxed: Relaxed) -> Floats:
        """[m]: what using a column once costs over the relaxation, at least."""
        columns = self._columns
        cost = self._cost if step == "cost" else np.zeros(len(columns))
        red = cost + columns.drawn(relaxed.row_price) - relaxed.service_price[columns.service] * columns.cover
        red[relaxed.columns] = np.minimum(red[relaxed.columns], 0.0)
        return red

    def _pick(self, red: Floats, most: int, reach: float) -> tuple[Picked, float]:
        """The columns of least reduced cost within reach, all that run, and the least that was left out.

        Where shares are minimised many cost nothing; of those, the ones that a cheap plan would use.
        """
        columns = self._columns
        within = np.flatnonzero(red <= reach)
        if len(within) > most:
            within = within[np.lexsort((self._guide[within], np.maximum(0.0, red[within])))[:most]]
        out = red.copy()
        out[within] = np.inf
        picked = self._with_running(columns.block[within], columns.row[within])
        return picked, float(out.min(initial=np.inf))

    def _dearest(self) -> float:
        """USD per hour that meeting a whole need costs at most, by each service's best columns alone; a node
        that is bought for one instance is its own."""
        program, columns = self._program, self._columns
        nodes = program.extras.price[program.extras.whole].max(initial=0.0)
        least = np.full(len(program.services), np.inf)
        np.minimum.at(least, columns.service, (self._cost + nodes) / columns.cover)
        return 1.0 + float(least[np.isfinite(least)].max(initial=0.0))


def _nothing(found: Partial | None) -> bool:
    return found is None or not np.isfinite(found.value)


def _solved(program: Program, found: _Found, steps: list[tuple[Step, Partial]]) -> Solved:
    solved = solved_of(program, found.picked, steps)
    return replace(solved, row_price=found.relaxed.row_price, service_price=found.relaxed.service_price)
