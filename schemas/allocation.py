"""What may be asked of an allocation beyond demand met at least cost.

Every field of `AllocationPolicy` says "off" unless it is set. What it does to the integer program is said
beside each: it **filters** columns, **prices** them, changes what they **cover**, or is a **row**.

A row that stock cannot keep (a floor of replicas, a spread over regions) is kept as far as it goes: what is
missing weighs `breach_usd_per_hour` each and is told in the answer (`Answer.breaches`); demand comes first.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Count, Frozen, Name, Positive, Rate, Whole

Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=1e-3, le=1e3)]
Times = Annotated[float, Field(ge=0, le=1e6)]
"""So many times a price, as a price is at most 1e6: what they make together stays a number."""


class Replicas(Frozen):
    """How many instances each demanded service of a model has; those of all pools and variants count.

    Where prefill and decode are paired (`Disaggregation`), a decode instance counts as a replica.
    """

    model: Name
    at_least: Count = 0
    at_most: Count | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.at_most is not None and self.at_most < self.at_least:
            raise ValueError(f"at_most: {self.at_most}, expected at least at_least, {self.at_least}")
        return self


class Disaggregation(Frozen):
    """Demand of phase `both` that may be served by prefill and decode instances apart, where that is cheaper.

    The solver chooses the share. A pair lies in one region (cloud/region; its pools may differ) and has one
    variant, since both ends share a KV cache. What else the connector asks for is up to the library: for
    runtime `vllm` its prefill and decode templates have one stage (NIXL).
    """

    model: Name
    slo_class: Name
    prefill_tokens_per_s: Positive
    """Of the whole demand: arrivals x mean uncached input."""
    decode_tokens_per_s: Positive
    """Of the whole demand: arrivals x mean output."""
    transfer_usd_per_hour: Rate = 0.0
    """Of the whole demand: what its KV caches cost on the network, bytes a token x tokens x price."""
    configurations: tuple[Name, ...] = ()
    """Those that prefill and decode instances may have, since they read each other's caches (vLLM: no CUDA
    with ROCm); empty: any."""


class AllocationPolicy(Frozen):
    """Robustness, limits and preferences; the default asks for nothing."""

    weights: dict[Name, Weight] = {}
    """Model -> weight of a share of its demand that stays unmet, 1 where missing: who goes short."""
    scarcity: Literal["worst-first", "most-met"] = "worst-first"
    """Where demand cannot be met. worst-first: least largest weighted unmet share, then least sum of them,
    then least cost. most-met: least weighted sum first, whoever starves."""

    half_rule: tuple[Name, ...] = ()
    """SLO classes of which no instance counts for more than half of the demand, so that losing one leaves
    half. Cover: min(T, demand / 2)."""
    failures_per_node_hour: Rate = 0.0
    """An instance restarts whole when any of its nodes fails, so its throughput counts times
    1 - nodes x failures/h x recovery h. Cover."""
    recovery_s: dict[Name, Rate] = {}
    """Model -> measured seconds from a node's failure to serving again, 0 where missing."""
    surcharge_per_step: Times = 0.0
    """Share of its price that an instance of several nodes of one kind must save over single nodes, and a mix
    of kinds over that: simple unless it pays. Price; not in the bill."""
    interruption_hours: Times = 0.0
    """Hours of a node's price that an interruption costs; with `Stock.interruptions_per_hour`, the risk of
    spot nodes. Price; not in the bill."""

    variants: dict[Name, tuple[Name, ...]] = {}
    """Model -> variants that are good enough, all where missing. Filter: a variant that the library's pruning
    let go for another one does not come back, so a library built with the same policy may do better."""
    replicas: tuple[Replicas, ...] = ()
    """Row; a floor that stock cannot keep is a breach. Libraries drop wholes that parts replace, which a
    ceiling would rather have: with one, a plan is the best of the library's templates, not of all."""
    regions_at_least: dict[Name, Whole] = {}
    """Model -> regions (cloud/region) in which its demanded services have an instance. Row, or a breach."""
    spot_share: dict[Name, Share] = {}
    """Model -> most of what its services cover that spot pools may give; `*`: of any other model. Row; best
    of the library's templates, as with ceilings."""
    budget_usd_per_hour: Rate | None = None
    """The most that the bill may be, start-up left out. Row: demand goes unmet rather."""
    disaggregation: tuple[Disaggregation, ...] = ()
    """Rows by region and variant."""

    minimum_saving: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """What runs is kept where it serves as well, unless the new plan saves this share of its cost."""
    breach_usd_per_hour: Annotated[float, Field(ge=0.01, le=1e9)] = 1000.0
    """What each replica, or region, that is missing weighs against the cost: well above any instance. Price
    while searching; in no cost that is told, nor in what a gap is relative to."""

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        for what, names in (
            ("replicas", [r.model for r in self.replicas]),
            ("disaggregation", [f"{d.model}/{d.slo_class}" for d in self.disaggregation]),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{what}: {', '.join(twice)} given twice")
        return self

    def weight(self, model: str) -> float:
        return self.weights.get(model, 1.0)

    def most_of_one(self, slo_class: str) -> float:
        """The largest share of a service's demand that one instance counts for."""
        return 0.5 if slo_class in self.half_rule else 1.0

    def lost_per_node(self, model: str) -> float:
        """Share of an instance's throughput that each of its nodes costs by restarts."""
        return self.failures_per_node_hour * self.recovery_s.get(model, 0.0) / 3600

    def spot_limit(self, model: str) -> float:
        return self.spot_share.get(model, self.spot_share.get("*", 1.0))


ROBUST = AllocationPolicy(half_rule=("interactive",), surcharge_per_step=0.01)
"""What plans other than a paper's start from; failures and recovery times come with what was measured."""
