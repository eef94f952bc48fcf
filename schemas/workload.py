"""What clients send and what they are promised: request lengths, arrivals, latency objectives."""

from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from schemas.base import Frozen, Name, Positive, Whole


class Objective(Frozen):
    """A latency promise: the `percentile` of the measured times stays at or under `ms`."""

    percentile: Annotated[float, Field(gt=0, lt=100)]
    ms: Positive
    max_prompt_tokens: Whole | None = None
    """The prompt-length bucket it holds for: prompts up to this long; None is every other prompt."""


class Quantiles(Frozen):
    """Percentiles of a length in tokens; None where the data do not resolve it."""

    p10: Positive | None = None
    p25: Positive | None = None
    p50: Positive | None = None
    p75: Positive | None = None
    p90: Positive | None = None
    p95: Positive | None = None
    p99: Positive | None = None

    @model_validator(mode="after")
    def _they_rise(self) -> Self:
        known = list(self.known.values())
        if not known or known != sorted(known):
            raise ValueError(f"{self.known}: at least one is expected, and none below a lower one")
        return self

    @property
    def known(self) -> dict[float, float]:
        """Probability (0.5 for p50) -> tokens, rising."""
        given: dict[str, float | None] = self.model_dump()
        return {int(name[1:]) / 100: tokens for name, tokens in given.items() if tokens is not None}


class Burstiness(Frozen):
    """How unevenly requests arrive: 1 is a Poisson process, more is burstier.

    `dispersion` is the variance over the mean of the number of arrivals in intervals of `interval_s`. Thinned
    to a share s of its rate, a stream of dispersion D has 1 + s (D - 1): so the rate belongs to it.
    """

    interval_s: Positive
    dispersion: Positive
    requests_per_s: Positive


class Workload(Frozen):
    """Request lengths and arrivals the planner assumes until enough was measured."""

    name: Name | None = None
    mean_input_tokens: Positive
    mean_output_tokens: Positive
    input_tokens: Quantiles | None = None
    output_tokens: Quantiles | None = None
    burstiness: tuple[Burstiness, ...] = ()
    """By interval, shortest first."""
    assumed: str | None = None
    """What of it is no measurement, and why it is taken."""
    source: str

    @field_validator("burstiness")
    @classmethod
    def _intervals_rise(cls, given: tuple[Burstiness, ...]) -> tuple[Burstiness, ...]:
        intervals = [b.interval_s for b in given]
        if any(later <= earlier for earlier, later in pairwise(intervals)):
            raise ValueError(f"interval_s: {intervals}, expected each once, shortest first")
        return given


class ServiceLevel(Frozen):
    """One SLO class of one model: what is promised, and for which workload."""

    slo_class: Name
    ttft: tuple[Objective, ...] = Field(min_length=1)
    tpot: tuple[Objective, ...] = Field(min_length=1)
    workload: Workload
    drain_deadline_s: Annotated[float, Field(ge=5, le=7 * 86_400)] | None = None
    """The longest that a drain waits for open answers; None is the policy's."""

    @field_validator("ttft", "tpot")
    @classmethod
    def _one_a_bucket(cls, given: tuple[Objective, ...]) -> tuple[Objective, ...]:
        buckets = [objective.max_prompt_tokens for objective in given]
        if len(set(buckets)) < len(buckets):
            raise ValueError(
                f"max_prompt_tokens: {buckets}, expected one objective for each length of prompts"
            )
        return given
