"""Measured layers and steps as samples: to judge what kernels add up to, to fit GPUs known by layers only.

Held out: of Helix's and Splitwise's points every third of each curve, by size; of Vidur's layers those of the
Llama-2 models and of Llama-3-70B; of composed layers all.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from solver.kernels import Kernels, Values
from solver.layers import Layers
from solver.measurements import OPERATIONS, Measured, Table
from solver.samples import Predict, Sample, elementwise, every_third, products
from solver.shapes import Floats

HELIX_PROMPT, HELIX_CONTEXT = 750, 1000
"""Tokens of a prompt, and of context while decoding, that Helix's profiles are about."""
WHOLE_MS_FROM = 100
"""Helix's prompt times, and its decode times of more sequences than this, are given in whole milliseconds."""
LEAST_WHOLE_MS = 10
"""Such times below this are left out: their rounding alone is 5% and more."""
PREFILL_FROM = 257
"""Vidur's layers of at least as many tokens count as prefill."""


def layer_samples(measured: Measured, gpu: str) -> Iterator[Sample]:
    """Whole layers of a GPU, by phase and source."""
    for sample in (*operations(measured, gpu), *helix(measured, gpu), *_composed(measured, gpu)):
        if len(sample.seconds):
            yield sample


def helix(measured: Measured, gpu: str) -> Iterator[Sample]:
    """Layer times of whole machines."""
    t = measured["layers"].of(gpu=gpu)
    rounded = (t.words["phase"] == "prompt") | (t["tokens"] > WHOLE_MS_FROM)
    t = t.where(~(rounded & (t["ms"] < LEAST_WHOLE_MS)))
    for phase, name in (("prompt", "prefill"), ("decode", "decode")):
        curves = [(key, curve) for key, curve in t.of(phase=phase).each("model", "tp")]
        if curves:
            yield _helix_phase(measured, name, curves)


def _helix_phase(
    measured: Measured, phase: str, curves: list[tuple[tuple[str | float, ...], Table]]
) -> Sample:
    def predict(k: Kernels) -> Values:
        parts: list[Values] = []
        for (model, tp), curve in curves:
            layers = Layers(measured.shape(str(model)), k, int(tp))
            cost = (
                layers.prefill(curve["tokens"], HELIX_PROMPT / 2)
                if phase == "prefill"
                else layers.decode(curve["tokens"], float(HELIX_CONTEXT))
            )
            parts.append(cost.total_s)
        return np.concatenate(parts)

    seconds = np.concatenate([curve["ms"] for _, curve in curves]) / 1e3
    held = np.concatenate([every_third(curve["tokens"]) for _, curve in curves])
    return Sample(phase, "Helix", seconds, held, predict)


def operations(measured: Measured, gpu: str) -> Iterator[Sample]:
    """Vidur's layers: all of one but attention and all-reduces."""
    everything = measured["operations"].of(gpu=gpu)
    for phase in ("prefill", "decode"):
        t = everything.where((everything["tokens"] >= PREFILL_FROM) == (phase == "prefill"))
        seconds = sum((t[name] for name in OPERATIONS), np.zeros(len(t))) / 1e3
        held = np.isin(t.words["model"], measured.held_models)
        yield Sample(phase, "Vidur", seconds, held, _operations_of(measured, t))


def _operations_of(measured: Measured, t: Table) -> Predict:
    shapes, rest = products(measured, t), elementwise(measured, t)

    def predict(k: Kernels) -> Values:
        return sum((k.matmul(*shape).total_s for shape in shapes.values()), rest.predict(k))

    return predict


# ------------------------------------------------------------------------------------------- composed layers

COMPOSED_HIDDEN, COMPOSED_HEADS, COMPOSED_FFN = (8192, 10240), (40, 64), (5120, 8192, 10240)
COMPOSED_KV_HEADS = 8


def _composed(measured: Measured, gpu: str) -> Iterator[Sample]:
    """Layers put together from measured kernels that no fit has seen: for GPUs without measured layers.

    Four matrix products and attention, all of shapes held out; element-wise work is in neither figure.
    """
    if len(measured["operations"].of(gpu=gpu)) or len(measured["layers"].of(gpu=gpu)):
        return
    t = measured["gemm"].of(gpu=gpu)
    t = t.where(t["weight_bits"] == 16)
    keys = zip(t["rows"], t["columns"], t["inner"], strict=True)
    times: dict[tuple[Values, ...], float] = dict(zip(keys, (t["us"] / 1e6).tolist(), strict=True))
    for phase in ("prefill", "decode"):
        yield from _composed_phase(measured["attention"].of(gpu=gpu, phase=phase), times, phase)


def _composed_phase(attention: Table, times: dict[tuple[Values, ...], float], phase: str) -> Iterator[Sample]:
    usual = (attention["head_dim"] == 128) & (attention["window"] == 0)
    t = attention.where(usual & (attention["kv_heads"] == COMPOSED_KV_HEADS))
    found: list[tuple[float, ...]] = []
    seconds: list[float] = []
    for i in range(len(t)):
        heads, sequences, tokens = t["heads"][i], t["sequences"][i], t["tokens"][i]
        rows = sequences * tokens if phase == "prefill" else sequences
        for hidden in COMPOSED_HIDDEN:
            for ffn in COMPOSED_FFN:
                matrices = composed_products(hidden, heads, ffn)
                known = [times.get((rows, *matrix)) for matrix in matrices]
                if heads in COMPOSED_HEADS and all(known):
                    found.append((rows, hidden, heads, ffn, sequences, tokens))
                    seconds.append(sum(filter(None, known)) + float(t["us"][i]) / 1e6)
    if found:
        held = np.ones(len(found), dtype=np.bool_)
        yield Sample(phase, "composed", np.array(seconds), held, _composed_of(np.array(found), phase))


def composed_products(hidden: Values, heads: Values, ffn: Values) -> tuple[tuple[Values, Values], ...]:
    """Columns and inner size of qkv, o, gate and up, down."""
    width = 128 * heads
    return (
        (width + 2 * 128 * COMPOSED_KV_HEADS, hidden),
        (hidden, width),
        (2 * ffn, hidden),
        (hidden, ffn),
    )


def _composed_of(found: Floats, phase: str) -> Predict:
    rows, hidden, heads, ffn, sequences, tokens = found.T

    def predict(k: Kernels) -> Values:
        if phase == "prefill":
            cost = k.prefill_attention(rows, tokens / 2, heads, COMPOSED_KV_HEADS, 128)
        else:
            cost = k.decode_attention(sequences, tokens, heads, COMPOSED_KV_HEADS, 128)
        for columns, inner in composed_products(hidden, heads, ffn):
            cost += k.matmul(rows, columns, inner)
        return cost.total_s

    return predict


# ---------------------------------------------------------------------------------------- Splitwise's steps


@dataclass(frozen=True)
class Eager:
    """An engine without CUDA graphs and today's kernels: Splitwise measured one of 2023.

    A step takes its kernels' time times `slowdown`, or the host's time to launch them, whichever is longer.
    """

    slowdown: float = 1.0
    host_layer_s: float = 0.0

    def seconds(self, kernels_s: Values, layers: Values) -> Floats:
        return np.asarray(np.maximum(kernels_s * self.slowdown, layers * self.host_layer_s))


@dataclass(frozen=True)
class Steps:
    """Whole steps with the number of layers of each; `sample.predict` is of kernels only."""

    sample: Sample
    layers: Floats


def steps(measured: Measured, gpu: str) -> Iterator[Steps]:
    """Splitwise's prompt times (each once) and token times."""
    t = measured["steps"].of(gpu=gpu)
    if not len(t):
        return
    yield _steps(measured, t.where(t["output_tokens"] == 128), "prefill")
    yield _steps(measured, t, "decode")


def _steps(measured: Measured, t: Table, phase: str) -> Steps:
    curves = [(key, curve) for key, curve in t.each("model", "tp")]

    def predict(k: Kernels) -> Values:
        parts: list[Values] = []
        for (model, tp), c in curves:
            layers = Layers(measured.shape(str(model)), k, int(tp))
            prompt, context = c["prompt_tokens"], c["prompt_tokens"] + c["output_tokens"] / 2
            cost = (
                layers.prefill(c["sequences"] * prompt, prompt / 2)
                if phase == "prefill"
                else layers.decode(c["sequences"], context)
            )
            whole = cost * layers.shape.arch.layers + layers.head(c["sequences"])
            parts.append(whole.total_s + layers.step_s)
        return np.concatenate(parts)

    column = "prompt_ms" if phase == "prefill" else "token_ms"
    seconds = np.concatenate([c[column] for _, c in curves]) / 1e3
    held = np.concatenate([every_third(c[column]) for _, c in curves])
    depth = [np.full(len(c), float(measured.architectures[str(k[0])].layers)) for k, c in curves]
    return Steps(Sample(phase, "Splitwise", seconds, held, predict), np.concatenate(depth))
