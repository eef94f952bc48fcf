"""Fit what is not the GPU's: the engine's own work in a step, a benchmark's clients, an engine's age.

The first is part of the planner's model. The other two only let measurements be compared with it: they say
how a benchmark or an engine of 2023 differs from what is planned for.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from schemas.performance import Overhead
from solver.kernels import Kernels
from solver.layer_samples import Eager, Steps
from solver.least_squares import evidence, solve
from solver.serving_points import Client, Point, ttft_s
from solver.shapes import Floats

NONE = 1e-9
"""Seconds, for nothing: values are sought on a log scale."""


def fit_overhead(points: Sequence[Point], kernels: Mapping[str, Kernels], start: Overhead) -> Overhead:
    """From times per output token, of all GPUs with serving points together; `start` if there are none."""
    if not any(point.used.any() and not point.held_out for point in points):
        return start
    base = [point.tpot_s(_idle(kernels[point.gpu], start)) for point in points]

    def errors(values: Floats, held_out: bool) -> Floats:
        parts = [
            np.log((alone + values[0] + values[1] * point.loads.clients) / point.tpot)[point.used]
            for alone, point in zip(base, points, strict=True)
            if point.held_out == held_out
        ]
        return np.concatenate([*parts, np.zeros(0)])

    def fitted_on(values: Floats) -> Floats:
        return errors(values, held_out=False)

    step, sequence = solve(fitted_on, [1e-3, 2e-5], [(NONE, 0.01), (NONE, 1e-3)])
    step, sequence = (value if value > 2 * NONE else 0.0 for value in (step, sequence))
    found = np.array([step, sequence])
    on = " and ".join(sorted({point.gpu for point in points}))
    off = np.expm1(errors(found, held_out=True))
    said = evidence(f"vLLM's times per output token on {on}", len(fitted_on(found)), off)
    return Overhead(step_s=step, sequence_s=sequence, evidence=said)


def _idle(kernels: Kernels, overhead: Overhead) -> Kernels:
    none = overhead.model_copy(update={"step_s": 0.0, "sequence_s": 0.0})
    return Kernels(kernels.gpu, kernels.efficiency.model_copy(update={"overhead": none}))


def fit_client(points: Sequence[Point], kernels: Mapping[str, Kernels]) -> Client:
    """What the benchmark adds to times to first token."""
    fitted_on = [(point, point.parts_s(kernels[point.gpu])) for point in points if not point.held_out]

    def errors(values: Floats) -> Floats:
        client = Client(*(float(value) for value in values))
        parts = [
            np.log(ttft_s(*seconds, point.loads.clients, client) / point.ttft)[point.used]
            for point, seconds in fitted_on
        ]
        return np.concatenate(parts)

    bounds = [(NONE, 0.2), (NONE, 0.01), (1.0, 5.0), (NONE, 0.5)]
    return Client(*solve(errors, [0.02, 1e-4, 2.0, 0.05], bounds))


def fit_eager(steps: Sequence[Steps], kernels: Kernels) -> Eager:
    """How an engine without CUDA graphs and today's kernels differs."""
    modelled = [np.asarray(s.sample.predict(kernels)) for s in steps]

    def errors(values: Floats) -> Floats:
        eager = Eager(*(float(value) for value in values))
        parts = [
            np.log(eager.seconds(m, s.layers) / s.sample.seconds)[~s.sample.held_out]
            for m, s in zip(modelled, steps, strict=True)
        ]
        return np.concatenate(parts)

    return Eager(*solve(errors, [1.2, 4e-4], [(0.5, 3.0), (1e-6, 0.01)]))
