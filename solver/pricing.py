"""Prices of rows at which the services' cheapest plans add up to the most: column generation over plans.

    bound(price) = sum_s min over plans p of (cost_p + price . use_p + total_price weight_s unmet_p)
                   - price . right - total_price total

Every price gives a valid bound. A `Master` over the plans found so far proposes prices, the services answer
with their cheapest plans, and proposals are pulled back towards the best prices so far, without which they
swing. It ends where the master's value, which no bound exceeds, is reached.
"""

from dataclasses import dataclass, field

import numpy as np

from solver.board import Board
from solver.compiled import compiled
from solver.knapsacks import Ask, Items, Table, table, want
from solver.master import Master
from solver.plans import OWN_STEPS, Listed, bound, listed, walk
from solver.program import Floats, Ints

KEPT = 40
"""Plans of a service that a look at prices may find."""
SEED, SEEDING = 0.005, 200_000
"""How far above the cheapest the first plans may be, as a share of the bound; and columns tried for them."""
PULL = 0.6
"""Share of the best prices in those that are tried; more after a try that taught nothing."""
CLOSE = 1e-3
"""The bound is good enough within this share of the master's value."""
ROUGH = 0.05
"""The same, while the master does without a service for less than that is worth."""
ROUNDS, STALLED = 60, 24
"""Steps at most, and without progress."""
TINY = 1e-7
"""A bound above this is above 0."""
WINDOW, WIDE, EVERY = 0.002, 1e3, 1e300
"""A cheapest plan is looked for up to this share above its bound at first, each time further, and beyond so
many times it among all at once: what stock keeps from the cheap ones may cost any more."""
FIRST_WORK, MORE_STEPS, WORK = 200_000, 40, 4_000_000
"""Columns tried for it at first; steps towards better prices of the service's own where they are not enough;
and columns tried then."""
DEAR, MOST_DEAR = 3.0, 1e4
"""Doing without a service, over the bound to begin with, and at most."""
LACKS = 1e-6
"""Shares of a service that a mix does without, where it is more than rounding."""


@dataclass(frozen=True, eq=False)
class Asked:
    """A question over a board: what is asked of each service, and of all together."""

    ask: Ask
    weight: Floats
    """[S]: of an unmet share."""
    total: float = np.inf
    """The most that weighted unmet shares add up to."""
    scale: float = 1.0
    """The costs' size where there is no bound yet to go by."""
    feasible: bool = False
    """Whether the question is only if there is a plan: nothing costs, and a bound above 0 says no."""

    def priced(self, total_price: float) -> Ask:
        """What is asked of each service, where the sum of unmet shares has a price."""
        return self.ask._replace(dear=self.ask.dear + total_price * self.weight)


@dataclass
class Effort:
    """What is left of the work that a step may take, in columns tried."""

    prices: int = 20_000_000
    """For cheapest plans."""
    lists: int = 60_000_000
    """To list all that are cheap enough."""


@dataclass(eq=False)
class Prices:
    """Prices, the bound that they give, and what it is made of."""

    row: Floats
    """[R]."""
    total: float
    own: Floats
    """[S, R + 1]: each service's own on top (`solver.plans`)."""
    bound: float = -np.inf
    worth: Floats = field(default_factory=lambda: np.zeros(0))
    """[S]: of each service's cheapest plan; infinite if it has none."""
    exact: bool = True
    """Whether there are plans worth that, as far as the services' walks were not cut short."""
    value: float = np.inf
    """Of the mix of plans; the bound comes close to it."""
    lacks: bool = False
    """Whether even a mix of plans cannot give each service what is asked."""
    steps: int = 0

    def base(self, right: Ints, total: float) -> float:
        """What the stock takes from the services' worth."""
        return float(self.row @ right) + (self.total * total if self.total > 0 else 0.0)

    def net(self, worth: Floats, right: Ints, total: float) -> float:
        """The bound that so much worth of the services ([S]) gives."""
        return float(worth.sum()) - self.base(right, total)


def free_prices(services: int, rows: int) -> Prices:
    """Everything is free."""
    return Prices(np.zeros(rows), 0.0, np.zeros((services, rows + 1)))


@compiled
def _cheapest(
    items: Items, ask: Ask, price: Floats, own: Floats, right: Ints, aims: Floats, paper: Table,
    beside: Table, out: Listed, one: Listed, worth: Floats, found: Ints, work: int, surely: bool,
) -> tuple[bool, int]:  # fmt: skip
    """Each service's cheapest plan, after others that were the cheapest till then, into its places of `out`
    (`found` says how many), and its worth; where a walk was cut short, what it cannot be below. Returns
    whether none was, and the work that is left.

    Args:
        surely: a walk that was cut short is tried once more even if it found a plan."""
    exact = True
    for s in range(len(worth)):
        found[s], wanted = 0, want(ask, s)
        worth[s], rows = bound(items, s, price, own[s], right, wanted, aims[s], OWN_STEPS, paper)
        window, limit = WINDOW * abs(worth[s]) + TINY, FIRST_WORK
        while worth[s] < np.inf:
            most = aims[s] if aims[s] < np.inf else worth[s] + window
            tried = min(work, limit)
            count, whole, left = walk(
                items, s, rows, own[s], right, wanted, most, True, tried, paper, beside, one
            )
            work -= tried - left
            if not whole and (surely or count == 0) and limit < WORK:
                # Once more, with better prices of its own.
                better, rows = bound(items, s, price, own[s], right, wanted, aims[s], MORE_STEPS, paper)
                worth[s], limit = max(worth[s], better), WORK
                continue
            exact = exact and whole
            if count:
                found[s] = count
                places = slice(s * KEPT, s * KEPT + count)
                out.use[places], out.columns[places] = one.use[:count], one.columns[:count]
                out.cost[places], out.unmet[places] = one.cost[:count], one.unmet[:count]
                out.size[places] = one.size[:count]
                worth[s] = one.worth[count - 1] if whole else worth[s]
                break
            if not whole or most == aims[s]:  # what is known already is the cheapest
                worth[s] = aims[s] if whole else worth[s]
                break
            if window == EVERY:
                worth[s] = np.inf
            window = window * 4 if window <= WIDE * (abs(worth[s]) + 1) else EVERY
    return exact, work


@compiled
def _near(
    items: Items, ask: Ask, price: Floats, own: Floats, right: Ints, most: Floats, paper: Table,
    beside: Table, out: Listed, one: Listed, found: Ints,
) -> None:  # fmt: skip
    """Some of each service's plans worth at most so much, into its places of `out`."""
    for s in range(len(found)):
        wanted = want(ask, s)
        _, rows = bound(items, s, price, own[s], right, wanted, np.inf, 0, paper)
        count, _, _ = walk(items, s, rows, own[s], right, wanted, most[s], False, SEEDING, paper, beside, one)
        found[s] = count
        places = slice(s * KEPT, s * KEPT + count)
        out.use[places], out.columns[places] = one.use[:count], one.columns[:count]
        out.cost[places], out.unmet[places] = one.cost[:count], one.unmet[:count]
        out.size[places] = one.size[:count]


class Pricing:
    """One question over one board; keeps the plans that were found.

    Args:
        pool: plans of other columns that were found before.
    """

    def __init__(self, board: Board, asked: Asked, effort: Effort, pool: "Pool | None" = None) -> None:
        self.board, self.asked, self.effort = board, asked, effort
        self.services, self.rows = len(asked.weight), len(board.right)
        self.paper, self.beside = table(len(board)), table(0)
        self.pool = pool or Pool(self.services)
        self._surely = False
        self._out, self._one = listed(self.services * KEPT, self.rows), listed(KEPT, self.rows)

    def look(self, prices: Prices) -> Prices:
        """The bound at these prices; the cheapest plans go to the pool."""
        ask, own = self.asked.priced(prices.total), prices.own.copy()
        worth, found = np.zeros(self.services), np.zeros(self.services, np.int64)
        exact, self.effort.prices = _cheapest(
            self.board.items, ask, np.append(prices.row, 0.0), own, self.board.right,
            self.pool.least(prices.row, ask.dear), self.paper, self.beside, self._out, self._one, worth,
            found, self.effort.prices, self._surely,
        )  # fmt: skip
        self.pool.add(self._out, found)
        bound_ = prices.net(worth, self.board.right, self.asked.total)
        return Prices(prices.row, prices.total, own, bound_, worth, exact)

    def climb(self, start: Prices) -> Prices:
        """The best prices found."""
        best = self.look(start)
        if self._settled(best):
            return best
        if not self.asked.feasible:
            self._seed(best)
        size = max(abs(best.bound) if np.isfinite(best.bound) else 0.0, self.asked.scale)
        big = np.full(self.services, 1.0 if self.asked.feasible else DEAR * size)
        master = Master(self.board.right, self.asked.weight, self.asked.total, big)
        sent, steps, since, mark, pull = 0, 1, 0, best.bound, PULL
        while steps < ROUNDS and since < STALLED and self.effort.prices > 0:
            sent = self.pool.send(master, sent, self.asked.ask.dear)
            master.solve()
            if self.asked.feasible and (master.value <= TINY or best.bound > TINY):
                break
            lacks = master.lacks.max() > LACKS
            if master.value - best.bound <= (ROUGH if lacks else CLOSE) * abs(master.value) + 1e-9:
                if not lacks or master.dearer() > MOST_DEAR * size:
                    break
                continue  # it does without a service for less than that is worth
            there = pull if np.isfinite(best.bound) else 0.0
            tried = self.look(
                Prices(
                    there * best.row + (1 - there) * master.price,
                    there * best.total + (1 - there) * master.total_price,
                    best.own,
                )
            )
            steps += 1
            # Walks that are cut short may teach nothing, but nearer to the best prices they are shorter.
            better = tried.bound > best.bound or not np.isfinite(best.bound)
            taught = better or len(self.pool.service) > sent
            self._surely = self._surely or not (taught or tried.exact)
            pull = 1 - min(1 - PULL, 2 * (1 - pull)) if taught else 1 - (1 - pull) / 4
            if better:
                best = tried
            since += not self.asked.feasible
            if not np.isfinite(mark) or best.bound > mark + CLOSE * abs(mark):
                since, mark = 0, best.bound
            if self._settled(best):
                break
        best.value, best.steps = master.value, steps
        best.lacks = bool(master.lacks.max() > LACKS)
        return best

    def _seed(self, prices: Prices) -> None:
        """Some plans that are nearly the cheapest at the first prices: with the cheapest alone, the master's
        first proposals are far off."""
        ask, price = self.asked.priced(prices.total), np.append(prices.row, 0.0)
        found = np.zeros(self.services, np.int64)
        most = prices.worth + (SEED * abs(prices.bound) if np.isfinite(prices.bound) else 0.0)
        _near(
            self.board.items, ask, price, prices.own.copy(), self.board.right, most, self.paper, self.beside,
            self._out, self._one, found,
        )  # fmt: skip
        self.pool.add(self._out, found)

    def _settled(self, prices: Prices) -> bool:
        """Some service can have no plan, or the bound says that not all can."""
        return prices.bound == np.inf or (self.asked.feasible and prices.bound > TINY)


class Pool:
    """Plans found so far, each once."""

    def __init__(self, services: int) -> None:
        self.services = services
        self._seen: set[tuple[int, bytes, float]] = set()
        self.service: list[int] = []
        self.cost: list[float] = []
        self.unmet: list[float] = []
        self.use: list[Ints] = []

    def add(self, out: Listed, found: Ints) -> None:
        """Plans that stand in the services' places, so many of each."""
        for s, count in enumerate(found.tolist()):
            for at in range(s * KEPT, s * KEPT + count):
                key = (s, out.use[at].tobytes(), float(out.unmet[at]))
                if key not in self._seen:
                    self._seen.add(key)
                    self.service.append(s)
                    self.cost.append(float(out.cost[at]))
                    self.unmet.append(float(out.unmet[at]))
                    self.use.append(out.use[at].astype(np.int64))

    def least(self, price: Floats, dear: Floats) -> Floats:
        """[S]: worth of the cheapest plan of each service at these prices; infinite without one."""
        found = np.full(self.services, np.inf)
        if self.service:
            service = np.array(self.service)
            worth = np.array(self.cost) + np.array(self.use) @ price + dear[service] * np.array(self.unmet)
            np.minimum.at(found, service, worth + 1e-9)
        return found

    def send(self, master: Master, sent: int, dear: Floats) -> int:
        """Add those that a master does not have yet, with what they leave unmet at `dear` a share; how many
        it has now."""
        new = slice(sent, len(self.service))
        if len(self.service) > sent:
            service, unmet = np.array(self.service[new]), np.array(self.unmet[new])
            cost = np.array(self.cost[new]) + dear[service] * unmet
            master.add(service, cost, np.array(self.use[new]).reshape(-1, master.rows), unmet)
        return len(self.service)
