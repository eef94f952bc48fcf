"""The search among plans: branch and bound with the Lagrangian bound, where rows are only drawn on.

Stock is what couples services, so the search decides who draws on it: whether a service draws on a row at
all. If not, its columns that do are gone; if it does, the others have one node less. Both answers raise the
bound, where deciding on one of many like columns would raise it on one side only. Where nothing is left to
decide like that, the costliest column of the plans is taken or banned. The least bound is next.

Deterministic: no clock, ties go to the lower index, and the work is limited by the number of places.
"""

import heapq
from dataclasses import dataclass, field, replace

import numpy as np

from solver.branching import choose, narrow
from solver.greedy import plan_all
from solver.knapsacks import GRID, ONCE, Flags, Items, desk
from solver.lagrangian import Place, climb, found, value
from solver.program import Floats, Ints

STEPS, FIRST_STEPS = 10, 50
"""Polyak steps at a place, and at the first."""
RETRIES = 6
"""Orders of the services that a place's plan is tried in."""


@dataclass(frozen=True, eq=False)
class Aim:
    """What a search minimises: sum of the columns' costs and `dear` times unmet shares, or with `balance` the
    largest weighted unmet share."""

    right: Floats
    """[R]."""
    weight: Floats
    """[S]."""
    dear: Floats
    """[S]: price of an unmet share."""
    spare: Floats
    """[S]: shares that may stay unmet."""
    balance: bool = False
    priced: bool = True
    """Whether columns cost anything; else unmet shares are all that counts."""
    relative: float = 0.0
    """Good enough: within this share of the best plan's value,"""
    absolute: float = 0.0
    paid: float = 0.0
    """Of a plan's value, what stands for unmet demand: what is left open is a share of the rest."""
    """or within this of it."""
    total: float = np.inf
    """The most that weighted unmet shares may sum up to."""
    places: int = 2000
    """The most places to look at: the work limit."""

    def target(self, best: float) -> float:
        """A bound of so much ends the search."""
        open_ = max(self.relative * (best - self.paid), self.absolute)
        return best - open_ if np.isfinite(best) else best


@dataclass(frozen=True, eq=False)
class Spot:
    """A place of the search: what has been decided."""

    columns: Ints
    room: Ints
    """[S, R + 1]: what a service may draw in all."""
    least: Ints
    """[S, R + 1]: what it has to."""
    taken: tuple[int, ...]
    price: Floats
    dear: Floats
    bound: float


@dataclass(frozen=True, eq=False)
class Outcome:
    """Of a search."""

    plan: Ints | None
    """Columns of the best plan, one for each instance; None where none was found."""
    value: float
    bound: float
    """No plan of these columns has less."""
    places: int
    steps: int
    price: Floats = field(default_factory=lambda: np.zeros(0))
    """[R]: of the rows, at the first place."""
    dear: Floats = field(default_factory=lambda: np.zeros(0))


class Search:
    """One search over some columns."""

    def __init__(self, items: Items, aim: Aim, best: float = np.inf, hint: Floats | float = 0.0) -> None:
        """`hint`: [m], added to the columns' costs where plans are made, so that what costs nothing here is
        not wasted; small."""
        self.items, self.aim, self.hint = items, aim, hint
        self.services, self.rows = len(aim.weight), len(aim.right)
        self.best = best
        self.steps, self.places = 0, 0
        self.found: Ints | None = None
        self._red, self._often = np.zeros(len(items.cost)), np.zeros((self.services, self.rows + 1))
        self._needed = np.zeros_like(self._often)
        self._desk, self._spare = desk(len(items.cost), self.rows), desk(len(items.cost), self.rows)
        self._out = found(self.services, self.rows)
        self._heap: list[tuple[float, int, Spot]] = []

    def first(self, price: Floats, dear: Floats | None = None) -> Spot:
        """Nothing is decided yet."""
        room = np.full((self.services, self.rows + 1), 1 << 20, np.int64)
        room[:, :-1] = np.floor(self.aim.right + 1e-9).astype(np.int64)
        return Spot(
            columns=np.arange(len(self.items.cost)),
            room=room,
            least=np.zeros_like(room),
            taken=(),
            price=np.append(price, 0.0),
            dear=(self.aim.dear if dear is None else dear).copy(),
            bound=-np.inf,
        )

    def run(self, start: Spot, steps: int = STEPS) -> Outcome:
        """Search until the best plan is proven good enough, or the work limit."""
        first = self._look(start, steps)
        while self._heap and self.places < self.aim.places:
            if self._heap[0][0] >= self.aim.target(self.best):
                break
            spot = heapq.heappop(self._heap)[2]
            for child in self._children(spot):
                self._look(child, STEPS)
        open_ = self._heap[0][0] if self._heap else np.inf
        bound = min(open_, self.aim.target(self.best))
        return Outcome(self.found, self.best, bound, self.places, self.steps, first.price[:-1], first.dear)

    # ------------------------------------------------------------------------------------------- a place

    def _look(self, spot: Spot, steps: int) -> Spot:
        """Bound a place, look for plans there, and keep it for later if better ones may be in it."""
        self.places += 1
        place, base = self._place(spot)
        if place is None:
            return spot
        goal = self.aim.target(self.best)
        often = self._often
        price = spot.price.copy()
        bound, taken = climb(
            self.items, place, price, self.aim.weight, self.aim.balance, goal - base, steps, often,
            self._red, self._desk, self._spare, self._out,
        )  # fmt: skip
        self.steps += taken
        bound = max(spot.bound, bound + base)
        spot = replace(spot, price=price, dear=place.dear, bound=bound)
        if bound >= goal:
            return spot
        value(self.items, place, price, self._red, self._desk, self._spare, self._out)
        self._plans(spot, place, base)
        if bound < self.aim.target(self.best):
            heapq.heappush(self._heap, (bound, self.places, spot))
        return spot

    def _place(self, spot: Spot) -> tuple[Place | None, float]:
        """What a spot leaves to plan, and what is paid already; None if it contradicts itself."""
        items = self.items
        drawn = np.zeros_like(spot.room)
        need = np.ones(self.services)
        for j in spot.taken:
            np.add.at(drawn[items.service[j]], items.use[j], 1)
            need[items.service[j]] -= items.cover[j]
        right = self.aim.right - drawn[:, :-1].sum(axis=0)
        room = spot.room - drawn
        if (right < -1e-9).any() or (room < 0).any():
            return None, np.inf
        columns = spot.columns
        holds = (items.run[columns] <= room[items.service[columns][:, None], items.use[columns]]).all(axis=1)
        columns = columns[holds]
        steps = np.clip(np.ceil(need * GRID - 1e-7), 0, GRID).astype(np.int64)
        place = Place(
            columns=columns.copy(),
            begin=np.searchsorted(items.service[columns], np.arange(self.services + 1)),
            room=room,
            right=right,
            need=steps,
            spare=np.minimum(steps, np.ceil(self._allowed() * GRID - 1e-7).astype(np.int64)),
            dear=spot.dear.copy(),
            wanted=(spot.least > drawn)[:, :-1],
        )
        return place, float(items.cost[list(spot.taken)].sum())

    def _allowed(self) -> Floats:
        """[S]: shares that a better plan may leave unmet."""
        if self.aim.priced or not np.isfinite(self.best):
            return self.aim.spare
        return np.minimum(self.aim.spare, self.aim.target(self.best) / self.aim.weight)

    def _plans(self, spot: Spot, place: Place, base: float) -> None:
        """Try to make a plan at the place's prices, the dearest service first.

        A service that nothing is left for goes before all others, and it starts again.
        """
        order = np.argsort(-self._out.cost, kind="stable")
        worth = np.zeros(self.services) if self.aim.balance else place.dear
        for _ in range(RETRIES):
            failed = self._plan(spot, place._replace(dear=worth), base, order)
            if failed < 0 or order[0] == failed:
                return
            order = np.append(failed, order[order != failed])

    def _plan(self, spot: Spot, place: Place, base: float, order: Ints) -> int:
        """Keep the plan of one order if it is the best so far; the service that it failed at, or -1."""
        left, taken = np.ones(self.services), np.zeros(len(self.items.cost), np.int64)
        for j in spot.taken:
            left[self.items.service[j]] -= self.items.cover[j]
            taken[j] += 1
        left = np.maximum(left, 0.0)
        plan = np.empty(self.services * (GRID + ONCE), np.int64)
        got, size = plan_all(
            self.items, place, order, self._red + self.hint, left, self._allowed(),
            np.inf if self.aim.balance else self.best - base, taken, self._desk, plan,
        )  # fmt: skip
        if not np.isfinite(got):
            return -1 - size if size < 0 else -1
        weighed = self.aim.weight * left
        got = float(weighed.max()) if self.aim.balance else got + base
        if got < self.best - 1e-9 and weighed.sum() <= self.aim.total + 1e-7:
            self.best, self.found = got, np.sort(np.append(plan[:size], spot.taken).astype(np.int64))
        return -1

    # ------------------------------------------------------------------------------------------ branching

    def _children(self, spot: Spot) -> list[Spot]:
        """A place parted in two."""
        place, base = self._place(spot)
        if place is None:
            return []
        bound = value(self.items, place, spot.price, self._red, self._desk, self._spare, self._out)
        slack = self.aim.target(self.best) - base - bound
        kept = narrow(
            self.items, place, spot.price, slack, self._red, self._desk, self._spare, self._out, self._needed
        )
        place = place._replace(columns=place.columns[:kept])
        if not kept or not np.isfinite(
            value(self.items, place, spot.price, self._red, self._desk, self._spare, self._out)
        ):  # what is left cannot do better, and what is there was tried
            return []
        climb(
            self.items, place, spot.price.copy(), self.aim.weight, False, np.inf, 6, self._often,
            self._red, self._desk, self._spare, self._out,
        )  # fmt: skip
        value(self.items, place, spot.price, self._red, self._desk, self._spare, self._out)
        decided: Flags = (place.room[:, :-1] <= 0) | (spot.least[:, :-1] > 0)
        s, r = choose(
            self.items, place, spot.price, self._often, self._needed, min(slack, 1e6), self._red,
            self._desk, self._out, decided,
        )  # fmt: skip
        spot = replace(spot, columns=place.columns)
        return self._decide(spot, s, r) if s >= 0 else self._take(spot)

    def _decide(self, spot: Spot, s: int, r: int) -> list[Spot]:
        """Without the row, and with it: then the others can have less of it."""
        room = spot.room.copy()
        room[s, r] = 0
        without = replace(spot, room=room)
        least, room = spot.least.copy(), spot.room.copy()
        least[s, r] = 1
        others = int(np.floor(self.aim.right[r] + 1e-9)) - (least[:, r].sum() - least[:, r])
        room[:, r] = np.minimum(room[:, r], others)
        return [without, replace(spot, room=room, least=least)]

    def _take(self, spot: Spot) -> list[Spot]:
        """With one more instance of the costliest column of the plans, and without any more of it."""
        plan = self._out.plan[: self._out.size[self.services]]
        if not len(plan):  # all that may be left unmet is; the largest column decides
            j = int(spot.columns[np.argmax(self.items.cover[spot.columns])])
        else:
            j = int(plan[np.argmax(self.items.cost[plan] + self._red[plan])])
        without = replace(spot, columns=spot.columns[spot.columns != j])
        most = int(self.items.most[j]) - spot.taken.count(j) - 1
        columns = spot.columns if most > 0 else without.columns
        return [replace(spot, taken=(*spot.taken, j), columns=columns), without]
