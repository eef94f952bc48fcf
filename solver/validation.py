"""How far the model is off, by level, GPU and phase: `docs/performance-model.md` shows it, a test bounds it.

Four levels: single kernels, layers and steps, serving points (times to first token and per output token), and
of these the planner's own time to first token, without what clients wait for each other. All of it is
recomputed from the measurements; errors are modelled over measured, less 1: negative ones are optimistic.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from schemas.catalog import Gpu
from schemas.performance import Efficiencies
from solver.fitting_engine import fit_client, fit_eager
from solver.kernels import Kernels
from solver.layer_samples import Eager, layer_samples, steps
from solver.measurements import Measured
from solver.samples import Sample, collectives, kernel_samples
from solver.serving_points import FEW_CLIENTS, Client, Point, Waits, points
from solver.shapes import Flags, Floats

Level = Literal["kernel", "layer", "serving", "planner"]
MEDIAN_AT_MOST = {"layer": 0.15, "serving": 0.20, "planner": 0.20}
P90_AT_MOST = {"layer": 0.25, "serving": 0.50, "planner": 0.50}
OPTIMISTIC_AT_MOST = 0.10

AGED = "Splitwise"
"""Its steps as an engine of 2023 takes them (`Eager`)."""
RAW = "Splitwise, raw"
"""The same with nothing but the planner's own constants."""
FEW = f"vLLM, {FEW_CLIENTS} clients"


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


def exceeds(level: str, errors: Errors) -> bool:
    """Whether an error is above a bound of its level; nothing held out exceeds nothing."""
    slow = errors.median > MEDIAN_AT_MOST[level] or errors.p90 > P90_AT_MOST[level]
    return bool(errors.points) and (slow or errors.bias < -OPTIMISTIC_AT_MOST)


def together(comparisons: Sequence[Comparison], level: Level, gpu: str, but: str = RAW) -> Errors:
    """All held-out points of a level and GPU as one, `but` those of one source: the same points otherwise."""
    parts = [c.off() for c in comparisons if c.level == level and c.gpu == gpu and c.source != but]
    return summary(np.concatenate(parts) if parts else np.zeros(0))


def compare(measured: Measured, gpus: Sequence[Gpu], efficiencies: Efficiencies) -> list[Comparison]:
    """All levels of all GPUs that were measured."""
    kernels = {gpu.name: Kernels(gpu, efficiencies.of(gpu.name)) for gpu in gpus}
    found: list[Comparison] = []
    for name, of_gpu in kernels.items():
        found += _kernels(measured, name, of_gpu)
        found += of_samples("layer", name, layer_samples(measured, name), of_gpu)
        found += _steps(measured, name, of_gpu)
    return found + list(_serving(measured, kernels))


def of_samples(level: Level, gpu: str, samples: Iterable[Sample], kernels: Kernels) -> list[Comparison]:
    """What constants say of samples."""
    return [_of(level, gpu, sample, kernels) for sample in samples]


def eager(measured: Measured, gpu: str, kernels: Kernels) -> Eager:
    """The engine that Splitwise measured on this GPU."""
    return fit_eager(list(steps(measured, gpu)), kernels)


def client(measured: Measured, kernels: Mapping[str, Kernels]) -> Client:
    """The benchmark behind the serving points."""
    return fit_client(list(points(measured, {name: k.gpu for name, k in kernels.items()})), kernels)


def _kernels(measured: Measured, gpu: str, kernels: Kernels) -> Iterator[Comparison]:
    """As the benchmark ran them: fp8 products are compared before activations are fused, in `Evidence`."""
    for sample in kernel_samples(measured, gpu):
        if sample.what != "matmul_fp8":
            yield _of("kernel", gpu, sample, kernels)
    for count, sample in collectives(measured, gpu):
        yield _of("kernel", gpu, sample, kernels, f"all_reduce over {count}")


def _steps(measured: Measured, gpu: str, kernels: Kernels) -> Iterator[Comparison]:
    """Twice: as the engine that was measured takes them, and as the planner would say."""
    known = list(steps(measured, gpu))
    if known:
        engine = fit_eager(known, kernels)
        for s in known:
            plain = np.asarray(s.sample.predict(kernels))
            for source, modelled in ((AGED, engine.seconds(plain, s.layers)), (RAW, plain)):
                what, sample = s.sample.what, s.sample
                yield Comparison("layer", gpu, what, source, sample.seconds, modelled, sample.held_out)


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
        mine = [(p, p.waits(kernels[gpu])) for p in known if p.gpu == gpu]
        yield _points("serving", gpu, "TTFT", [(p, p.ttft, p.ttft_s(w, benchmark)) for p, w in mine])
        yield _points("serving", gpu, "TPOT", [(p, p.tpot, w.tpot_s) for p, w in mine])
        yield from planner(gpu, mine)


def planner(gpu: str, known: Sequence[tuple[Point, Waits]]) -> Iterator[Comparison]:
    """The planner's own time to first token, which knows of no other clients: of all loads and the least."""
    beside = [(p, p.ttft, w.ttft_s) for p, w in known]
    yield _points("planner", gpu, "TTFT", beside)
    yield _points("planner", gpu, "TTFT", beside, FEW)


def _points(
    level: Level, gpu: str, phase: str, beside: Sequence[tuple[Point, Floats, Floats]], source: str = "vLLM"
) -> Comparison:
    """`beside`: measured and modelled seconds of each point."""
    used = np.concatenate([p.few if source == FEW else p.used for p, _, _ in beside])
    held = np.concatenate([np.full(len(p.tpot), p.held_out) for p, _, _ in beside])
    measured, modelled = (np.concatenate([row[i] for row in beside]) for i in (1, 2))
    return Comparison(level, gpu, phase, source, measured[used], modelled[used], held[used])
