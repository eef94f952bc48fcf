"""What the checks of an answer share: plain sums over its entries and its problem."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from schemas.problems import Answer, Chosen, Pool, Problem, Service, Sliced

Name = Literal[
    "problem", "twice", "pool", "excluded", "unfit", "capacity", "slices", "service", "rating", "demand",
    "unmet", "price", "penalty", "policy-price", "bound", "pinned", "variants", "replicas",
    "regions_at_least", "spot_share", "budget", "apart",
]  # fmt: skip
Key = tuple[str, str, str]
"""(service key, template id, pool key)."""

SHARE = 1e-5
"""Relative slack on demand: ten times the solver's tolerance, so that rounding never fails a good answer."""
MONEY = 1e-9
"""Relative slack on sums of prices: what adding floats in another order can change."""


@dataclass(frozen=True)
class Violation:
    """One broken promise: which, and the figures."""

    name: Name
    detail: str


def key_of(chosen: Chosen) -> Key:
    return (chosen.service.key, chosen.template.id, chosen.pool.key)


def running_of(problem: Problem) -> Counter[Key]:
    """Instances that run."""
    running: Counter[Key] = Counter()
    for run in problem.running:
        service = f"{run.template.model}/{run.rating.slo_class}/{run.template.phase}"
        running[service, run.template.id, run.pool.key] += run.count
    return running


def pinned_of(problem: Problem) -> Counter[Key]:
    """Instances that are to stay."""
    pinned: Counter[Key] = Counter()
    for run in problem.running:
        service = f"{run.template.model}/{run.rating.slo_class}/{run.template.phase}"
        pinned[service, run.template.id, run.pool.key] += min(run.count, run.pinned)
    return +pinned


def slice_of(problem: Problem, configuration: str) -> Sliced | None:
    """The GPU kind of a configuration whose nodes are shared."""
    return next((kind for kind in problem.sliced if configuration in kind.gpus), None)


def prices_of(problem: Problem, pool: Pool) -> Mapping[str, float]:
    """Configuration -> USD per hour in a pool; of a slice its share of the cheapest node that it fits on."""
    stocked = {s.configuration: s.usd_per_hour for s in problem.stocks if s.pool == pool}
    stocked = {n: usd for n, usd in stocked.items() if n not in problem.excluded_configurations}
    found = dict(stocked)
    for kind in problem.sliced:
        sold = [(kind.gpus[name], usd) for name, usd in stocked.items() if name in kind.gpus]
        for name, gpus in kind.gpus.items():
            found[name] = min((gpus * usd / of for of, usd in sold if of >= gpus), default=math.nan)
    return found


def covered(
    problem: Problem, answer: Answer, service: Service, rate: float, market: str | None = None
) -> float:
    """Share of a rate that the chosen instances cover, each by no more than the half rule lets it.

    Args:
        market: only of pools of that market.
    """
    policy = problem.policy
    most, lost = policy.most_of_one(service.slo_class), policy.lost_per_node(service.model)
    total = 0.0
    for chosen in answer.chosen:
        if chosen.service == service and market in {None, chosen.pool.market} and rate > 0:
            kept = max(0.0, 1 - lost * len(chosen.template.nodes))
            total += chosen.count * min(most, chosen.rating.throughput * kept / rate)
    return total


def close(a: float, b: float, slack: float) -> bool:
    return abs(a - b) <= slack * max(1.0, abs(a), abs(b))  # false for NaN
