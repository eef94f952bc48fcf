"""Name -> method: everything that answers a problem, behind one signature."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from schemas.problems import Answer, Problem
from solver import allocation
from solver.answers import METHOD
from solver.candidates import Templates
from solver.columns import ProblemError


class Method(Protocol):
    """Answers a problem; raises ProblemError for one that cannot be put.

    `better` is told of plans on the way, each better than those before.
    """

    def __call__(
        self,
        problem: Problem,
        library: Templates,
        *,
        clock: Callable[[], float] | None = None,
        better: Callable[[Answer], None] | None = None,
    ) -> Answer: ...


METHODS: Mapping[str, Method] = MappingProxyType({METHOD: allocation.solve})


def method(name: str) -> Method:
    """The method of that name; raises ProblemError where there is none."""
    if name not in METHODS:
        raise ProblemError(f"method: {name!r} is unknown, expected one of {sorted(METHODS)}")
    return METHODS[name]
