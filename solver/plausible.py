"""What a measured time can be: no faster than the hardware, and in step with the throughput beside it.

Wrong by a factor of 1,000 (seconds for milliseconds) is what this must find, so the bounds are wide and
physical, and no fitted figure is in them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from schemas.catalog import Catalog, Gpu, Model, Variant
from solver.points import Point
from solver.shapes import Shape

SLACK = 5.0
"""By how much speculative decoding or a datasheet may make a time shorter than the hardware's least."""
CROWD = 1.25
"""By how much requests that began before the measured time, or end after it, may crowd it."""
THIN = 0.2
"""Share of a closed loop's requests that must be in flight in the mean: its beginning and end are thin."""

STEPS = 5.0
"""A first token takes a step too, so TTFT is no less than about TPOT; this many times less is no measurement.
It finds seconds where TPOT outweighs TTFT and the model is too small for its arithmetic to tell."""


class Wrong(NamedTuple):
    """A field of a point that cannot be: what it is and what was expected."""

    field: str
    value: str
    expected: str


class Range(NamedTuple):
    """From `least` to `most`, and in words why."""

    least: float
    most: float
    because: str

    def holds(self, value: float) -> bool:
        return self.least <= value <= self.most

    def __str__(self) -> str:
        return f"{self.least:.3g} to {self.most:.3g} ({self.because})"


def impossible(point: Point, catalog: Catalog, duration_s: float = float("inf")) -> Iterator[Wrong]:
    """All of a point that a catalog does not know or its hardware cannot reach.

    Args:
        duration_s: how long was measured, where it is known.
    """
    variants = {(m.name, v.name): (m, v) for m in catalog.models for v in m.variants}
    found = variants.get((point.model, point.variant))
    if found is None:
        known = ", ".join("/".join(names) for names in variants)
        yield Wrong("model", f"{point.model}/{point.variant} is not in the catalog", f"one of {known}")
        return
    model, variant = found
    gpu = next((g for g in catalog.gpus if g.name == point.gpu and g.name in variant.gpus), None)
    if gpu is None:
        yield Wrong("gpu", repr(point.gpu), f"one of {', '.join(variant.gpus)}")
    split = list(wrong_split(model, variant, point.tp, point.pp))
    yield from split
    if gpu is not None and not split:
        yield from wrong_times(point, Measured(Shape(model.architecture, variant), gpu, duration_s))


def wrong_split(model: Model, variant: Variant, tp: int, pp: int) -> Iterator[Wrong]:
    """A degree that does not divide the model, or more stages than layers."""
    if not Shape(model.architecture, variant).splits_into(tp):
        yield Wrong("tp", str(tp), f"a degree that divides the heads of {model.name}")
    if pp > model.architecture.layers:
        yield Wrong("pp", str(pp), f"at most the {model.architecture.layers} layers of {model.name}")


def wrong_times(point: Point, on: "Measured") -> Iterator[Wrong]:
    """Times that no such hardware could reach, or that contradict the throughput or each other."""
    could, well = bounds(point, on), True
    for field, value, allowed in (
        ("ttft_ms", point.ttft_ms, could.ttft),
        ("tpot_ms", point.tpot_ms, could.tpot),
    ):
        if value is not None and not allowed.holds(value):
            well = False
            yield Wrong(field, f"{value:g}", f"{allowed}{_unit(value, allowed)}")
    if not well:
        return
    ttft, tpot = point.ttft_ms, point.tpot_ms
    if not could.in_flight.holds(point.in_flight):
        flying = f"{point.in_flight:.3g} requests in flight by throughput x time"
        expected = f"{could.in_flight}: are both times in milliseconds?"
        yield Wrong("ttft_ms" if tpot is None else "tpot_ms", flying, expected)
    elif ttft is not None and tpot is not None and ttft < tpot / STEPS:
        least = f"at least a {STEPS:g}th of TPOT, {tpot / STEPS:.3g}: a first token takes a step too"
        yield Wrong("ttft_ms", f"{ttft:g}", f"{least}; is it in seconds?")


def _unit(value: float, allowed: Range) -> str:
    if allowed.holds(1000 * value):
        return "; is it in seconds?"
    return "; is it in microseconds?" if allowed.holds(value / 1000) else ""


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
