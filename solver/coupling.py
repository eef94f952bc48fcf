"""Policies that couple columns: each a few rows over blocks, with extra variables where it needs them.

A row is there only if its policy is asked for. Where stock may not be enough (floors of replicas, spread over
regions) an extra variable stands for what is missing, at a price.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from schemas.allocation import AllocationPolicy, Disaggregation
from schemas.problems import Stock
from solver.asked import Asked
from solver.places import Place
from solver.program import Extras, Rows, Term
from solver.sites import Site


class Missing(NamedTuple):
    """What an extra variable stands for: how far a policy is from being kept."""

    policy: Literal["replicas", "regions_at_least"]
    subject: str
    asked: int
    floor: int
    """What the row asks for: no more than there can be, since what no plan has tells none from another, and
    its price would hide what they cost."""


@dataclass
class Draft:
    """Rows and extras while they are collected."""

    sites: Sequence[Site]
    services: Mapping[str, int]
    """Service key -> its index."""
    names: list[str] = field(default_factory=list)
    right: list[float] = field(default_factory=list)
    terms: dict[int, list[Term]] = field(default_factory=dict)
    """By block."""
    limits: list[int] = field(default_factory=list)
    """Rows that instances which are pinned may override: ceilings, shares, the budget."""
    ties: list[int] = field(default_factory=list)
    """Rows that only tie parts of the program together."""
    budget: int | None = None
    """The row of that."""
    bought: dict[int, tuple[Place, Stock]] = field(default_factory=dict)
    """Extra -> the nodes that it counts."""
    missing: dict[int, Missing] = field(default_factory=dict)
    apart: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    """Extra -> service, region and variant of which it is the share served by prefill and decode apart."""
    extras: list[tuple[str, float, float, bool]] = field(default_factory=list)
    """(name, price, high, whole); all from 0."""
    extra_draws: list[tuple[int, int, float]] = field(default_factory=list)
    extra_covers: list[tuple[int, int, float]] = field(default_factory=list)

    def row(self, name: str, right: float) -> int:
        self.names.append(name)
        self.right.append(right)
        return len(self.names) - 1

    def variable(
        self, name: str, price: float, high: float, *, whole: bool, draws: Mapping[int, float]
    ) -> int:
        self.extras.append((name, price, high, whole))
        at = len(self.extras) - 1
        self.extra_draws += [(at, row, amount) for row, amount in draws.items()]
        return at

    def term(self, block: int, term: Term) -> None:
        self.terms.setdefault(block, []).append(term)

    def blocks(self, *services: str) -> Iterator[tuple[int, Site]]:
        """Those of some services."""
        return ((b, site) for b, site in enumerate(self.sites) if site.asked.service.key in services)

    def made(self) -> tuple[Rows, Extras]:
        names, prices, highs, whole = zip(*self.extras, strict=True) if self.extras else ((), (), (), ())
        extras = Extras(
            name=names,
            price=np.array(prices, np.float64),
            low=np.zeros(len(names)),
            high=np.array(highs, np.float64),
            whole=np.array(whole, np.bool_),
            aside=np.isin(np.arange(len(names)), list(self.missing)),
            covers=tuple(self.extra_covers),
            draws=tuple(self.extra_draws),
        )
        return Rows(tuple(self.names), np.array(self.right, np.float64)), extras


def define_policies(draft: Draft, policy: AllocationPolicy, asked: Sequence[Asked]) -> None:
    """Everything that a policy asks for in rows."""
    define_pairs(draft, policy.disaggregation)
    define_replicas(draft, policy, asked)
    define_spread(draft, policy, asked)
    define_spot_share(draft, policy, asked)
    define_budget(draft, policy)


def define_pairs(draft: Draft, pairs: Sequence[Disaggregation]) -> None:
    """For every region and variant: a share w of a model's demand may be served by prefill and decode apart.

    share covered by prefill there >= w, and by decode there >= w; w covers the demand of the whole.
    """
    for pair in pairs:
        whole, *parts = (f"{pair.model}/{pair.slo_class}/{phase}" for phase in ("both", "prefill", "decode"))
        if whole not in draft.services:
            continue
        places = {(s.place.region, s.kind.variant) for _, s in draft.blocks(*parts)}
        for region, variant in sorted(places):
            draws = {}
            for part in parts:
                row = draft.row(f"{part} as {variant} in {region} for {whole}", 0.0)
                draft.ties.append(row)
                draws[row] = 1.0
                for b, site in draft.blocks(part):
                    if (site.place.region, site.kind.variant) == (region, variant):
                        draft.term(b, Term(row, cover=-1.0))
            usd, name = pair.transfer_usd_per_hour, f"{whole} apart as {variant} in {region}"
            w = draft.variable(name, usd, 1.0, whole=False, draws=draws)
            draft.extra_covers.append((w, draft.services[whole], 1.0))
            draft.apart[w] = (whole, region, variant)


def define_replicas(draft: Draft, policy: AllocationPolicy, asked: Sequence[Asked]) -> None:
    """For every demanded service of a model: its instances, and those missing, reach the floor; and they are
    no more than the ceiling."""
    for replicas in policy.replicas:
        for service in _of_model(asked, replicas.model):
            counted = replicas_of(policy, service)
            if replicas.at_least:
                floor = min(replicas.at_least, _most_instances([s for _, s in draft.blocks(*counted)]))
                row = draft.row(f"replicas of {service}, at least", -float(floor))
                _may_miss(draft, policy, row, Missing("replicas", service, replicas.at_least, floor))
                for b, _ in draft.blocks(*counted):
                    draft.term(b, Term(row, instance=-1.0))
            if replicas.at_most is not None:
                row = draft.row(f"replicas of {service}, at most", float(replicas.at_most))
                draft.limits.append(row)
                for b, _ in draft.blocks(*counted):
                    draft.term(b, Term(row, instance=1.0))


def define_spread(draft: Draft, policy: AllocationPolicy, asked: Sequence[Asked]) -> None:
    """For every demanded service of a model: regions with an instance, and those missing, reach the floor.

    A region counts (z = 1) only where there is an instance: z <= sum of the instances there.
    """
    for model, regions in sorted(policy.regions_at_least.items()):
        for service in _of_model(asked, model):
            sites = list(draft.blocks(*replicas_of(policy, service)))
            there_are = sorted({site.place.region for _, site in sites})
            floor = min(regions, len(there_are))
            row = draft.row(f"regions of {service}", -float(floor))
            _may_miss(draft, policy, row, Missing("regions_at_least", service, regions, floor))
            for region in there_are:
                there = draft.row(f"instances of {service} in {region}", 0.0)
                draft.ties.append(there)
                for b, site in sites:
                    if site.place.region == region:
                        draft.term(b, Term(there, instance=-1.0))
                draft.variable(f"{service} in {region}", 0.0, 1.0, whole=True, draws={there: 1.0, row: -1.0})


def define_spot_share(draft: Draft, policy: AllocationPolicy, asked: Sequence[Asked]) -> None:
    """For every service: what spot pools cover is at most a share of all that is covered.

    (1 - share) x covered by spot - share x covered by the others <= 0.
    """
    for service in asked:
        share = policy.spot_limit(service.service.model)
        if share >= 1:
            continue
        row = draft.row(f"spot share of {service.service.key}", 0.0)
        draft.limits.append(row)
        for b, site in draft.blocks(service.service.key):
            draft.term(b, Term(row, cover=1 - share if site.place.pool.market == "spot" else -share))


def define_budget(draft: Draft, policy: AllocationPolicy) -> None:
    """Price of all instances, of the nodes that slices lie on and of KV caches sent is at most the budget."""
    if policy.budget_usd_per_hour is None:
        return
    row = draft.budget = draft.row("budget", policy.budget_usd_per_hour)
    draft.limits.append(row)
    for b in range(len(draft.sites)):
        draft.term(b, Term(row, usd=1.0))
    draft.extra_draws += [(k, row, stock.usd_per_hour) for k, (_, stock) in draft.bought.items()]
    draft.extra_draws += [(k, row, draft.extras[k][1]) for k in draft.apart if draft.extras[k][1]]


def replicas_of(policy: AllocationPolicy, service: str) -> tuple[str, ...]:
    """The services whose instances count as replicas of one: with decode apart, that generates too."""
    paired = {
        f"{p.model}/{p.slo_class}/both": f"{p.model}/{p.slo_class}/decode" for p in policy.disaggregation
    }
    return (service, paired[service]) if service in paired else (service,)


def _of_model(asked: Sequence[Asked], model: str) -> list[str]:
    """Services of a model that are demanded, if only with rate 0."""
    return [a.service.key for a in asked if a.service.model == model and a.demanded]


def _most_instances(sites: Sequence[Site]) -> int:
    """No plan has more: each takes a node, or a GPU of one that is shared."""
    places = {site.place.pool.key: site.place for site in sites}
    return sum(
        stock.nodes * (place.kinds[name].gpus[name] if place.is_slice(name) else 1)
        for place in places.values()
        for name, stock in place.stocks.items()
    )


def _may_miss(draft: Draft, policy: AllocationPolicy, row: int, missing: Missing) -> None:
    name = f"missing {missing.policy} of {missing.subject}"
    at = draft.variable(
        name, policy.breach_usd_per_hour, float(missing.floor), whole=False, draws={row: -1.0}
    )
    draft.missing[at] = missing
