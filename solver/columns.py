"""The columns of the allocation: which template could run where, at what price.

Everything here is plain data, sorted, so that the same problem always gives the same model.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.problems import Pool, Problem, Rating, Service, Template
from solver.library import Library, Rated


class ProblemError(ValueError):
    """A question that cannot be put: it contradicts itself or its library. Short stock is not one."""


@dataclass(frozen=True)
class Column:
    """nu_r(tau): instances of one template in one pool."""

    service: Service
    template: Template
    rating: Rating
    pool: Pool
    uses: dict[str, int]
    usd_per_hour: float
    running: int
    limit: int
    """Instances that the pool's whole stock could hold."""


@dataclass(frozen=True)
class Columns:
    """What a problem lets choose from."""

    columns: tuple[Column, ...]
    demand: dict[str, float]
    """Service key -> rate, above zero only."""
    services: dict[str, Service]
    nodes: dict[tuple[str, str], int]
    """(pool key, configuration) -> stock, of those not excluded."""
    ratio: dict[str, float]
    wanted: dict[str, frozenset[str]] = field(default_factory=dict)
    """Service key -> configurations of templates that a pool's stock is too small for."""

    def of(self, service: str) -> list[int]:
        """Indices of a service's columns."""
        return [i for i, c in enumerate(self.columns) if c.service.key == service]


def make_columns(problem: Problem, library: Library) -> Columns:
    """Pair templates with pools: only wanted services, configurations that are not excluded, and what fits.

    A column whose one instance needs more than its pool's stock is dropped: it could never be used, and it
    weakens the linear relaxation. Templates that run now are columns even where the library lacks them.

    Raises:
        ProblemError: another library than the problem names, a demand or stock given twice, a ratio below 0.
    """
    _check(problem, library)
    demand = {d.service.key: d.rate for d in problem.demands if d.rate > 0}
    services = {d.service.key: d.service for d in problem.demands if d.rate > 0}
    excluded = set(problem.excluded_configurations)
    stocks = [s for s in problem.stocks if s.configuration not in excluded]
    nodes = {(s.pool.key, s.configuration): s.nodes for s in stocks}
    price = {(s.pool.key, s.configuration): s.usd_per_hour for s in stocks}
    pools = {s.pool.key: s.pool for s in stocks}
    running = _running(problem)
    columns: list[Column] = []
    wanted: dict[str, set[str]] = {key: set() for key in demand}
    for rated in _candidates(problem, library, services):
        key, uses = rated.service.key, rated.template.uses()
        for pool_key in sorted(pools):
            limit = min(nodes.get((pool_key, name), 0) // count for name, count in uses.items())
            if limit < 1:
                wanted[key] |= {n for n, k in uses.items() if nodes.get((pool_key, n), 0) < k}
                continue
            usd = sum(price[pool_key, name] * count for name, count in uses.items())
            now = running.get((key, rated.template.id, pool_key), 0)
            pool = pools[pool_key]
            columns.append(Column(rated.service, rated.template, rated.rating, pool, uses, usd, now, limit))
    frozen = {key: frozenset(names) for key, names in wanted.items()}
    return Columns(tuple(columns), demand, services, nodes, dict(problem.startup_ratio), frozen)


def covers(column: Column, columns: Columns) -> float:
    """Share of its service's demand that one instance covers."""
    return min(1.0, column.rating.throughput / columns.demand[column.service.key])


def startup_ratio(column: Column, columns: Columns) -> float:
    """K of the column's model."""
    return columns.ratio.get(column.template.model, 0.0)


def _candidates(problem: Problem, library: Library, services: dict[str, Service]) -> Iterator[Rated]:
    """Templates of the wanted services, by service and id; the library's rating wins over a running one's."""
    for key in sorted(services):
        known = {r.template.id: r for r in library.by_service.get(key, ())}
        for run in problem.running:
            extra = Rated(template=run.template, rating=run.rating)
            if extra.service.key == key:
                known.setdefault(run.template.id, extra)
        yield from (known[id_] for id_ in sorted(known))


def _running(problem: Problem) -> dict[tuple[str, str, str], int]:
    """(service key, template id, pool key) -> instances."""
    count: dict[tuple[str, str, str], int] = {}
    for run in problem.running:
        service = Rated(template=run.template, rating=run.rating).service
        key = (service.key, run.template.id, run.pool.key)
        count[key] = count.get(key, 0) + run.count
    return count


def _check(problem: Problem, library: Library) -> None:
    if problem.library != library.digest:
        raise ProblemError(f"library: the problem names {problem.library!r}, given {library.digest!r}")
    _unique("demands", [d.service.key for d in problem.demands])
    _unique("stocks", [f"{s.pool.key} {s.configuration}" for s in problem.stocks])
    for model, ratio in sorted(problem.startup_ratio.items()):
        if ratio < 0:
            raise ProblemError(f"startup_ratio: {model!r} has {ratio}, expected at least 0")


def _unique(where: str, keys: list[str]) -> None:
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ProblemError(f"{where}: {twice} given twice")
