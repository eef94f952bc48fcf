"""A profile put over the roofline: by how much measured seconds differ from modelled ones, load by load.

Each point is modelled as it was measured, with its own lengths and as many sequences in a step as Little's
law says; its factor is the one with which the model gives the measured time. So the corrected model is exact
at every measured (GPU, degree, sequences) and (GPU, degree, prompt tokens), and in between `Curve` says.

- TTFT with one request in flight is the time of a prefill, with the way through the server, which the planner
  then does not add (`Correction.knows_first_token`); with more, waiting is in it, and it says nothing.
- TPOT with one request in flight is the time of a decode step; with more it is that of the mean step, prompts
  of others taken along (phase `both`), once their prefill is corrected.

A factor multiplies the layers' time alone; overheads and the LM head stay as they were fitted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from schemas.catalog import Catalog, Model, Objective, ServiceLevel, Variant, Workload
from schemas.performance import Efficiencies
from solver.profiles import NONE, Correction, Curve, Curves, Point, Profile
from solver.roofline import Roofline, Slot

LEAST = 0.05
"""Of a factor: below it a measured time is about that of the fixed parts alone, which no factor reaches."""


class Compared(NamedTuple):
    """A point's measured and modelled time, and what makes them equal."""

    point: Point
    what: str
    """`TTFT` or `TPOT`."""
    at: float
    """Prompt tokens, or sequences in a stage's step."""
    modelled_ms: float
    """Before the correction of this time."""
    measured_ms: float
    factor: float
    least_ms: float
    """With the least factor there is: about the fixed parts alone. Nothing is as quick as that."""

    @property
    def beyond(self) -> bool:
        """Whether the measured time is out of the factors' reach."""
        return self.measured_ms <= self.least_ms


class Comparison(NamedTuple):
    """All points of one variant, and the correction that follows."""

    points: tuple[Compared, ...]
    correction: Curves


def compare(
    catalog: Catalog, efficiencies: Efficiencies, model: Model, variant: Variant, points: Sequence[Point]
) -> Comparison:
    """What the points of one variant say of its roofline.

    Raises:
        ValueError: there are no efficiencies for a GPU of the points.
    """
    gpus = {gpu.name: gpu for gpu in catalog.gpus}

    def roofline(point: Point, correction: Correction) -> Roofline:
        level = _level(point.input_tokens, point.output_tokens)
        return Roofline(model, variant, level, gpus, efficiencies, point.phase, correction)

    def prefilling(point: Point, factor: float) -> float:
        everywhere = Curve((point.input_tokens,), (factor,))
        return _ttft_s(roofline(point, Curves({}, {(point.gpu, point.tp): everywhere})), point)

    def decoding(point: Point, factor: float) -> float:
        everywhere = Curve((1.0,), (factor,))
        return _tpot_s(
            roofline(point, replace(corrected, decodes={(point.gpu, point.tp): everywhere})), point
        )

    prefills = [
        _compared(point, "TTFT", point.input_tokens, point.ttft_ms, partial(prefilling, point))
        for point in points
        if point.ttft_ms is not None and point.max_concurrency == 1
    ]
    corrected = Curves({}, _curves(prefills))
    decodes = [
        _compared(point, "TPOT", _micro_batch(point), point.tpot_ms, partial(decoding, point))
        for point in points
        if point.tpot_ms is not None
    ]
    correction = replace(corrected, decodes=_curves(decodes))
    return Comparison((*prefills, *decodes), correction)


def correction_of(
    profile: Profile | None, catalog: Catalog, efficiencies: Efficiencies, model: Model, variant: Variant
) -> Curves:
    """The correction of one variant; one that corrects nothing where there is no point of it."""
    if profile is None:
        return NONE
    return compare(catalog, efficiencies, model, variant, profile.of(model.name, variant.name)).correction


def _compared(
    point: Point, what: str, at: float, measured_ms: float, seconds: Callable[[float], float]
) -> Compared:
    """Modelled time is straight in its factor, so two of them give the third."""
    once, twice = 1000 * seconds(1.0), 1000 * seconds(2.0)
    factor = 1 + (measured_ms - once) / (twice - once)
    least_ms = once + (LEAST - 1) * (twice - once)
    return Compared(point, what, at, once, measured_ms, max(LEAST, factor), least_ms)


def _curves(compared: Sequence[Compared]) -> Mapping[tuple[str, int], Curve]:
    kinds = sorted({(c.point.gpu, c.point.tp) for c in compared})
    return {
        kind: Curve.through([(c.at, c.factor) for c in compared if (c.point.gpu, c.point.tp) == kind])
        for kind in kinds
    }


# ------------------------------------------------------------------------------------ a point as modelled


def _level(input_tokens: float, output_tokens: float) -> ServiceLevel:
    """A service of these lengths; what it promises does not matter to its seconds."""
    lengths = Workload(mean_input_tokens=input_tokens, mean_output_tokens=output_tokens, source="measured")
    endless = (Objective(percentile=50, ms=1e12),)
    return ServiceLevel(slo_class="measured", ttft=endless, tpot=endless, workload=lengths)


def _slots(roofline: Roofline, point: Point) -> list[Slot]:
    """The stages of a point: as many layers each, all on one node."""
    link = roofline.gpus[point.gpu].link_gb_s
    return [Slot(point.gpu, point.tp, s == 0, s == point.pp - 1, link) for s in range(point.pp)]


def _micro_batch(point: Point) -> float:
    """Sequences in one stage's step: as many are in each of the others'."""
    return 1.0 if point.max_concurrency == 1 else max(1.0, point.decoding / point.pp)


def _ttft_s(roofline: Roofline, point: Point) -> float:
    layers = roofline.model.architecture.layers / point.pp
    return sum(float(roofline.prefill_s(slot, layers)) for slot in _slots(roofline, point))


def _tpot_s(roofline: Roofline, point: Point) -> float:
    layers, batch = roofline.model.architecture.layers / point.pp, np.array([[_micro_batch(point)]])
    alone = point.max_concurrency == 1
    decode = roofline.decode_step(point.gpu, point.tp, batch)
    step = decode if alone else roofline.round(point.gpu, point.tp, batch).step
    seconds = [np.asarray(roofline.seconds(slot, layers, step)) for slot in _slots(roofline, point)]
    return sum(float(one.item()) for one in seconds)
