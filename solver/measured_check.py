"""Are measurements to fit on plausible? No faster than their hardware, nor hundreds of times slower.

The shipped tables come to 0.3 to 3.5 times the least that arithmetic and memory allow at the best point of a
GPU, so a wrong unit, a factor of 1,000, stands out. No fitted figure is in these bounds.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from schemas.catalog import Gpu
from solver.measurements import Measured, Table
from solver.plausible import SLACK, STEPS
from solver.samples import products
from solver.shapes import Flags, Floats

LAUNCH_S = 1e-6
"""No kernel is over sooner."""
SLOWEST = 200.0
"""Times the least at a GPU's best point: beyond it is another unit."""
SLOWEST_TPOT = 2000.0
"""The same of serving, where hundreds of sequences share a step."""
TOLD = 20
"""Rows of a column that are told."""
WHOLE = ("tp", "gpus", "sequences", "heads", "kv_heads", "experts", "top_k", "layers")
NARROWEST = 4.0
"""Bits: what a serving point's weights have at the least."""


class Impossible(NamedTuple):
    """A cell that cannot be: its table, its row from 0, its column, and what was expected."""

    table: str
    row: int
    column: str
    value: str
    expected: str


class _Times(NamedTuple):
    """A column of times, and the least that each can be."""

    table: str
    column: str
    unit: str
    seconds: Floats
    least_s: Floats
    slowest: float = SLOWEST


def impossible(measured: Measured, gpus: Mapping[str, Gpu]) -> Iterator[Impossible]:
    """All that cannot be; times only where names are known, `TOLD` rows of a column at most."""
    unknown = [
        wrong
        for name, table in measured.tables.items()
        for wrong in (*_unknown(measured, name, table, gpus), *_broken(name, table))
    ]
    yield from unknown
    if not unknown:
        for times in _times(measured, gpus):
            if len(times.seconds):
                yield from _too_fast(times)
                yield from _too_slow(times, measured[times.table].words["gpu"])
        yield from _first_tokens(measured["serving"])


def _unknown(measured: Measured, name: str, table: Table, gpus: Mapping[str, Gpu]) -> Iterator[Impossible]:
    for column, known in (
        ("gpu", list(gpus)),
        ("model", list(measured.architectures)),
        ("phase", ["prompt" if name == "layers" else "prefill", "decode"]),
    ):
        if column in table.words:
            words = table.words[column]
            expected = f"one of {', '.join(known)}"
            yield from _cells(name, column, ~np.isin(words, known), words, expected)


def _broken(name: str, table: Table) -> Iterator[Impossible]:
    for column in WHOLE:
        if column in table.numbers:
            values = table[column]
            yield from _cells(name, column, values != np.round(values), values, "a whole number")


def _too_fast(times: _Times) -> Iterator[Impossible]:
    scale = {"us": 1e6, "ms": 1e3}[times.unit]
    for i in np.flatnonzero(times.seconds < times.least_s / SLACK)[:TOLD].tolist():
        least, given = times.least_s[i] * scale / SLACK, times.seconds[i] * scale
        hint = f"; is it in {'s' if times.unit == 'ms' else 'ms'}?" if 1000 * given > least else ""
        expected = f"at least {least:.3g} {times.unit}, by arithmetic and bandwidth{hint}"
        yield Impossible(times.table, i, times.column, f"{given:g}", expected)


def _too_slow(times: _Times, gpus: Floats | np.ndarray) -> Iterator[Impossible]:
    """The best row of a GPU, where even that is slower than anything is."""
    scale = {"us": 1e6, "ms": 1e3}[times.unit]
    ratio = times.seconds / times.least_s
    for gpu in np.unique(gpus):
        rows = np.flatnonzero(gpus == gpu)
        best = int(rows[np.argmin(ratio[rows])])
        if ratio[best] > times.slowest:
            most = times.slowest * times.least_s[best] * scale
            hint = "; is it in microseconds?" if times.unit == "ms" else "; is it in nanoseconds?"
            expected = f"at most {most:.3g} {times.unit} at the best point of {gpu}{hint}"
            given = f"{times.seconds[best] * scale:g}"
            yield Impossible(times.table, best, times.column, given, expected)


def _first_tokens(t: Table) -> Iterator[Impossible]:
    late = t["ttft_ms"] < t["tpot_ms"] / STEPS
    expected = f"at least a {STEPS:g}th of tpot_ms: a first token takes a step too; is it in seconds?"
    yield from _cells("serving", "ttft_ms", late, t["ttft_ms"], expected)


def _cells(table: str, column: str, wrong: Flags, values: np.ndarray, expected: str) -> Iterator[Impossible]:
    for i in np.flatnonzero(wrong)[:TOLD].tolist():
        value = values[i]
        yield Impossible(
            table, i, column, repr(str(value)) if values.dtype.kind == "U" else f"{value:g}", expected
        )


# ----------------------------------------------------------------------- the least that a time can be


def _times(measured: Measured, gpus: Mapping[str, Gpu]) -> Iterator[_Times]:
    yield from _kernels(measured, gpus)
    yield from _models(measured, gpus)


def _kernels(measured: Measured, gpus: Mapping[str, Gpu]) -> Iterator[_Times]:
    t = measured["gemm"]
    weights = t["columns"] * t["inner"]
    least = _least(t, gpus, flops=2 * t["rows"] * weights, moved=weights * t["weight_bits"] / 8)
    yield _Times("gemm", "us", "us", t["us"] / 1e6, least)
    t = measured["attention"]
    seen = np.where(t["window"] > 0, np.minimum(t["window"], t["tokens"]), t["tokens"])
    decodes = t.words["phase"] == "decode"
    flops = 2 * t["sequences"] * t["tokens"] * seen * t["heads"] * t["head_dim"]  # causal: half of all pairs
    moved = 2 * 2 * t["sequences"] * seen * t["kv_heads"] * t["head_dim"]
    least = _least(t, gpus, flops=np.where(decodes, 0.0, flops), moved=np.where(decodes, moved, 0.0))
    yield _Times("attention", "us", "us", t["us"] / 1e6, least)
    t = measured["experts"]
    expert = t["top_k"] * 3 * t["hidden"] * t["ffn"] / t["tp"]
    least = _least(t, gpus, flops=2 * t["tokens"] * expert, moved=expert * t["weight_bits"] / 8)
    yield _Times("experts", "us", "us", t["us"] / 1e6, least)
    t = measured["collectives"]
    sent = 2 * (t["gpus"] - 1) / t["gpus"] * t["bytes"]
    least = np.maximum(LAUNCH_S, sent / _of(t, gpus, lambda gpu: gpu.link_gb_s * 1e9))
    yield _Times("collectives", "us", "us", t["us"] / 1e6, least)
    t = measured["operations"]
    for column, (rows, columns, inner) in products(measured, t).items():
        least = _least(t, gpus, flops=2 * rows * columns * inner, moved=2 * columns * inner)
        yield _Times("operations", column, "ms", t[column] / 1e3, least)


def _models(measured: Measured, gpus: Mapping[str, Gpu]) -> Iterator[_Times]:
    t = measured["layers"]
    read, token = _layer(measured, t, t["tp"])
    prefills = np.where(t.words["phase"] == "prompt", t["tokens"], 0.0)
    yield _Times("layers", "ms", "ms", t["ms"] / 1e3, _least(t, gpus, flops=token * prefills, moved=read))
    t = measured["steps"]
    layers = _layers(measured, t)
    read, token = (layers * part for part in _layer(measured, t, t["tp"]))
    prompt = _least(t, gpus, flops=token * t["prompt_tokens"] * t["sequences"], moved=read)
    yield _Times("steps", "prompt_ms", "ms", t["prompt_ms"] / 1e3, prompt)
    yield _Times("steps", "token_ms", "ms", t["token_ms"] / 1e3, _least(t, gpus, flops=0 * read, moved=read))
    t = measured["serving"]
    layers = _layers(measured, t)
    read, token = (layers * part for part in _layer(measured, t, t["tp"] * t["attention_dp"]))
    read *= NARROWEST / 16
    first = _least(t, gpus, flops=token * t["input_tokens"], moved=read)
    yield _Times("serving", "ttft_ms", "ms", t["ttft_ms"] / 1e3, first, np.inf)  # waiting has no bound
    each = _least(t, gpus, flops=0 * read, moved=read)
    yield _Times("serving", "tpot_ms", "ms", t["tpot_ms"] / 1e3, each, SLOWEST_TPOT)


def _least(t: Table, gpus: Mapping[str, Gpu], *, flops: Floats, moved: Floats) -> Floats:
    """Seconds of so many operations at a GPU's highest rate, or of reading so many bytes."""
    peak = _of(t, gpus, lambda g: 1e12 * max(g.bf16_tflops, g.fp8_tflops or 0.0, g.fp4_tflops or 0.0))
    bandwidth = _of(t, gpus, lambda g: g.bandwidth_gb_s * 1e9)
    return np.maximum(LAUNCH_S, np.maximum(flops / peak, moved / bandwidth))


def _of(t: Table, gpus: Mapping[str, Gpu], figure: Callable[[Gpu], float]) -> Floats:
    return np.array([figure(gpus[name]) for name in t.words["gpu"].tolist()], dtype=np.float64)


def _layer(measured: Measured, t: Table, devices: Floats) -> tuple[Floats, Floats]:
    """Of one layer on one of its devices: bytes that a lone token reads, and operations a token."""
    shapes = {name: measured.shape(name) for name in set(t.words["model"].tolist())}
    names = t.words["model"].tolist()
    read = np.array([float(shapes[name].bytes_read(1.0)) for name in names], dtype=np.float64)
    active = np.array([float(shapes[name].active_weights) for name in names], dtype=np.float64)
    return read / devices, 2 * active / devices


def _layers(measured: Measured, t: Table) -> Floats:
    names = t.words["model"].tolist()
    return np.array([float(measured.architectures[name].layers) for name in names], dtype=np.float64)
