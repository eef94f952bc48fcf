"""The linear relaxation by column generation: few of a million columns ever enter it.

It starts from the columns that cover most per USD, and takes in those that its prices show to be worth it,
until there are none. Its prices start the Lagrangian bound; where a program is more than stock, its value is
the bound. HiGHS on arrays, one thread, fixed seed: a model in Pyomo would take longer to build than to solve.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import highspy
import numpy as np

from solver.compiled import compiled
from solver.existing import Existing
from solver.knapsacks import Flags
from solver.picking import pick
from solver.program import FREE, Floats, Ints, Picked, Program
from solver.quiet_highs import quiet

EACH = 10
"""Columns that a block may give a round."""
ROUNDS = 60
"""Work limit; a handful is usual."""
WORTH = 1e-7
"""A column enters if its reduced cost is below minus this, relative to its cost."""


@dataclass(frozen=True, eq=False)
class Relaxed:
    """The relaxation's optimum."""

    value: float
    row_price: Floats
    """[R], at least 0."""
    service_price: Floats
    """[S], at least 0."""
    unmet: Floats
    columns: Ints
    """Of `Existing`: those that entered."""
    whole: bool
    """No column is left that would lower the value: it is a bound for the program."""


class Promise(NamedTuple):
    """Limits on unmet shares beside those on each. None is hard: a relaxation that breaks them for a price
    has a solution whatever columns have entered, and is a bound all the same."""

    total: float = np.inf
    """The weighted sum of shares is at most this."""
    over: float = 0.0
    """USD of a share beyond `spare`, and of a weighted one beyond the total; 0: there is none beyond."""
    worst: bool = False
    """What is minimised is the largest weighted share, and nothing else."""


def relax(
    columns: Existing,
    cost: Floats,
    dear: Floats,
    spare: Floats,
    priced: bool = True,
    promise: Promise | None = None,
) -> Relaxed:
    """Solve the relaxation, where unmet shares up to `spare` cost `dear` each ([S]).

    Args:
        cost: [m], of a new instance.
        priced: whether instances that run and extras cost what the program says; else nothing does.
        promise: what else unmet shares are to keep to.
    """
    lp = Lp(columns.program, dear, spare, priced, promise or Promise())
    entered, score, whole = np.zeros(len(columns), np.bool_), cost / columns.cover, False
    for _ in range(ROUNDS):
        new = _least(score, columns.start, np.empty(EACH * len(columns.start), np.int64))
        if not len(new):
            whole = True
            break
        entered[new] = True
        lp.add(pick(columns.program, columns.block[new], columns.row[new]), cost[new])
        lp.solve()
        _reduced(
            cost,
            columns.drawn(lp.row_price),
            columns.cover,
            columns.service,
            lp.service_price,
            entered,
            score,
        )
    return Relaxed(lp.value, lp.row_price, lp.service_price, lp.unmet, np.flatnonzero(entered), whole)


@compiled
def _reduced(
    cost: Floats, drawn: Floats, cover: Floats, service: Ints, price: Floats, entered: Flags, score: Floats
) -> None:
    """Reduced costs of columns that would lower the value; infinite for others."""
    for j in range(len(cost)):
        reduced = cost[j] + drawn[j] - price[service[j]] * cover[j]
        enters = reduced < -WORTH * (1 + abs(cost[j])) and not entered[j]
        score[j] = reduced if enters else np.inf


@compiled
def _least(score: Floats, start: Ints, found: Ints) -> Ints:
    """The best few columns of each block, by score and then in their order."""
    end = 0
    for block in range(len(start) - 1):
        low = end
        for j in range(start[block], start[block + 1]):
            full = end - low == EACH
            if score[j] == np.inf or (full and score[j] >= score[found[end - 1]]):
                continue
            at = end - 1 if full else end
            end = at + 1
            while at > low and score[j] < score[found[at - 1]]:
                found[at] = found[at - 1]
                at -= 1
            found[at] = j
    return np.sort(found[:end])


class Lp:
    """The relaxation in HiGHS: unmet shares and extras first, then columns as they come."""

    def __init__(self, program: Program, dear: Floats, spare: Floats, priced: bool, promise: Promise) -> None:
        self._program, self._priced = program, priced
        self._highs = quiet()
        rows, services = len(program.rows.right), len(program.services)
        low = np.append(np.full(rows, -highspy.kHighsInf), program.needs)
        high = np.append(program.rows.right, np.full(services, highspy.kHighsInf))
        none, real = np.zeros(0, np.int32), np.zeros(0)
        self._highs.addRows(rows + services, low, high, 0, np.zeros(rows + services, np.int32), none, real)
        at = np.arange(services, dtype=np.int32)
        self._highs.addCols(
            services, dear, np.zeros(services), np.minimum(spare, program.needs), services, at,
            (rows + at).astype(np.int32), np.ones(services),
        )  # fmt: skip
        self.first_extra = services
        self._add_extras()
        self._add_promise(promise)
        self._add_running()
        self.value, self.unmet = 0.0, np.zeros(services)
        self.row_price, self.service_price = np.zeros(rows), np.zeros(services)

    def add(self, picked: Picked, cost: Floats) -> None:
        """New instances of columns; in the order of (block, row), with their costs."""
        over = np.maximum(0, picked.least - picked.running).astype(np.float64)
        self._add(picked, cost, over, _finite(np.maximum(picked.limit, over)))

    def solve(self) -> None:
        rows = len(self._program.rows.right)
        self._highs.run()
        solution = self._highs.getSolution()
        dual = np.array(solution.row_dual)
        self.value = float(self._highs.getInfo().objective_function_value)
        values, services = np.array(solution.col_value), len(self._program.services)
        self.unmet = values[:services]
        self.unmet[self._beyond[0]] += values[self._beyond[1]]
        self.row_price = np.maximum(0, -dual[:rows])
        self.service_price = np.maximum(0, dual[rows : rows + services])

    def _add_extras(self) -> None:
        extras, rows = self._program.extras, len(self._program.rows.right)
        price = extras.price if self._priced else np.zeros_like(extras.price)
        for k in range(len(extras.name)):
            covers = [(rows + s, share) for extra, s, share in extras.covers if extra == k]
            entries = [(row, amount) for extra, row, amount in extras.draws if extra == k] + covers
            at = np.array([row for row, _ in entries], np.int32)
            amounts = np.array([amount for _, amount in entries], np.float64)
            self._highs.addCol(price[k], extras.low[k], extras.high[k], len(entries), at, amounts)

    def _add_promise(self, promise: Promise) -> None:
        """Shares beyond those that are free, the row of their sum, and the largest of them."""
        program, services = self._program, len(self._program.services)
        rows, infinite = len(program.rows.right), highspy.kHighsInf
        self._beyond = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        total = rows + services
        if np.isfinite(promise.total):
            at, weight = np.arange(services, dtype=np.int32), program.weight
            self._highs.addRow(-infinite, promise.total, services, at, weight)
        if promise.over > 0:
            first = self._highs.getNumCol()
            for s in range(services):
                entries = [(rows + s, 1.0)]
                if np.isfinite(promise.total):
                    entries.append((total, float(program.weight[s])))
                self._add_one(promise.over * float(program.weight[s]), float(program.needs[s]), entries)
            self._beyond = (np.arange(services), first + np.arange(services))
            if np.isfinite(promise.total):
                self._add_one(promise.over, infinite, [(total, -1.0)])
        if promise.worst:
            worst = self._highs.getNumCol()
            self._add_one(1.0, infinite, [])
            for s in range(services):
                pair = np.array([s, worst], np.int32)
                self._highs.addRow(-infinite, 0.0, 2, pair, np.array([program.weight[s], -1.0]))

    def _add_one(self, cost: float, high: float, entries: Sequence[tuple[int, float]]) -> None:
        at = np.array([row for row, _ in entries], np.int32)
        amounts = np.array([amount for _, amount in entries], np.float64)
        self._highs.addCol(cost, 0.0, high, len(entries), at, amounts)

    def _add_running(self) -> None:
        """Instances that run already, at their lower cost."""
        specials = [s for s in self._program.specials if s.running]
        picked = pick(self._program, [s.block for s in specials], [s.row for s in specials])
        if len(picked):
            cost = picked.price if self._priced else np.zeros(len(picked))
            most = np.minimum(picked.running, picked.limit).astype(np.float64)
            self._add(picked, cost, np.minimum(picked.least, most).astype(np.float64), most)

    def _add(self, picked: Picked, cost: Floats, low: Floats, high: Floats) -> None:
        rows, count = len(self._program.rows.right), len(picked)
        column = np.append(picked.term_column, np.arange(count))
        row = np.append(picked.term_row, rows + picked.service)
        amount = np.append(picked.term_amount, picked.cover)
        order = np.lexsort((row, column))
        starts = np.searchsorted(column[order], np.arange(count)).astype(np.int32)
        self._highs.addCols(
            count, cost, low, high, len(order), starts, row[order].astype(np.int32), amount[order]
        )


def _finite(limit: Floats) -> Floats:
    return np.where(limit >= FREE, highspy.kHighsInf, limit).astype(np.float64)
