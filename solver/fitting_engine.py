"""Fit what is not the GPU's: the engine's own work in a step, a first token's way, clients, an engine's age.

The first two are part of the planner's model. The other two only let measurements be compared with it: they
say how a benchmark or an engine of 2023 differs from what is planned for.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from schemas.performance import Efficiency, FirstToken, Overhead
from solver.kernels import Kernels
from solver.layer_samples import Eager, Steps
from solver.least_squares import evidence, solve
from solver.serving_points import Client, Point
from solver.shapes import Floats

NONE = 1e-9
"""Seconds, for nothing: values are sought on a log scale."""


def fit_overhead(points: Sequence[Point], kernels: Mapping[str, Kernels], start: Overhead) -> Overhead:
    """From times per output token, of all GPUs with serving points together; `start` if there are none."""
    if not any(point.used.any() and not point.held_out for point in points):
        return start
    idle = start.model_copy(update={"step_s": 0.0, "sequence_s": 0.0})
    base = [point.waits(_with(kernels[point.gpu], overhead=idle)).tpot_s for point in points]

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


def fit_first_token(points: Sequence[Point], kernels: Mapping[str, Kernels], start: FirstToken) -> FirstToken:
    """From times to first token, of all GPUs with serving points together; `start` if there are none.

    What the benchmark's clients wait for each other is fitted beside it, and left behind.
    """
    if not any(point.used.any() and not point.held_out for point in points):
        return start
    bare = start.model_copy(update={"server_s": 0.0, "own": 1.0})
    known = [(point, point.waits(_with(kernels[point.gpu], first_token=bare))) for point in points]

    def errors(values: Floats, held_out: bool) -> Floats:
        server, own, *clients = (float(value) for value in values)
        client = Client(*clients)
        parts = [
            np.log((server + own * w.ttft_s + client.waits_s(p.loads, w.prompt_s)) / p.ttft)[p.used]
            for p, w in known
            if p.held_out == held_out
        ]
        return np.concatenate([*parts, np.zeros(0)])

    def fitted_on(values: Floats) -> Floats:
        return errors(values, held_out=False)

    bounds = [(NONE, 0.2), (1.0, 5.0), *CLIENT_BOUNDS]
    found = np.array(solve(fitted_on, [start.server_s, start.own, *CLIENT_START], bounds))
    on = " and ".join(sorted({point.gpu for point in points}))
    off = np.expm1(errors(found, held_out=True))
    said = evidence(
        f"vLLM's times to first token on {on}, with what clients wait for each other beside",
        len(fitted_on(found)),
        off,
    )
    server, own = (float(value) for value in found[:2])
    return FirstToken(server_s=server if server > 2 * NONE else 0.0, own=own, evidence=said)


def _with(kernels: Kernels, **parts: Overhead | FirstToken) -> Kernels:
    """The same with other parts that are not the GPU's."""
    return Kernels(kernels.gpu, kernels.efficiency.model_copy(update=parts))


CLIENT_START, CLIENT_BOUNDS = (1e-4, 0.05), ((NONE, 0.01), (NONE, 0.5))


def fit_client(points: Sequence[Point], kernels: Mapping[str, Kernels]) -> Client:
    """What the benchmark adds to times to first token."""
    fitted_on = [(point, point.waits(kernels[point.gpu])) for point in points if not point.held_out]

    def errors(values: Floats) -> Floats:
        client = Client(*(float(value) for value in values))
        parts = [np.log(p.ttft_s(waits, client) / p.ttft)[p.used] for p, waits in fitted_on]
        return np.concatenate(parts)

    return Client(*solve(errors, CLIENT_START, CLIENT_BOUNDS))


class Engine(NamedTuple):
    """What serving points say that is not the GPU's."""

    overhead: Overhead
    first_token: FirstToken

    def with_it(self, efficiency: Efficiency) -> Efficiency:
        return efficiency.model_copy(update=self._asdict())


def fit_engine(points: Sequence[Point], kernels: Mapping[str, Kernels], start: Efficiency) -> Engine:
    """Both; those of `start` where there are no points."""
    overhead = fit_overhead(points, kernels, start.overhead)
    stepping = {name: _with(k, overhead=overhead) for name, k in kernels.items()}
    return Engine(overhead, fit_first_token(points, stepping, start.first_token))


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
