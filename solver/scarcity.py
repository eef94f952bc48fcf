"""How much stock there is, measured by what the demand takes: the paper says it in shares of that."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

import numpy as np
from scipy.optimize import linprog

from schemas.problems import Pool
from solver.library import Library

Scale = Literal["full", "scarce", "x0.3", "x0.15"]
"""How much stock there is: `scarce` is the paper's; of the full one, 0.3 is tight and 0.15 too little."""
SCALES: tuple[Scale, ...] = get_args(Scale)
WHOLE: Mapping[str, float] = MappingProxyType({"core": 2.0, "extended": 1.4})
"""The paper's "estimated demand", over the least stock that meets it in fractions of nodes (`least_share`).

With less than this most seeds have no plan of whole nodes that does. Core's demand is a few instances, so it
loses more to rounding.
"""
FULL = 4.4
"""The full stock over the estimated demand; so 0.3 of it is a third above, and 0.15 a third below."""
SCARCE: Mapping[str, float] = MappingProxyType({"core": 1.25, "extended": 1.75})
"""The same of the paper's scarce runs."""


class Place(NamedTuple):
    """A configuration in a pool."""

    pool: Pool
    configuration: str

    @property
    def key(self) -> str:
        return f"{self.pool.key} {self.configuration}"


def factor(setup: str, scale: Scale) -> float:
    """Stock over the least share of it that meets the demand in fractions of nodes.

    Raises:
        ValueError: a set-up or scale that is unknown.
    """
    factors = {"full": FULL, "x0.3": 0.3 * FULL, "x0.15": 0.15 * FULL, "scarce": SCARCE.get(setup, 0.0)}
    for what, name, known in (("setup", setup, WHOLE), ("scale", scale, factors)):
        if name not in known:
            raise ValueError(f"{what}: {name!r}, expected one of {', '.join(known)}")
    return WHOLE[setup] * factors[scale]


def least_share(library: Library, demand: Mapping[str, float], shape: Mapping[Place, float]) -> float:
    """The least factor on a stock with which it meets a demand in fractions of nodes, each giving what it
    gives in the best template of its kind alone. It may be above 1.

    Raises:
        ValueError: no such factor does.
    """
    places = list(shape)
    keys = [key for key in sorted(demand) if demand[key] > 0]
    gives = _alone(library)
    worth = np.array([[gives.get((key, p.configuration), 0.0) for p in places] for key in keys])
    served = [k for k in range(len(keys)) if worth[k].any()]  # others have no template of one kind alone
    if not served:
        return 1.0
    p = len(places)
    capacity = np.hstack([np.tile(np.eye(p), len(served)), -np.array(list(shape.values()))[:, None]])
    cover = np.zeros((len(served), len(served) * p + 1))
    for row, k in enumerate(served):
        cover[row, row * p : (row + 1) * p] = -worth[k] / demand[keys[k]]
    cost = np.append(np.zeros(len(served) * p), 1.0)
    rows = np.vstack([capacity, cover])
    limits = np.append(np.zeros(p), -np.ones(len(served)))
    found = linprog(cost, A_ub=rows, b_ub=limits)
    if found.x is None:
        raise ValueError(f"snapshot: no stock of these places could meet the demand of {', '.join(keys)}")
    return float(found.x[-1])


def _alone(library: Library) -> dict[tuple[str, str], float]:
    """(service key, configuration) -> the most that a node of it gives among nodes of its kind alone."""
    found: dict[tuple[str, str], float] = {}
    names = [node.name for node in library.inputs.configurations]
    for shelf in library.parts.values():
        nodes = shelf.kept.combination
        if not len(shelf):
            continue
        first = nodes[:, :1]
        alike = ((nodes == first) | (nodes < 0)).all(axis=1)
        each = shelf.kept.throughput[alike] / (nodes[alike] >= 0).sum(axis=1)
        for c, gives in zip(first[alike, 0].tolist(), each.tolist(), strict=True):
            key = shelf.part.service.key, names[c]
            found[key] = max(found.get(key, 0.0), gives)
    return found
