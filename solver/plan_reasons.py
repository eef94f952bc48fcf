"""Why a plan has the templates it has: what each gives for its price, and what kept a better one out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from schemas.problems import Answer, Chosen, Problem, Running
from solver.library import Library, Shelf
from solver.shapes import Floats

AS_GOOD = 1 - 1e-9
"""Of the best per USD: rounding."""


class Best(NamedTuple):
    """The template that gives a service most per USD, wherever it could be, stock aside."""

    nodes: tuple[str, ...]
    pool: str
    throughput: float
    usd_per_hour: float

    @property
    def per_usd(self) -> float:
        return self.throughput / self.usd_per_hour


class Reason(NamedTuple):
    """Of one line of a plan."""

    of_best: float
    """What it gives per USD as a share of what the service's best template gives; 1 where nothing is paid."""
    why: str


def reasons(problem: Problem, answer: Answer, library: Library) -> list[Reason]:
    """One for each of `answer.chosen`, in that order."""
    tops, left = best_per_usd(problem, library), nodes_left(problem, answer)
    runs = {_key(run): run for run in problem.running}
    rates = {demand.service.key: demand.rate for demand in problem.demands}
    found = []
    for chosen in answer.chosen:
        best = tops.get(chosen.service.key)
        share = 1.0
        if best is not None and chosen.usd_per_hour > 0:
            share = chosen.rating.throughput / chosen.usd_per_hour / best.per_usd
        asked = rates.get(chosen.service.key, 0.0) * problem.policy.most_of_one(chosen.service.slo_class)
        found.append(Reason(share, _why(chosen, best, share, asked, left, runs)))
    return found


def best_per_usd(problem: Problem, library: Library) -> dict[str, Best]:
    """By service that is asked for and has a template that its places sell."""
    prices = node_prices(problem, [node.name for node in library.inputs.configurations])
    wanted = {demand.service.key for demand in problem.demands if demand.rate > 0}
    found: dict[str, Best] = {}
    for shelf in library.parts.values():
        key = shelf.part.service.key
        if key not in wanted:
            continue
        for pool, price in prices.items():
            here = _best(shelf, pool, price)
            if here is not None and (key not in found or here.per_usd > found[key].per_usd):
                found[key] = here
    return found


def node_prices(problem: Problem, configurations: Sequence[str]) -> dict[str, Floats]:
    """Pool -> USD per hour of a node of each configuration, infinite where it is not sold.

    Part of a node that is sliced costs its share, by GPUs, of the cheapest one that it fits on.
    """
    at = {name: c for c, name in enumerate(configurations)}
    found: dict[str, Floats] = {}
    for stock in problem.stocks:
        if stock.configuration in problem.excluded_configurations:
            continue
        price = found.setdefault(stock.pool.key, np.full(len(configurations), np.inf))
        sizes = next((s.gpus for s in problem.sliced if stock.configuration in s.gpus), {})
        shares = {name: n / sizes[stock.configuration] for name, n in sizes.items()} or {
            stock.configuration: 1.0
        }
        for name, share in shares.items():
            if share <= 1 and name in at:
                price[at[name]] = min(price[at[name]], stock.usd_per_hour * share)
    return dict(sorted(found.items()))


def nodes_used(problem: Problem, answer: Answer) -> Counter[tuple[str, str]]:
    """(pool key, configuration) -> nodes that the plan buys."""
    sliced = {name for kind in problem.sliced for name in kind.gpus}
    used = Counter({(b.pool.key, b.configuration): b.count for b in answer.nodes})
    for chosen in answer.chosen:
        for name, count in chosen.template.uses().items():
            if name not in sliced:
                used[chosen.pool.key, name] += count * chosen.count
    return used


def nodes_left(problem: Problem, answer: Answer) -> Counter[tuple[str, str]]:
    """(pool key, configuration) -> nodes that the plan leaves; of kinds that are shared so many slices as
    would still fit, be the nodes bought or not.

    Powers of two fill nodes without gaps: slices of z GPUs or more fit if nodes of z or more have the GPUs.
    """
    left = Counter({(s.pool.key, s.configuration): s.nodes for s in problem.stocks})
    left.subtract(nodes_used(problem, answer))
    for kind in problem.sliced:
        for pool in {stock.pool.key for stock in problem.stocks}:
            gpus: Counter[int] = Counter()
            for stock in problem.stocks:
                if stock.pool.key == pool and stock.configuration in kind.gpus:
                    gpus[kind.gpus[stock.configuration]] += kind.gpus[stock.configuration] * stock.nodes
            for chosen in answer.chosen:
                if chosen.pool.key == pool:
                    for name, count in chosen.template.uses().items():
                        gpus[kind.gpus.get(name, 0)] -= kind.gpus.get(name, 0) * count * chosen.count
            for name, size in kind.gpus.items():
                least = (sum(n for of, n in gpus.items() if of >= z) for z in kind.gpus.values() if z <= size)
                left[pool, name] = min(least) // size
    return left


def short(pool: str) -> str:
    """A pool's key as people read it: the zone and market go without saying where they are the usual ones."""
    return pool.removesuffix("/*/on-demand").replace("/*/", "/")


# ------------------------------------------------------------------------------------------------- helpers


def _best(shelf: Shelf, pool: str, price: Floats) -> Best | None:
    """Of one variant in one pool; None where the pool sells none of its templates."""
    if not len(shelf):
        return None
    nodes = shelf.kept.combination
    usd = np.where(nodes >= 0, price[nodes], 0.0).sum(axis=1)
    with np.errstate(divide="ignore"):
        per_usd = np.where(np.isfinite(usd), shelf.kept.throughput / usd, 0.0)
    row = int(per_usd.argmax())
    if not 0 < per_usd[row] < np.inf:
        return None
    return Best(shelf.nodes(row), pool, float(shelf.kept.throughput[row]), float(usd[row]))


def _why(
    chosen: Chosen,
    best: Best | None,
    share: float,
    asked: float,
    left: Counter[tuple[str, str]],
    runs: Mapping[tuple[str, str], Running],
) -> str:
    running = _running(chosen, runs.get(_key(chosen)))
    if best is None or share >= AS_GOOD:
        return f"{running}gives most per USD"
    counts = Counter(best.nodes)
    what = " + ".join(f"{n} x {name}" if n > 1 else name for name, n in counts.items())
    there = f"{running}{what} in {short(best.pool)}"
    gone = sorted(name for name, count in counts.items() if left[best.pool, name] < count)
    if gone:
        return f"{there} is best: no {', '.join(gone)} left"
    if best.throughput > asked:
        return f"{there} is best, but of its {_rate(best.throughput)} only {_rate(asked)} count"
    return f"{running}the whole plan costs less than with {what} in {short(best.pool)}"


def _running(chosen: Chosen, run: Running | None) -> str:
    """How many of them run, and have to."""
    if run is None:
        return ""
    stays, pinned = min(chosen.count, run.count), min(chosen.count, run.pinned)
    return f"{stays} of {chosen.count} running already{f', {pinned} pinned' if pinned else ''}; "


def _rate(given: float) -> str:
    return f"{given:,.0f}" if given >= 1000 else f"{given:.4g}"


def _key(what: Chosen | Running) -> tuple[str, str]:
    return what.template.id, what.pool.key
