"""What the allocation chooses from: templates, each made whole only when somebody asks for it.

A library has hundreds of thousands of them, an answer a few dozen.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from schemas.base import Count, Frozen
from schemas.problems import Rating, Service, Template


class Rated(Frozen):
    """A template and what it gives to one service."""

    template: Template
    rating: Rating

    @property
    def service(self) -> Service:
        return Service(model=self.template.model, slo_class=self.rating.slo_class, phase=self.template.phase)

    @property
    def candidate(self) -> "Candidate":
        """Itself to choose from."""
        return Candidate(
            self.service,
            self.template.variant,
            self.template.nodes,
            self.rating.throughput,
            lambda: self,
        )


@dataclass(frozen=True)
class Candidate:
    """A template as far as choosing needs it."""

    service: Service
    variant: str
    nodes: tuple[str, ...]
    """Configurations of the combination, in any order."""
    throughput: float
    """Requests/s for phase `both`, else tokens/s."""
    make: Callable[[], Rated]

    @cached_property
    def rated(self) -> Rated:
        return self.make()

    @cached_property
    def uses(self) -> dict[str, int]:
        """U_c: how many nodes of each configuration one instance takes."""
        return dict(sorted(Counter(self.nodes).items()))


class Refused(Frozen):
    """How many combinations of a service were refused, by reason (`solver.kept.Reason`)."""

    service: Service
    reasons: dict[str, Count]


class Templates(Protocol):
    """What the allocation needs of a library."""

    @property
    def digest(self) -> str: ...

    @property
    def by_service(self) -> Mapping[str, Sequence[Candidate]]:
        """Service key -> its templates, in an order that only the library's content decides; never empty."""
        ...

    @property
    def refused(self) -> Sequence[Refused]: ...
