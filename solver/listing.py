"""The plans of all services that are cheap enough at some prices.

A row that holds whatever is chosen of them limits nothing: where stock is spread over many places most rows
are such, and plans that differ only there are as good as each other.
"""

from typing import NamedTuple

import numpy as np

from solver.choice import Plans
from solver.compiled import compiled
from solver.knapsacks import Ask, Items, Table, want
from solver.plans import Listed, bound, listed, needed, walk
from solver.pricing import Prices, Pricing
from solver.program import Floats, Ints

PLANS = 40_000
"""Plans of a service at most, before needless ones go."""
PART = 3
"""One listing may take such a part of the work that is left: after one that was too much, less is asked."""


class Within(NamedTuple):
    """What was listed."""

    plans: Plans
    """Their rows are those that some choice of them would break, the scarcest first."""
    right: Ints
    """Of these rows."""
    columns: list[Ints]
    """Of each plan."""
    whole: bool
    """Whether that is all: room, or a work limit, may have ended it."""

    def instances(self, chosen: Ints) -> Ints:
        """The columns of some of the plans, one for each instance."""
        return np.concatenate([self.columns[p] for p in chosen.tolist()])


def plans_within(pricing: Pricing, prices: Prices, window: float, room: int = PLANS) -> Within:
    """All needed plans of less slack than the window; there is room for so many of a service."""
    asked, right = pricing.asked, pricing.board.right
    every, whole = _all_within(pricing, prices, window, room)
    rows = _contested(every, right)
    parts, columns, begin = [], [], [0]
    for s, all_rows in enumerate(every):
        one = all_rows._replace(use=np.ascontiguousarray(all_rows.use[:, rows]))
        order, keep = np.argsort(one.worth, kind="stable"), np.zeros(len(one.size), np.bool_)
        whole = needed(one, order, keep) and whole
        kept = order[keep[order]]
        objective = one.cost[kept] + asked.ask.dear[s] * one.unmet[kept]
        slack, unmet = one.worth[kept] - prices.worth[s], asked.weight[s] * one.unmet[kept]
        parts.append((one.use[kept].astype(np.int64), slack, objective, unmet))
        columns += [one.columns[p, : one.size[p]] for p in kept.tolist()]
        begin.append(begin[-1] + len(kept))
    use, slack, objective, unmet = (np.concatenate(part) for part in zip(*parts, strict=True))
    plans = Plans(use, slack, objective, unmet, np.array(begin, np.int64))
    return Within(plans, right[rows], columns, whole)


def _all_within(pricing: Pricing, prices: Prices, window: float, room: int) -> tuple[list[Listed], bool]:
    """Each service's, and whether that is all."""
    asked, board, out = pricing.asked, pricing.board, listed(room, pricing.rows)
    ask, price = asked.priced(prices.total), np.append(prices.row, 0.0)
    found, whole, work = [], True, pricing.effort.lists // PART
    pricing.effort.lists -= work
    for s in range(pricing.services):
        most = prices.worth[s] + window
        count, all_, work = _plans(
            board.items, ask, s, price, prices.own[s].copy(), board.right, most, work, pricing.paper,
            pricing.beside, out,
        )  # fmt: skip
        longest, kept = int(out.size[:count].max(initial=0)), slice(count)
        one = Listed(
            out.use[kept].copy(), out.cost[kept].copy(), out.unmet[kept].copy(), out.worth[kept].copy(),
            out.columns[kept, :longest].copy(), out.size[kept].copy(),
        )  # fmt: skip
        found.append(one)
        whole = whole and all_
    pricing.effort.lists += max(0, work)
    return found, whole


def _contested(every: list[Listed], right: Ints) -> Ints:
    """The rows that some choice of the plans would break, the scarcest first: it tells soonest that a plan
    does not fit."""
    most = sum((one.use.max(axis=0, initial=0).astype(np.int64) for one in every), np.zeros_like(right))
    rows = np.flatnonzero(most > right)
    return rows[np.argsort(right[rows], kind="stable")]


@compiled
def _plans(
    items: Items, ask: Ask, s: int, price: Floats, own: Floats, right: Ints, most: float, work: int,
    paper: Table, beside: Table, out: Listed,
) -> tuple[int, bool, int]:  # fmt: skip
    wanted = want(ask, s)
    _, rows = bound(items, s, price, own, right, wanted, np.inf, 0, paper)
    return walk(items, s, rows, own, right, wanted, most, False, work, paper, beside, out)
