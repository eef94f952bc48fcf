"""What the steps under a budget (`solver.budgets`) look for, and what they know so far."""

from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from solver.partials import ROUNDING
from solver.pricing import Prices
from solver.program import Floats, Ints, Step
from solver.rounds import Goal
from solver.stock_steps import GAP

WIDER = 3.0
"""How much further the next share is from where prices rule out no more."""
PROOFS = 7
"""Further shares tried at most, where some below the one found were not settled."""


class Leave(NamedTuple):
    """What may be left unmet."""

    spare: Floats
    """[S]: share of each service."""
    total: float
    """By weight, of all together."""
    worst: float = np.inf
    """By weight, of each."""

    def no_more(self, step: Step, share: float, weight: Floats) -> Self:
        """Nor more of what a step minimises than a share."""
        if step == "total":
            return self._replace(total=share + ROUNDING)
        return self._replace(spare=np.minimum(1.0, (share + ROUNDING) / weight), worst=share)


@dataclass(frozen=True, eq=False)
class Enough(Goal):
    """Any choice below the limit will do."""

    relative: float = 1e9
    """No other has to be looked for; `absolute` makes first windows wide enough where the bill is small."""
    limit: float = 0.0

    def target(self, best: float) -> float:
        return self.limit if best >= self.limit else -np.inf


class Priced(NamedTuple):
    """The cheapest plan, and the best bound on its cost with the prices that gave it."""

    plan: Ints
    value: float
    bound: float = -np.inf
    price: float = 0.0
    """Of the budget, USD of cost per USD of the bill."""
    prices: Prices | None = None

    @property
    def closed(self) -> bool:
        return self.bound >= self.value * (1 - GAP)

    def bettered(self, bound: float, price: float, prices: Prices) -> Self:
        return self if bound <= self.bound else self._replace(bound=bound, price=price, prices=prices)


@dataclass
class Tried:
    """Where to look for the least share: what is known so far."""

    bound: float
    """No plan leaves less."""
    value: float
    """A plan leaves so much."""
    limit: float
    """Of the bill."""
    open: float
    """Nothing was found up to here; below 0 as long as nothing was tried."""
    reach: float = 2 * GAP
    ruled: list[tuple[float, float]] = field(default_factory=list)
    """Shares that prices ruled out, rising, with their bounds on the bill."""
    unsettled: float = np.inf
    """The least share of which it is not known whether it can be had."""
    proofs: int = PROOFS
    """More shares that may be tried for the bound's sake."""
    by_plans: bool = False
    """Whether prices rule out no more."""

    def next(self) -> float | None:
        """The share to try; None once bound and value are close."""
        if self.open < 0:
            return 0.0 if self.value > 0 else None
        if self.value - self.open <= GAP:
            return self._to_prove()
        middle = (self.value + self.open) / 2
        if self.by_plans:
            return min(middle, self.open + self.reach)
        even = self._even()
        if even is None or even >= self.value:
            return middle
        return even if even > self.open + GAP / 2 else min(middle, self.open + self.reach)

    def had(self, value: float) -> None:
        """A plan was found."""
        self.value, self.reach = min(self.value, value), np.inf if self.by_plans else self.reach

    def missed(self, share: float, bill: float, *, proven: bool) -> None:
        """None was found, by prices that bound the bill so."""
        self.open = max(self.open, share)
        if proven:
            self.bound = max(self.bound, share)
        else:
            self.unsettled = min(self.unsettled, share)
        if self.proofs < PROOFS:
            return
        if bill > self.limit:
            self.ruled.append((share, bill))
        else:
            self.by_plans, self.reach = True, self.reach * WIDER

    def _to_prove(self) -> float | None:
        """A share below those that nothing was settled about; None if all is, or is hardly to be."""
        if self.unsettled - self.bound <= GAP or not np.isfinite(self.unsettled) or self.proofs == 0:
            return None
        self.proofs -= 1
        return (self.bound + self.unsettled) / 2

    def _even(self) -> float | None:
        """Where a line through two bounds meets the limit: below any share that prices do not rule out."""
        if len(self.ruled) < 2:
            return None
        (before, more), (here, less) = self.ruled[-2:]
        return here + (less - self.limit) * (here - before) / (more - less) if less < more < np.inf else None
