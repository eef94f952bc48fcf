"""Harder than the third that every fit holds out: each third, and each whole model, held out in turn."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from schemas.catalog import Gpu
from schemas.performance import Efficiencies
from solver.borrowing import PCIE
from solver.fitting import fit_gpu
from solver.fitting_engine import Engine, fit_client, fit_engine
from solver.kernels import Kernels
from solver.layer_samples import helix, operations
from solver.measurements import Measured
from solver.samples import Sample
from solver.serving_points import FEW_CLIENTS, Point
from solver.shapes import Floats
from solver.validation import Errors, summary

Name = TypeVar("Name", str, tuple[str, str])

OWN_TTFT = f"TTFT as planned, {FEW_CLIENTS} clients"


class Unseen(NamedTuple):
    """Errors at the used loads of a set-up, by constants that have not seen it."""

    point: Point
    phase: str
    """`TTFT`, `TPOT` or `OWN_TTFT`."""
    off: Floats


def each_third(points: Sequence[Point], kernels: Mapping[str, Kernels]) -> list[Unseen]:
    """With each third of the set-ups held out in turn: unlike the one third, these cover every set-up."""
    return list(_in_turn(points, kernels, lambda point: str(point.fold)))


def each_serving_model(points: Sequence[Point], kernels: Mapping[str, Kernels]) -> list[Unseen]:
    """With all set-ups of a model held out in turn."""
    return list(_in_turn(points, kernels, lambda point: point.model))


def _in_turn(
    points: Sequence[Point], kernels: Mapping[str, Kernels], part_of: Callable[[Point], str]
) -> Iterator[Unseen]:
    for turned, engine in _engines(points, kernels, part_of).values():
        refitted = {name: Kernels(k.gpu, engine.with_it(k.efficiency)) for name, k in kernels.items()}
        client = fit_client(turned, refitted)
        for point in turned:
            if point.held_out:
                waits = point.waits(refitted[point.gpu])
                yield Unseen(point, "TTFT", (point.ttft_s(waits, client) / point.ttft)[point.used] - 1)
                yield Unseen(point, "TPOT", (waits.tpot_s / point.tpot)[point.used] - 1)
                yield Unseen(point, OWN_TTFT, (waits.ttft_s / point.ttft)[point.few] - 1)


def engines(points: Sequence[Point], kernels: Mapping[str, Kernels]) -> dict[str, Engine]:
    """What is fitted with all set-ups of a model left out, by model."""
    found = _engines(points, kernels, lambda point: point.model)
    return {model: engine for model, (_, engine) in found.items()}


def _engines(
    points: Sequence[Point], kernels: Mapping[str, Kernels], part_of: Callable[[Point], str]
) -> dict[str, tuple[list[Point], Engine]]:
    """By part held out: all points, with only that part held out, and what the others give."""
    start = next(iter(kernels.values())).efficiency
    judged = [point for point in points if point.used.any()]
    found = {}
    for part in sorted({part_of(point) for point in judged}):
        turned = [replace(point, fold=int(part_of(point) != part)) for point in judged]
        found[part] = turned, fit_engine(turned, kernels, start)
    return found


def by(unseen: Sequence[Unseen], name: Callable[[Unseen], Name]) -> dict[Name, Errors]:
    """Errors of all of the same name as one."""
    off: dict[Name, list[Floats]] = {}
    for one in unseen:
        off.setdefault(name(one), []).append(one.off)
    errors = {key: summary(np.concatenate(off[key])) for key in sorted(off)}
    return {key: found for key, found in errors.items() if found.points}


def each_layer_model(
    measured: Measured, gpu: Gpu, efficiencies: Efficiencies
) -> dict[tuple[str, str], Errors]:
    """Errors of a GPU's layers with each model held out in turn, by source and model.

    All its loads and machines are, of Vidur's also its shapes in other models: harder than
    `validation.compare`, which holds out loads between others of the same curve.
    """
    found = {}
    layers = measured["layers"]
    for (model,), _ in layers.of(gpu=gpu.name).each("model"):
        this = layers.words["model"] == model
        fitted = _refitted(measured.with_table("layers", layers.where(~this)), gpu, efficiencies)
        only = measured.with_table("layers", layers.where(this))
        found["Helix", str(model)] = _errors(helix(only, gpu.name), fitted)
    for (model,), of in measured["operations"].of(gpu=gpu.name).each("model"):
        fitted = _refitted(replace(measured, held_models=(str(model),)), gpu, efficiencies)
        only = measured.with_table("operations", of)
        found["Vidur", str(model)] = _errors(operations(only, gpu.name), fitted)
    return found


def _refitted(measured: Measured, gpu: Gpu, efficiencies: Efficiencies) -> Kernels:
    known = {e.gpu: e for e in efficiencies.gpus}
    return Kernels(gpu, fit_gpu(measured, gpu, known, efficiencies.of(PCIE).all_reduce))


def _errors(samples: Iterator[Sample], fitted: Kernels) -> Errors:
    return summary(np.concatenate([sample.errors(fitted) for sample in samples]))
