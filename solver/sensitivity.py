"""How much N_max and rho matter (the paper's Fig. 13): libraries of one service at many limits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from solver import worth
from solver.building import build_library
from solver.figures import Figures
from solver.setups import Scope
from solver.worth import Prices

PLATEAU = 0.01
"""A best template within this of the very best is as good: what figures of a model are good for."""


class Trial(NamedTuple):
    """One library."""

    n_max: int
    rho: float
    combinations: int
    templates: int
    seconds: float
    per_usd: float
    """The best template's throughput over USD an hour; 0 if there is none."""
    nodes: tuple[str, ...]
    """Of that template."""


def trials(
    figures: Figures,
    scope: Scope,
    prices: Prices,
    n_maxes: Sequence[int],
    rhos: Sequence[float],
    clock: Callable[[], float],
    cores: int | None = None,
) -> Iterator[Trial]:
    """Build every library anew, so that its seconds are its own.

    Args:
        scope: of one service; its own limits do not count.
        clock: seconds.
    """
    for n_max in n_maxes:
        for rho in rhos:
            start = clock()
            library = build_library(figures, replace(scope, n_max=n_max, rho=rho), cores=cores)
            seconds = clock() - start
            tops = [(w, shelf) for shelf in library.parts.values() for w in worth.best(shelf, prices)]
            top, shelf = max(tops, key=lambda pair: pair[0].per_usd, default=(None, None))
            yield Trial(
                n_max=n_max,
                rho=rho,
                combinations=library.considered,
                templates=sum(map(len, library.arrays)),
                seconds=seconds,
                per_usd=0.0 if top is None else top.per_usd,
                nodes=() if top is None or shelf is None else shelf.nodes(top.row),
            )


def plateau(found: Sequence[Trial]) -> Trial | None:
    """The least limits, nodes first, whose best template is within a per cent of the best of all."""
    best = max((trial.per_usd for trial in found), default=0.0)
    good = [trial for trial in found if trial.per_usd > 0 and trial.per_usd >= best * (1 - PLATEAU)]
    return min(good, key=lambda trial: (trial.n_max, trial.rho), default=None)
