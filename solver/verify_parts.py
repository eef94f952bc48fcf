"""What the checks of an answer share: plain sums over its entries and its problem."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from schemas.problems import Answer, Chosen, Pool, Problem, Running, Service, Sliced

Name = Literal[
    "problem", "twice", "count", "template", "pool", "excluded", "unfit", "capacity", "slices", "service",
    "rating", "demand", "unmet", "price", "penalty", "policy-price", "bound", "steps", "kept", "pinned",
    "variants", "replicas", "regions_at_least", "spot_share", "budget", "apart", "breach",
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


def key_of_run(run: Running) -> Key:
    service = f"{run.template.model}/{run.rating.slo_class}/{run.template.phase}"
    return (service, run.template.id, run.pool.key)


def running_of(problem: Problem) -> Counter[Key]:
    """Instances that run."""
    running: Counter[Key] = Counter()
    for run in problem.running:
        running[key_of_run(run)] += run.count
    return running


def pinned_of(problem: Problem) -> Counter[Key]:
    """Instances that are to stay."""
    pinned: Counter[Key] = Counter()
    for run in problem.running:
        pinned[key_of_run(run)] += min(run.count, run.pinned)
    return +pinned


def kept_pins(problem: Problem, answer: Answer) -> tuple[Chosen, ...]:
    """What is pinned, as far as the answer has it."""
    pinned = pinned_of(problem)
    return tuple(
        chosen.model_copy(update={"count": min(chosen.count, pinned[key_of(chosen)])})
        for chosen in answer.chosen
        if pinned[key_of(chosen)] and chosen.count > 0
    )


def holds(problem: Problem, pool: Pool, nodes: Counter[str]) -> bool:
    """Whether all of a pool's stock would hold these nodes of templates, were nothing else there."""
    stock = {s.configuration: s.nodes for s in problem.stocks if s.pool == pool}
    stock = {n: count for n, count in stock.items() if n not in problem.excluded_configurations}
    if any(stock.get(n, 0) < count for n, count in nodes.items() if slice_of(problem, n) is None):
        return False
    return all(packs(kind, stock, nodes) for kind in problem.sliced)


def packs(kind: Sliced, nodes: Mapping[str, int], slices: Mapping[str, int]) -> bool:
    """Whether slices lie on nodes (both configuration -> how many): the largest first, which are all powers
    of two, so that what is free in nodes large enough can always be filled."""
    free = Counter(dict.fromkeys(kind.gpus.values(), 0))
    for name, count in nodes.items():
        if name in kind.gpus:
            free[kind.gpus[name]] += count
    carried = 0  # GPUs left in nodes that held larger slices
    for gpus in sorted(free, reverse=True):
        carried += free[gpus] * gpus
        carried -= gpus * sum(n for name, n in slices.items() if kind.gpus.get(name) == gpus)
        if carried < 0:
            return False
    return True


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
            total += chosen.count * min(chosen.rating.throughput * kept / rate, most)  # NaN stays NaN
    return total


def close(a: float, b: float, slack: float) -> bool:
    return abs(a - b) <= slack * max(1.0, abs(a), abs(b))  # false for NaN
