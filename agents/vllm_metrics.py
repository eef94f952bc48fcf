"""vLLM's `/metrics` as telemetry: what happened between two readings, as far as they tell it. Pure.

What it cannot tell: refusals, and arrivals as such. An arrival is taken from what it leads to: one more that
runs or waits, or one that has ended. Token figures are those of ended requests, aborted ones included.
Latencies come as histograms, so a sketch is as fine as their buckets.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from schemas.catalog import Phase
from schemas.sketch import Sketch

Buckets = dict[float, float]
"""Upper bound in seconds -> number of values up to it, as Prometheus counts."""

_GAUGES = {"vllm:num_requests_running", "vllm:num_requests_waiting"}
_SUCCESS = "vllm:request_success_total"
_SUMS = {
    "vllm:request_prompt_tokens_sum": "input_tokens",
    "vllm:request_generation_tokens_sum": "output_tokens",
    "vllm:prefix_cache_hits_total": "cached_tokens",
}
_BUCKETS = {
    "vllm:time_to_first_token_seconds_bucket": "ttft",
    "vllm:request_time_per_output_token_seconds_bucket": "tpot",
}
_WANTED = _GAUGES | {_SUCCESS} | _SUMS.keys() | _BUCKETS.keys()
_UNFINISHED = frozenset({"abort", "error"})
"""Reasons for which a request ended unfinished."""


class NoVllm(ValueError):
    """A text that is no reading of vLLM; it says what is missing."""


@dataclass
class Reading:
    """What one engine had counted at one moment, over all its models and engine cores."""

    in_flight: float = 0.0
    """Requests that run or wait."""
    finished: float = 0.0
    unfinished: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    cached_tokens: float = 0.0
    ttft: Buckets = field(default_factory=dict)
    tpot: Buckets = field(default_factory=dict)

    def counters(self) -> tuple[float, ...]:
        """All that can only grow while the engine lives."""
        grown = (self.finished, self.unfinished, self.input_tokens, self.output_tokens, self.cached_tokens)
        return (*grown, self.ttft.get(math.inf, 0.0), self.tpot.get(math.inf, 0.0))


def read(text: str) -> dict[str, Reading]:
    """Readings by `model_name`.

    Raises:
        NoVllm: it is not in Prometheus' text format, or without vLLM's figures.
    """
    readings: dict[str, Reading] = {}
    lines = [line for line in text.splitlines() if line.partition("{")[0] in _WANTED]
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                _add(readings.setdefault(sample.labels["model_name"], Reading()), sample)
    except (KeyError, ValueError) as error:
        raise NoVllm(f"metrics: {error}, expected vLLM's in Prometheus' text format") from error
    if not readings:
        raise NoVllm("metrics: none of vLLM's, expected vllm:num_requests_running and others")
    return readings


def _add(reading: Reading, sample: Sample) -> None:
    if sample.name in _GAUGES:
        reading.in_flight += sample.value
    elif sample.name == _SUCCESS:
        if sample.labels.get("finished_reason") in _UNFINISHED:
            reading.unfinished += sample.value
        else:
            reading.finished += sample.value
    elif sample.name in _SUMS:
        name = _SUMS[sample.name]
        setattr(reading, name, getattr(reading, name) + sample.value)
    elif sample.name in _BUCKETS:
        buckets: Buckets = getattr(reading, _BUCKETS[sample.name])
        bound = float(sample.labels["le"])
        buckets[bound] = buckets.get(bound, 0.0) + sample.value


def merged(readings: Mapping[str, Reading]) -> Reading:
    """The readings of all models of an engine as one."""
    whole = Reading()
    for reading in readings.values():
        for name in ("in_flight", "finished", "unfinished", *_SUMS.values()):
            setattr(whole, name, getattr(whole, name) + getattr(reading, name))
        for name in _BUCKETS.values():
            buckets: Buckets = getattr(whole, name)
            for bound, count in getattr(reading, name).items():
                buckets[bound] = buckets.get(bound, 0.0) + count
    return whole


class Differences:
    """Turns the readings of one engine into what happened between them."""

    def __init__(self, phase: Phase = "both") -> None:
        self._phase = phase
        self._last: Reading | None = None
        self._owed = 0.0
        """Arrivals counted too many: gauges and counters are not read at quite the same moment."""

    def to(self, now: Reading) -> dict[str, Any] | None:
        """Fields of a telemetry sample; None for the first reading. A new start begins at zero."""
        last, self._last = self._last, now
        if last is None:
            return None
        if any(a < b for a, b in zip(now.counters(), last.counters(), strict=True)):
            last, self._owed = Reading(), 0.0
        ended = now.finished + now.unfinished - last.finished - last.unfinished
        arrived = ended + now.in_flight - last.in_flight - self._owed
        self._owed = max(0.0, -arrived)
        input_tokens = round(now.input_tokens - last.input_tokens)
        fields: dict[str, Any] = {
            "offered": round(max(0.0, arrived)),
            "input_tokens": input_tokens,
            "cached_input_tokens": min(input_tokens, round(now.cached_tokens - last.cached_tokens)),
            "ttft_ms": sketch(last.ttft, now.ttft),
        }
        if self._phase == "prefill":
            return fields
        generated = {
            "finished": round(now.finished - last.finished),
            "output_tokens": round(now.output_tokens - last.output_tokens),
            "tpot_ms": sketch(last.tpot, now.tpot),
        }
        # What a decode instance is given was offered to a prefill instance before, and counted there.
        return {"offered": 0, **generated} if self._phase == "decode" else {**fields, **generated}


def sketch(before: Buckets, after: Buckets) -> Sketch:
    """The values that came between two histograms, in milliseconds, spread evenly over their buckets."""
    return Sketch.of(_values(before, after))


def _values(before: Buckets, after: Buckets) -> Iterator[float]:
    low, below = 0.0, 0.0
    for high in sorted(after):
        up_to = after[high] - before.get(high, 0.0)
        count = round(up_to - below)
        # Buckets grow in proportion, so values are spread in proportion; the last has no upper bound.
        first, last = low or high / 2, low if math.isinf(high) else high
        if math.isinf(first):
            return  # one bucket for everything says nothing
        for index in range(count):
            yield 1000 * first * (last / first) ** ((index + 0.5) / count)
        low, below = high, up_to
