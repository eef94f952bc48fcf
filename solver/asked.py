"""What a problem asks for, checked: services, how much of their demand an instance covers, what runs."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pydantic import ValidationError

from schemas.allocation import AllocationPolicy
from schemas.problems import Problem, Running, Service
from solver.candidates import Rated, Templates
from solver.program import Floats
from solver.shelves import Kind, Shelves, with_strangers

LEAST_COVER = 1e-9
"""Of an instance that restarts all the time: never nothing, since covers are above 0."""

MOST_TIMES = 1e6
"""A demand over the best template's throughput."""
MOST_RATIO = 1e4
"""Start-up time over adjustment interval: a week over a minute."""


class ProblemError(ValueError):
    """A question that cannot be put: it contradicts itself or its library. Short stock is not one."""


@dataclass(frozen=True)
class Asked:
    """A service that is wanted."""

    service: Service
    rate: float
    """Of the whole demand; 0 where instances are wanted without any."""
    need: float
    """Share of it to cover by its own instances: 1, or 0 where rows alone ask for them."""
    weight: float = 1.0
    most: float = 1.0
    """The largest share that one instance counts for (half rule)."""
    lost_per_node: float = 0.0
    """Share of an instance's throughput that each of its nodes costs by restarts."""
    demanded: bool = True
    """Of the problem's own, if only with rate 0: what floors and ceilings are for. Not the halves of a pair,
    nor what is pinned without demand."""

    def cover(self, kind: Kind) -> Floats:
        """[n]: share of the demand that one instance of each template covers; 1 where there is no demand.

        Capping T at the demand excludes no whole solution and tightens the relaxation (solver.md).
        """
        if self.rate == 0:
            return np.ones(len(kind))
        kept = np.ones(len(kind)) if self.lost_per_node == 0 else 1 - self.lost_per_node * kind.size
        return np.clip(kind.throughput * kept / self.rate, LEAST_COVER, self.most)


@dataclass(frozen=True)
class Runs:
    """A running template: which row of which kind it is, and in how many instances by pool key."""

    kind: Kind
    row: int
    running: Mapping[str, int]
    pinned: Mapping[str, int]


def asked_of(problem: Problem) -> tuple[Asked, ...]:
    """The services wanted, by key: those with demand, and those of which instances are wanted anyway."""
    policy, found = problem.policy, {}
    kept = {_service(run).key: _service(run) for run in problem.running if run.pinned}
    for demand in problem.demands:
        if demand.rate > 0:
            found[demand.service.key] = _asked(policy, demand.service, demand.rate, 1.0)
        elif _floor(policy, demand.service.model):
            kept[demand.service.key] = demand.service
    for pair in policy.disaggregation:
        whole = f"{pair.model}/{pair.slo_class}/both"
        if whole in found:
            for phase, rate in (("prefill", pair.prefill_tokens_per_s), ("decode", pair.decode_tokens_per_s)):
                part = Service(model=pair.model, slo_class=pair.slo_class, phase=phase)  # type: ignore[arg-type]
                found[part.key] = replace(_asked(policy, part, rate, 0.0), demanded=False)
    demanded = {demand.service.key for demand in problem.demands}
    for key, service in kept.items():
        found.setdefault(key, Asked(service, 0.0, 0.0, demanded=key in demanded))
    return tuple(found[key] for key in sorted(found))


def _asked(policy: AllocationPolicy, service: Service, rate: float, need: float) -> Asked:
    most, lost = policy.most_of_one(service.slo_class), policy.lost_per_node(service.model)
    return Asked(service, rate, need, policy.weight(service.model), most, lost)


def _floor(policy: AllocationPolicy, model: str) -> bool:
    """Whether instances of a model are wanted whatever its demand."""
    return bool(
        policy.regions_at_least.get(model) or any(r.at_least for r in policy.replicas if r.model == model)
    )


def _service(run: Running) -> Service:
    return Service(model=run.template.model, slo_class=run.rating.slo_class, phase=run.template.phase)


# ------------------------------------------------------------------------------------------------ what runs


def running_of(problem: Problem, shelves: Shelves, wanted: Sequence[str]) -> tuple[Shelves, tuple[Runs, ...]]:
    """Find the templates of wanted services that run; those that the library lacks are added to it.

    The library's rating wins over a running one's.
    """
    by_template: dict[tuple[str, str], list[Running]] = {}
    for run in problem.running:
        if _service(run).key in wanted:
            by_template.setdefault((_service(run).key, run.template.id), []).append(run)
    rows = {key: _find(shelves, key[0], runs[0]) for key, runs in sorted(by_template.items())}
    strangers = [key for key, row in rows.items() if row is None]
    known = len(shelves.kinds)
    if strangers:
        first = [by_template[key][0] for key in strangers]
        shelves = with_strangers(shelves, [Rated(template=r.template, rating=r.rating) for r in first])
    rows |= {key: (kind, 0) for key, kind in zip(strangers, shelves.kinds[known:], strict=True)}
    return shelves, tuple(_runs(by_template[key], row) for key, row in rows.items() if row is not None)


def _runs(runs: Sequence[Running], at: tuple[Kind, int]) -> Runs:
    running, pinned = Counter[str](), Counter[str]()
    for run in runs:
        running[run.pool.key] += run.count
        pinned[run.pool.key] += min(run.pinned, run.count)
    return Runs(*at, running, pinned)


def _find(shelves: Shelves, service: str, run: Running) -> tuple[Kind, int] | None:
    """The kind and row of a running template."""
    known = {name: c for c, name in enumerate(shelves.configurations)}
    nodes = [known.get(name, -1) for name in run.template.nodes]
    if -1 in nodes:
        return None
    for kind in shelves.of(service):
        row = kind.find(run.template.id, nodes) if kind.variant == run.template.variant else None
        if row is not None:
            kind.know(row, Rated(template=run.template, rating=run.rating))
            return kind, row
    return None


# ------------------------------------------------------------------------------------------------ checks


def check_reach(asked: Sequence[Asked], shelves: Shelves) -> None:
    """Whether one instance covers enough of a demand to count: HiGHS keeps rows within 1e-6.

    Raises:
        ProblemError: a demand that is a million times what any template gives is a mistake, such as a unit.
    """
    for a in asked:
        best = max((float(k.throughput.max()) for k in shelves.of(a.service.key) if len(k)), default=0.0)
        if much := beyond_reach(a.rate, best):
            raise ProblemError(f"demands: {a.service.key} has {a.rate:g}, {much}")


def beyond_reach(rate: float, best: float) -> str:
    """What was expected of a demand that is too large for the best template's throughput; empty if it is not,
    or there is no template."""
    if not best or rate <= MOST_TIMES * best:
        return ""
    return f"expected at most {MOST_TIMES:g} times what the best template gives, {best:g}"


def check(problem: Problem, library: Templates) -> None:
    """Whether the question can be put; schemas check what enters, copies with changes go round them.

    Raises:
        ProblemError: the first field that cannot be, with its value and what was expected.
    """
    if problem.library != library.digest:
        raise ProblemError(f"library: the problem names {problem.library!r}, given {library.digest!r}")
    for fault in (f for look in LOOKS for f in look(problem)):
        raise ProblemError(fault)


def _twice(problem: Problem) -> Iterator[str]:
    sliced = [name for kind in problem.sliced for name in kind.gpus]
    for where, keys in (
        ("demands", [d.service.key for d in problem.demands]),
        ("stocks", [f"{s.pool.key} {s.configuration}" for s in problem.stocks]),
        ("sliced", sliced),
    ):
        if twice := sorted(key for key, times in Counter(keys).items() if times > 1):
            yield f"{where}: {twice} given twice"


def _numbers(problem: Problem) -> Iterator[str]:
    for demand in problem.demands:
        if not (math.isfinite(demand.rate) and demand.rate >= 0):
            yield f"demands: {demand.service.key} has {demand.rate}, expected a number of at least 0"
    for stock in problem.stocks:
        where, usd = f"{stock.configuration} in {stock.pool.key}", stock.usd_per_hour
        least = 0 if stock.pool.market == "reserved" else 1e-300
        if not (math.isfinite(usd) and usd >= least):
            yield f"stocks: {where} costs {usd}, expected above 0, or 0 where it is reserved"
        if stock.nodes < 0:
            yield f"stocks: {stock.nodes} of {where}, expected at least 0"
    for model, ratio in sorted(problem.startup_ratio.items()):
        if not 0 <= ratio <= MOST_RATIO:  # nor NaN
            yield f"startup_ratio: {model!r} has {ratio}, expected from 0 to {MOST_RATIO:g}"


def _running(problem: Problem) -> Iterator[str]:
    for run in problem.running:
        where, given = f"{run.template.id} in {run.pool.key}", run.rating.throughput
        if not (math.isfinite(given) and given > 0):
            yield f"running: {where} is rated {given}, expected above 0"
        if run.count < 1 or run.pinned < 0:
            yield f"running: {run.count} of {where}, {run.pinned} pinned, expected at least 1 and 0"


def _policy(problem: Problem) -> Iterator[str]:
    """By its own schema."""
    try:
        AllocationPolicy.model_validate(problem.policy.model_dump())
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(["policy", *map(str, fault["loc"])])
        yield f"{field}: {fault['input']}: {fault['msg']}"


def _contradictions(problem: Problem) -> Iterator[str]:
    policy, asked = problem.policy, {d.service.key for d in problem.demands}
    models = {d.service.model for d in problem.demands}
    for where, named in (
        ("replicas", [r.model for r in policy.replicas]),
        ("regions_at_least", list(policy.regions_at_least)),
        ("weights", list(policy.weights)),
    ):
        for model in sorted(set(named) - models):
            yield f"policy.{where}: {model!r} has no demand, not even 0; expected one of {sorted(models)}"
    for pair in policy.disaggregation:
        name = f"{pair.model}/{pair.slo_class}"
        if f"{name}/both" not in asked:
            yield f"policy.disaggregation: {name}/both has no demand, not even 0"
        if twice := sorted({f"{name}/prefill", f"{name}/decode"} & asked):
            yield f"policy.disaggregation: {', '.join(twice)} has a demand of its own, expected none"


LOOKS = (_twice, _numbers, _running, _policy, _contradictions)
