"""The relaxation over plans, in HiGHS: a mix of plans for each service, within the stock.

The plans of a service add up to 1; what they draw on a row is at most what there is, and what they leave
unmet, by weight, at most `total`. It is worth no less than the relaxation over columns: a plan is whole.
What no plan is there for costs `big`, so there is always a solution.
"""

import highspy
import numpy as np

from solver.program import Floats, Ints
from solver.quiet_highs import add_columns, quiet


class Master:
    """The program, to which plans are added."""

    def __init__(self, right: Ints, weight: Floats, total: float, big: Floats) -> None:
        self.services, self.rows = len(big), len(right)
        self._weight = weight
        self._highs = quiet()
        rows, every = self.rows + 1, np.arange(self.services, dtype=np.int32)
        most = total if np.isfinite(total) else highspy.kHighsInf
        low = np.append(np.full(rows, -highspy.kHighsInf), np.ones(self.services))
        high = np.append(np.append(right, most), np.ones(self.services))
        none = np.zeros(rows + self.services, np.int32)
        self._highs.addRows(len(low), low, high, 0, none, np.zeros(0, np.int32), np.zeros(0))
        free = np.full(self.services, highspy.kHighsInf)
        self._highs.addCols(
            self.services, big, np.zeros(self.services), free, self.services, every, rows + every,
            np.ones(self.services),
        )  # fmt: skip
        self._big = big
        self.value, self.lacks = 0.0, np.ones(self.services)
        self.price, self.total_price = np.zeros(self.rows), 0.0

    def add(self, service: Ints, cost: Floats, use: Ints, unmet: Floats) -> None:
        """Plans with what they cost, draw ([n, R]) and leave unmet."""
        count = len(cost)
        amounts = np.zeros((count, self.rows + 1 + self.services))
        amounts[:, : self.rows] = use
        amounts[:, self.rows] = self._weight[service] * unmet
        amounts[np.arange(count), self.rows + 1 + service] = 1.0
        add_columns(self._highs, cost, amounts)

    def solve(self) -> None:
        """Find the best mix, and the prices of rows that go with it."""
        self._highs.run()
        solution = self._highs.getSolution()
        dual = np.array(solution.row_dual[: self.rows + 1])
        self.value = float(self._highs.getInfo().objective_function_value)
        self.lacks = np.array(solution.col_value[: self.services])
        self.price, self.total_price = np.maximum(0.0, -dual[: self.rows]), max(0.0, -float(dual[self.rows]))

    def dearer(self) -> float:
        """Doing without a service costs ten times as much from now on; how much, for the dearest."""
        self._big = 10.0 * self._big
        self._highs.changeColsCost(self.services, np.arange(self.services, dtype=np.int32), self._big)
        return float(self._big.max())
