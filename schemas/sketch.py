"""A mergeable sketch of a latency distribution.

Log-spaced buckets after DDSketch (Masson, Rim, Lee, VLDB 2019): bucket i holds the values in
(g^(i-1), g^i] with g = (1 + a) / (1 - a), so that any quantile is within the relative accuracy `a`.
"""

import math
from collections.abc import Iterable
from typing import Self

from schemas.base import Count, Frozen

ACCURACY = 0.02
_BASE = math.log((1 + ACCURACY) / (1 - ACCURACY))


class Sketch(Frozen):
    """Bucket index -> count, and the count of zeros; the unit is the field's that holds it."""

    buckets: dict[int, Count] = {}
    zeros: Count = 0

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Sketch non-negative values; raises ValueError for a negative or non-finite one."""
        buckets: dict[int, int] = {}
        zeros = 0
        for value in values:
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"expected a finite value of at least 0, got {value!r}")
            if value == 0:
                zeros += 1
            else:
                index = math.ceil(math.log(value) / _BASE)
                buckets[index] = buckets.get(index, 0) + 1
        return cls(buckets=dict(sorted(buckets.items())), zeros=zeros)

    @property
    def count(self) -> int:
        return self.zeros + sum(self.buckets.values())

    def merge(self, other: "Sketch") -> "Sketch":
        """The sketch of both sets of values."""
        buckets = dict(self.buckets)
        for index, count in other.buckets.items():
            buckets[index] = buckets.get(index, 0) + count
        return Sketch(buckets=dict(sorted(buckets.items())), zeros=self.zeros + other.zeros)

    def quantile(self, q: float) -> float | None:
        """The value below which a share `q` of the values lies; None when there are none."""
        if not 0 <= q <= 1:
            raise ValueError(f"q: expected 0 to 1, got {q!r}")
        if self.count == 0:
            return None
        rank = q * (self.count - 1)
        seen = self.zeros
        if rank < seen:
            return 0.0
        for index, count in sorted(self.buckets.items()):
            seen += count
            if rank < seen:
                return 2 * math.exp(index * _BASE) / (1 + math.exp(_BASE))
        raise AssertionError("unreachable: the counts cover every rank")
