"""Are promises and workloads plausible? Times in the right unit, lengths that agree with each other.

Of the form of `schemas.catalog.broken_references`, as `solver.catalog_check`, which it is a part of.
"""

from typing import NamedTuple

from schemas.catalog import Broken, Quantiles, ServiceLevel, Workload
from schemas.faults import Steps


class Range(NamedTuple):
    """What a quantity lies in, and what it is likely to be in where it does not."""

    least: float
    most: float
    hint: str

    def fault(self, value: float, unit: str) -> str | None:
        if self.least <= value <= self.most:
            return None
        return f"{value:g} {unit}, expected {self.least:g} to {self.most:g} ({self.hint})"


TTFT_MS = Range(20, 600_000, "in ms; given in s?")
TPOT_MS = Range(1, 10_000, "in ms; given in s?")
PERCENTILE = Range(1, 99.999, "in per cent; given as a share?")
TOKENS = Range(1, 10_000_000, "tokens of one request")
BURSTS = {
    "interval_s": (Range(1e-3, 1e6, "in s; given in ms?"), "s"),
    "dispersion": (Range(1e-2, 1e7, "variance over mean of arrivals; 1 is Poisson"), ""),
    "requests_per_s": (Range(1e-6, 1e6, "of the whole trace"), "requests/s"),
}
TAIL = 10.0
"""Times a p90, p95 or p99: a mean beyond it would rest on a few requests of a length that there is not."""


def of_level(way: Steps, level: ServiceLevel) -> Broken:
    """What a promise says and cannot be."""
    for kind, bounds in (("ttft", TTFT_MS), ("tpot", TPOT_MS)):
        for i, objective in enumerate(getattr(level, kind)):
            if text := bounds.fault(objective.ms, "ms"):
                yield (*way, kind, i, "ms"), text
            if text := PERCENTILE.fault(objective.percentile, "%"):
                yield (*way, kind, i, "percentile"), text
    yield from of_workload((*way, "workload"), level.workload)


def of_workload(way: Steps, workload: Workload) -> Broken:
    """What a workload says and cannot be."""
    for field in ("mean_input_tokens", "mean_output_tokens"):
        mean, lengths = getattr(workload, field), getattr(workload, field.removeprefix("mean_"))
        if text := TOKENS.fault(mean, "tokens") or _beside(mean, lengths):
            yield (*way, field), text
    for i, burst in enumerate(workload.burstiness):
        for name, (bounds, unit) in BURSTS.items():
            if text := bounds.fault(getattr(burst, name), unit):
                yield (*way, "burstiness", i, name), text


def _beside(mean: float, lengths: Quantiles | None) -> str | None:
    """A share 1 - q of requests is at least as long as the q-quantile, and none is below 0."""
    known = {} if lengths is None else lengths.known
    least = max(((1 - share) * tokens for share, tokens in known.items()), default=0.0)
    most = min((TAIL * tokens for share, tokens in known.items() if share >= 0.9), default=float("inf"))
    return Range(least, most, "by its own quantiles").fault(mean, "tokens")
