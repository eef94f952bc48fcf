"""How far the model is off, by level, GPU and phase: `docs/performance-model.md` shows it, a test bounds it.

Three levels: single kernels, layers and steps, serving points (times to first token and per output token).
All of it is recomputed from the measurements; errors are modelled over measured, less 1, so that negative
ones are optimistic.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from schemas.catalog import Gpu
from schemas.performance import Efficiencies
from solver.borrowing import PCIE
from solver.fitting import fit_gpu
from solver.fitting_engine import fit_client, fit_eager, fit_overhead
from solver.kernels import Kernels
from solver.layer_samples import Eager, helix, layer_samples, steps
from solver.measurements import Measured
from solver.samples import Sample, collectives, kernel_samples
from solver.serving_points import Client, Point, points
from solver.shapes import Flags, Floats

Level = Literal["kernel", "layer", "serving"]
MEDIAN_AT_MOST = {"layer": 0.15, "serving": 0.20}
P90_AT_MOST = {"layer": 0.25, "serving": 0.50}
OPTIMISTIC_AT_MOST = 0.10


class Errors(NamedTuple):
    """Of points held out, unless said otherwise."""

    points: int
    median: float
    """Of absolute errors."""
    p90: float
    bias: float
    """Median of signed errors."""


@dataclass(frozen=True)
class Comparison:
    """Modelled beside measured seconds."""

    level: Level
    gpu: str
    phase: str
    source: str
    measured: Floats
    modelled: Floats
    held_out: Flags

    def errors(self, held_out: bool = True) -> Errors:
        return summary(self.off(held_out))

    def off(self, held_out: bool = True) -> Floats:
        judged = self.held_out == held_out
        return np.asarray(self.modelled[judged] / self.measured[judged] - 1)


def summary(off: Floats) -> Errors:
    """Of relative errors; NaN where there are none."""
    if not len(off):
        return Errors(0, np.nan, np.nan, np.nan)
    absolute = np.abs(off)
    return Errors(
        len(off), float(np.median(absolute)), float(np.quantile(absolute, 0.9)), float(np.median(off))
    )


def together(comparisons: Sequence[Comparison], level: Level, gpu: str) -> Errors:
    """All held-out points of a level and GPU as one."""
    parts = [c.off() for c in comparisons if c.level == level and c.gpu == gpu]
    return summary(np.concatenate(parts) if parts else np.zeros(0))


def compare(measured: Measured, gpus: Sequence[Gpu], efficiencies: Efficiencies) -> list[Comparison]:
    """All levels of all GPUs that were measured."""
    kernels = {gpu.name: Kernels(gpu, efficiencies.of(gpu.name)) for gpu in gpus}
    found: list[Comparison] = []
    for name, of_gpu in kernels.items():
        found += _kernels(measured, name, of_gpu)
        found += [_of("layer", name, s, of_gpu) for s in layer_samples(measured, name)]
        found += _steps(measured, name, of_gpu)
    return found + list(_serving(measured, kernels))


def eager(measured: Measured, gpu: str, kernels: Kernels) -> Eager:
    """The engine that Splitwise measured on this GPU."""
    return fit_eager(list(steps(measured, gpu)), kernels)


def client(measured: Measured, kernels: Mapping[str, Kernels]) -> Client:
    """The benchmark behind the serving points."""
    return fit_client(list(points(measured, {name: k.gpu for name, k in kernels.items()})), kernels)


def each_third(points_: Sequence[Point], kernels: Mapping[str, Kernels]) -> dict[str, Errors]:
    """TTFT and TPOT errors with each third of the set-ups held out in turn, by phase and GPU.

    Unlike the one third that `compare` holds out, these cover every set-up, the awkward ones too.
    """
    off: dict[str, list[Floats]] = {}
    for turn in range(3):
        turned = [replace(p, fold=(p.fold + turn) % 3) for p in points_]
        start = next(iter(kernels.values())).efficiency.overhead
        overhead = fit_overhead(turned, kernels, start)
        refitted = {
            name: Kernels(k.gpu, k.efficiency.model_copy(update={"overhead": overhead}))
            for name, k in kernels.items()
        }
        benchmark = fit_client(turned, refitted)
        for p in turned:
            if p.held_out:
                of_gpu = refitted[p.gpu]
                ttft, tpot = p.ttft_s(of_gpu, benchmark) / p.ttft, p.tpot_s(of_gpu) / p.tpot
                off.setdefault(f"TTFT on {p.gpu}", []).append(ttft[p.used] - 1)
                off.setdefault(f"TPOT on {p.gpu}", []).append(tpot[p.used] - 1)
    return {name: summary(np.concatenate(parts)) for name, parts in sorted(off.items())}


def each_model(measured: Measured, gpu: Gpu, efficiencies: Efficiencies) -> dict[str, Errors]:
    """Errors of a GPU's layers with each model held out in turn, by model: all its loads and machines.

    Harder than `compare`, which holds out loads between others of the same curve.
    """
    layers = measured["layers"]
    known = {e.gpu: e for e in efficiencies.gpus}
    found = {}
    for (model,), _ in layers.of(gpu=gpu.name).each("model"):
        this = layers.words["model"] == model
        others = measured.with_table("layers", layers.where(~this))
        fitted = Kernels(gpu, fit_gpu(others, gpu, known, efficiencies.of(PCIE).all_reduce))
        only = measured.with_table("layers", layers.where(this))
        off = [sample.errors(fitted) for sample in helix(only, gpu.name)]
        found[str(model)] = summary(np.concatenate(off))
    return found


def _kernels(measured: Measured, gpu: str, kernels: Kernels) -> Iterator[Comparison]:
    """As the benchmark ran them: fp8 products are compared before activations are fused, in `Evidence`."""
    for sample in kernel_samples(measured, gpu):
        if sample.what != "matmul_fp8":
            yield _of("kernel", gpu, sample, kernels)
    for count, sample in collectives(measured, gpu):
        yield _of("kernel", gpu, sample, kernels, f"all_reduce over {count}")


def _steps(measured: Measured, gpu: str, kernels: Kernels) -> Iterator[Comparison]:
    known = list(steps(measured, gpu))
    if known:
        engine = fit_eager(known, kernels)
        for s in known:
            modelled = engine.seconds(s.sample.predict(kernels), s.layers)
            yield Comparison(
                "layer", gpu, s.sample.what, s.sample.source, s.sample.seconds, modelled, s.sample.held_out
            )


def _of(level: Level, gpu: str, sample: Sample, kernels: Kernels, phase: str | None = None) -> Comparison:
    modelled = np.asarray(sample.predict(kernels))
    return Comparison(
        level, gpu, phase or sample.what, sample.source, sample.seconds, modelled, sample.held_out
    )


def _serving(measured: Measured, kernels: Mapping[str, Kernels]) -> Iterator[Comparison]:
    known = list(points(measured, {name: k.gpu for name, k in kernels.items()}))
    if not any(p.used.any() for p in known):
        return
    benchmark = fit_client(known, kernels)
    for gpu in sorted({p.gpu for p in known}):
        mine = [p for p in known if p.gpu == gpu]
        ttft = [p.ttft_s(kernels[gpu], benchmark) for p in mine]
        tpot = [p.tpot_s(kernels[gpu]) for p in mine]
        yield _points(gpu, "TTFT", mine, [p.ttft for p in mine], ttft)
        yield _points(gpu, "TPOT", mine, [p.tpot for p in mine], tpot)


def _points(
    gpu: str, phase: str, known: Sequence[Point], measured: Sequence[Floats], modelled: Sequence[Floats]
) -> Comparison:
    used = np.concatenate([p.used for p in known])
    held = np.concatenate([np.full(len(p.tpot), p.held_out) for p in known])
    return Comparison(
        "serving",
        gpu,
        phase,
        "vLLM",
        np.concatenate(measured)[used],
        np.concatenate(modelled)[used],
        held[used],
    )
