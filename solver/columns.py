"""The columns of the allocation: which template could run where, at what price.

Everything here is plain data, sorted, so that the same problem always gives the same model.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.problems import Pool, Problem, Rating, Running, Service, Template, Unfit
from solver.candidates import Candidate, Rated, Templates


class ProblemError(ValueError):
    """A question that cannot be put: it contradicts itself or its library. Short stock is not one."""


@dataclass(frozen=True)
class Column:
    """nu_r(tau): instances of one template in one pool."""

    candidate: Candidate
    pool: Pool
    usd_per_hour: float
    running: int
    limit: int
    """Instances that the pool's stock could hold; where it refused the model, those that run or may try."""

    @property
    def service(self) -> Service:
        return self.candidate.service

    @property
    def uses(self) -> dict[str, int]:
        return self.candidate.uses

    @property
    def template(self) -> Template:
        """Made when it is asked for: of the many columns, an answer has few."""
        return self.candidate.rated.template

    @property
    def rating(self) -> Rating:
        return self.candidate.rated.rating


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
    unfit: dict[str, frozenset[str]] = field(default_factory=dict)
    """Service key -> refusals that keep its templates from places with the stock for them."""
    withheld: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """(pool key, configuration) -> what nodes refused that are held and do not count as stock."""

    def of(self, service: str) -> list[int]:
        """Indices of a service's columns."""
        return [i for i, c in enumerate(self.columns) if c.service.key == service]


def make_columns(problem: Problem, library: Templates) -> Columns:
    """Pair templates with pools: only wanted services, configurations that are not excluded, and what fits.

    A column whose one instance needs more than its pool's stock is dropped: it could never be used, and it
    weakens the linear relaxation. So is one in a place that refused its model, but for what runs there and is
    to be tried. Templates that run now are columns even where the library lacks them.

    Raises:
        ProblemError: another library than the problem names, a demand or stock given twice, a ratio below 0.
    """
    _check(problem, library)
    demand = {d.service.key: d.rate for d in problem.demands if d.rate > 0}
    services = {d.service.key: d.service for d in problem.demands if d.rate > 0}
    market = _Market(problem)
    columns: list[Column] = []
    wanted: dict[str, set[str]] = {key: set() for key in demand}
    unfit: dict[str, set[str]] = {key: set() for key in demand}
    for candidate, running in _candidates(problem, library, services):
        key = candidate.service.key
        for pool_key in sorted(market.pools):
            if short := market.short(candidate, pool_key):
                wanted[key] |= short
                continue
            unfit[key] |= {
                f"{u.reason} on {u.configuration} in {pool_key}" for u in market.refusals(candidate, pool_key)
            }
            column = market.column(candidate, pool_key, running)
            if column.limit > 0:
                columns.append(column)
    return Columns(
        columns=tuple(columns),
        demand=demand,
        services=services,
        nodes=market.nodes,
        ratio=dict(problem.startup_ratio),
        wanted={key: frozenset(names) for key, names in wanted.items()},
        unfit={key: frozenset(said) for key, said in unfit.items()},
        withheld=market.withheld,
    )


def covers(column: Column, columns: Columns) -> float:
    """Share of its service's demand that one instance covers."""
    return min(1.0, column.candidate.throughput / columns.demand[column.service.key])


def startup_ratio(column: Column, columns: Columns) -> float:
    """K of the column's model."""
    return columns.ratio.get(column.service.model, 0.0)


def _candidates(
    problem: Problem, library: Templates, services: dict[str, Service]
) -> Iterator[tuple[Candidate, str | None]]:
    """Templates of the wanted services, with their id if they run now.

    The library's come first, and their rating wins over a running one's; then those that the library lacks.
    """
    for key in sorted(services):
        running = {
            rated.template.id: rated for rated in map(_rated, problem.running) if rated.service.key == key
        }
        alike: dict[object, list[Template]] = {}
        for rated in running.values():
            alike.setdefault(_likeness(rated.candidate), []).append(rated.template)
        for candidate in library.by_service.get(key, ()):
            suspects = alike.get(_likeness(candidate), ()) if alike else ()
            same = next((t.id for t in suspects if t.id == candidate.rated.template.id), None)
            running.pop(same or "", None)
            yield candidate, same
        yield from ((running[id_].candidate, id_) for id_ in sorted(running))


def _rated(run: Running) -> Rated:
    return Rated(template=run.template, rating=run.rating)


def _likeness(candidate: Candidate) -> object:
    """Equal for templates that may be the same: a template's id, which says it, takes making the template."""
    return candidate.variant, tuple(sorted(candidate.nodes))


class _Market:
    """What a problem says of its places: what is there, at what price, what runs, what was refused."""

    def __init__(self, problem: Problem) -> None:
        stocks = [s for s in problem.stocks if s.configuration not in problem.excluded_configurations]
        self.pools = {s.pool.key: s.pool for s in stocks}
        self.nodes = {(s.pool.key, s.configuration): s.nodes for s in stocks}
        self.withheld = {(s.pool.key, s.configuration): s.refused for s in stocks if s.refused}
        self._price = {(s.pool.key, s.configuration): s.usd_per_hour for s in stocks}
        self._unfit = {(u.model, u.pool.key, u.configuration): u for u in problem.unfit}
        self._running: Counter[tuple[str, str, str]] = Counter()
        for run in problem.running:
            self._running[_rated(run).service.key, run.template.id, run.pool.key] += run.count

    def short(self, candidate: Candidate, pool: str) -> set[str]:
        """Configurations of which a pool has less than one instance takes."""
        return {name for name, count in candidate.uses.items() if self.nodes.get((pool, name), 0) < count}

    def refusals(self, candidate: Candidate, pool: str) -> list[Unfit]:
        """What stands against a template in a pool."""
        keys = ((candidate.service.model, pool, name) for name in candidate.uses)
        return [self._unfit[key] for key in keys if key in self._unfit]

    def column(self, candidate: Candidate, pool: str, running_as: str | None) -> Column:
        """A template in a pool that has the nodes for it; it has an id if it runs anywhere."""
        uses = candidate.uses
        running = self._running[candidate.service.key, running_as or "", pool]
        room = [self.nodes[pool, name] // count for name, count in uses.items()]
        allowed = [running + unfit.tries for unfit in self.refusals(candidate, pool)]
        return Column(
            candidate=candidate,
            pool=self.pools[pool],
            usd_per_hour=sum(self._price[pool, name] * count for name, count in uses.items()),
            running=running,
            limit=min(room + allowed),
        )


def _check(problem: Problem, library: Templates) -> None:
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
