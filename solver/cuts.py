"""A better bound on choices among listed plans: the relaxation with cuts, and slacks that go with it.

In the relaxation a service takes a mix of plans, which shares nodes that no plan can share: three plans of
which any two need the last node of a place count a half each. For rows i with amounts a_ip of what there is,
b_i, no choice of whole plans breaks

    sum_p floor(sum_i a_ip / 2) z_p <= floor(sum_i b_i / 2)        (up to three rows whose sum of b is odd)

(Chvatal-Gomory cuts, as for set packing: Jepsen, Petersen, Spoorendonk, Pisinger 2008, "subset rows"; a row
here is a stock, or one plan of a service). Prices of rows and cuts give a bound whatever they are, so what
HiGHS returns is taken as prices and the bound is counted anew.
"""

from typing import NamedTuple

import highspy
import numpy as np

from solver.choice import Plans
from solver.compiled import compiled
from solver.program import Floats, Ints
from solver.quiet_highs import add_columns, quiet

ROUNDS, EACH, ROW = 8, 40, 5
"""Rounds of cuts at most, cuts of a round, and of those over one row."""
BROKEN = 0.02
"""A cut is broken by more than this."""
SOME = 1e-6
"""A plan counts by more than this share."""
BETTER = 0.02
"""A round that closes less than this of what is missing is the last."""


class Tighter(NamedTuple):
    """Those plans that a choice below the cutoff can have."""

    plans: Plans
    bound: float
    at: Ints
    """Which of the plans that were given."""


def tighten(plans: Plans, right: Ints, total: float, enough: float, cutoff: float) -> Tighter:
    """Cut the relaxation until it is worth enough, or no cut helps.

    Args:
        total: the most that all leave unmet together.
        cutoff: those plans are left that a choice below it can have.
    """
    mix = _Mix(plans, right, total)
    bound, slack = mix.solve()
    for _ in range(ROUNDS):
        if bound >= enough or not mix.cut():
            break
        last, (found, slacks) = bound, mix.solve()
        if found > bound:
            bound, slack = found, slacks
        if found - last < BETTER * (enough - last):
            break
    return _below(plans, slack, bound, cutoff - bound)


class _Mix:
    """The relaxation in HiGHS: stock, what is left unmet, one plan of each service, and cuts."""

    def __init__(self, plans: Plans, right: Ints, total: float) -> None:
        self._plans, self._total = plans, total if np.isfinite(total) else 0.0
        services, count = len(plans.begin) - 1, len(plans.slack)
        self._service = np.repeat(np.arange(services), np.diff(plans.begin))
        one = self._service[:, None] == np.arange(services)
        self._amount = np.hstack([plans.use, one]).astype(np.int64)
        self._right = np.append(right, np.ones(services, np.int64))
        self._over = plans.unmet if np.isfinite(total) else np.zeros(count)
        self._cuts, self._most = np.zeros((count, 0)), np.zeros(0)
        self._share = np.zeros(count)
        self._highs = self._made(services)

    def _made(self, services: int) -> highspy.Highs:
        """Rows: stock, services (their plans add up to 1), what is left unmet; cuts come after these."""
        highs, infinite = quiet(), highspy.kHighsInf
        rows = len(self._right) + 1
        low = np.append(np.full(rows - 1 - services, -infinite), np.append(np.ones(services), -infinite))
        high = np.append(self._right, self._total if self._over.any() else infinite).astype(np.float64)
        highs.addRows(rows, low, high, 0, np.zeros(rows, np.int32), np.zeros(0, np.int32), np.zeros(0))
        add_columns(highs, self._plans.objective, np.column_stack([self._amount, self._over]))
        return highs

    def solve(self) -> tuple[float, Floats]:
        """The bound that the best prices give, and what each plan is above it."""
        self._highs.run()
        solution = self._highs.getSolution()
        self._share = np.array(solution.col_value)
        dual, rows = np.maximum(0.0, -np.array(solution.row_dual)), len(self._right)
        stock = rows - (len(self._plans.begin) - 1)
        price, over, cut = dual[:stock], dual[rows], dual[rows + 1 :]
        worth = self._plans.objective + self._plans.use @ price + over * self._over + self._cuts @ cut
        begin = self._plans.begin
        if (np.diff(begin) == 0).any():
            return np.inf, worth
        least = np.minimum.reduceat(worth, begin[:-1])
        held = float(self._right[:stock] @ price) + over * self._total + float(self._most @ cut)
        return float(least.sum()) - held, worth - least[self._service]

    def cut(self) -> bool:
        """Add the cuts that the mix breaks most; whether there are any."""
        mixed = np.flatnonzero(self._share > SOME)
        share, amount = self._share[mixed], self._amount[mixed]
        rows = np.flatnonzero(share @ amount > self._right - 1 + BROKEN)
        found, by = _broken(np.ascontiguousarray(amount[:, rows].T), share, self._right[rows])
        used, some = np.zeros(len(rows), np.int64), 0
        for at in np.argsort(-by, kind="stable").tolist():
            chosen = found[at][found[at] >= 0]
            if some < EACH and (used[chosen] < ROW).all():
                used[chosen], some = used[chosen] + 1, some + 1
                self._add(rows[chosen])
        return some > 0

    def _add(self, rows: Ints) -> None:
        """The cut over these rows."""
        over, most = self._amount[:, rows].sum(axis=1) // 2, int(self._right[rows].sum()) // 2
        plans = np.flatnonzero(over)
        self._cuts = np.column_stack([self._cuts, over])
        self._most = np.append(self._most, most)
        self._highs.addRow(
            -highspy.kHighsInf, float(most), len(plans), plans.astype(np.int32), over[plans].astype(float)
        )


def _below(plans: Plans, slack: Floats, bound: float, room: float) -> Tighter:
    """Those of less slack than there is room for, each service's by rising slack."""
    service = np.repeat(np.arange(len(plans.begin) - 1), np.diff(plans.begin))
    order = np.lexsort((np.arange(len(slack)), slack, service))
    return _only(plans, slack, bound, order[slack[order] < room])


def _only(plans: Plans, slack: Floats, bound: float, at: Ints) -> Tighter:
    """These plans, which stand by service."""
    service = np.searchsorted(plans.begin, at, side="right") - 1
    begin = np.searchsorted(service, np.arange(len(plans.begin)))
    kept = Plans(plans.use[at], slack[at], plans.objective[at], plans.unmet[at], begin.astype(np.int64))
    return Tighter(kept, bound, at)


def nearest(tight: Tighter, most: int) -> tuple[Tighter, float]:
    """At most so many of the plans, those of least slack; and what a choice with any other is not below."""
    slack = tight.plans.slack
    if len(slack) <= most:
        return tight, np.inf
    order = np.argsort(slack, kind="stable")
    few = _only(tight.plans, slack, tight.bound, np.sort(order[:most]))
    return few._replace(at=tight.at[few.at]), tight.bound + float(slack[order[most]])


@compiled
def _broken(amount: Ints, share: Floats, right: Ints) -> tuple[Ints, Floats]:
    """Sets of up to three rows ([n, 3], -1 for none) whose cut is broken, and by how much.

    Args:
        amount: [rows, plans] of each row, of the plans that count.
    """
    rows, plans = amount.shape
    found, by = [np.array([-1, -1, -1])], [0.0]
    none = np.zeros(plans, np.int64)
    for i in range(rows):
        for j in range(i, rows):
            pair = amount[i] + (amount[j] if j > i else none)
            held = right[i] + (right[j] if j > i else 0)
            for k in range(j, rows):
                if j == i and k > j:
                    break
                total = held + (right[k] if k > j else 0)
                if total % 2 == 0:
                    continue
                over = -float(total // 2)
                for p in range(plans):
                    over += share[p] * ((pair[p] + (amount[k, p] if k > j else 0)) // 2)
                if over > BROKEN:
                    found.append(np.array([i, j if j > i else -1, k if k > j else -1]))
                    by.append(over)
    sets = np.empty((len(found) - 1, 3), np.int64)
    for n in range(1, len(found)):
        sets[n - 1] = found[n]
    return sets, np.array(by)[1:]
