"""What a measured time can be: no faster than the hardware, and in step with the throughput beside it.

Wrong by a factor of 1,000 (seconds for milliseconds) is what this must find, so the bounds are wide and
physical, and no fitted figure is in them.
"""

from dataclasses import dataclass
from typing import NamedTuple

from schemas.catalog import Gpu
from solver.profiles import Point
from solver.shapes import Shape

SLACK = 5.0
"""By how much speculative decoding or a datasheet may make a time shorter than the hardware's least."""
CROWD = 1.25
"""By how much requests that began before the measured time, or end after it, may crowd it."""
THIN = 0.2
"""Share of a closed loop's requests that must be in flight in the mean: its beginning and end are thin."""


class Range(NamedTuple):
    """From `least` to `most`, and in words why."""

    least: float
    most: float
    because: str

    def holds(self, value: float) -> bool:
        return self.least <= value <= self.most

    def __str__(self) -> str:
        return f"{self.least:.3g} to {self.most:.3g} ({self.because})"


class Bounds(NamedTuple):
    """Of milliseconds, and of the mean requests in flight that times and throughput come to."""

    ttft: Range
    tpot: Range
    in_flight: Range


@dataclass(frozen=True)
class Measured:
    """What a point was measured on, and for how many seconds."""

    shape: Shape
    gpu: Gpu
    duration_s: float


def bounds(point: Point, on: Measured) -> Bounds:
    """The ranges of a point's figures."""
    longest_s = on.duration_s
    why = "the whole measured time"
    if point.max_concurrency is not None:
        # Little's law: this many in flight, served at this rate, take no longer in the mean.
        little_s = CROWD * point.max_concurrency / point.request_throughput
        if little_s < longest_s:
            longest_s, why = little_s, "requests in flight over throughput"
    steps = max(1.0, point.output_tokens - 1)
    return Bounds(
        ttft=Range(least_ttft_ms(point, on) / SLACK, 1000 * longest_s, f"ms, by arithmetic and {why}"),
        tpot=Range(least_tpot_ms(point, on) / SLACK, 1000 * longest_s / steps, f"ms, by bandwidth and {why}"),
        in_flight=_in_flight(point),
    )


def _in_flight(point: Point) -> Range:
    if point.max_concurrency is None:
        return Range(0.0, float("inf"), "an open loop")
    crowd = CROWD * point.max_concurrency
    if point.request_rate is not None or point.phase == "decode":
        return Range(0.0, crowd, "max_concurrency")  # the rest waits for its turn, or is prefilled elsewhere
    return Range(THIN * point.max_concurrency, crowd, "max_concurrency")


def least_tpot_ms(point: Point, on: Measured) -> float:
    """Reading the weights of a lone token once, at full memory bandwidth; stages follow one another."""
    layers = on.shape.arch.layers * on.shape.bytes_read(1.0)
    return 1000 * layers / (point.tp * on.gpu.bandwidth_gb_s * 1e9)


def least_ttft_ms(point: Point, on: Measured) -> float:
    """The matrix products of the prompt at the GPU's highest rate, all stages at work at once."""
    flops = 2 * on.shape.arch.layers * on.shape.active_weights * point.input_tokens
    peak = max(on.gpu.bf16_tflops, on.gpu.fp8_tflops or 0.0, on.gpu.fp4_tflops or 0.0)
    return 1000 * flops / (point.tp * point.pp * peak * 1e12)
