"""Measured kernels as samples: what the model says of each point, beside what was measured.

Held out of every fit, so that errors are of shapes that it has not seen:

- matrix products with a side of 5120, 8192 or 10240 (the hidden sizes of Phi-4, Qwen3-32B and Llama-3-70B);
- attention with 40 or 64 heads;
- experts of three shapes, among them those of Qwen3-235B, and of mxfp4 those split over two GPUs;
- every third size of a collective;
- of Vidur's operations those of the Llama-2 models and of Llama-3-70B (`Measured.held_models`).

A shape that is held out in one place is in no fit: where another model or benchmark has it too, its points
are dropped there, whatever their tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from solver.kernels import Kernels, Values
from solver.measurements import OPERATIONS, Measured, Table
from solver.shapes import ACTIVATION_BYTES, Flags, Floats

Predict = Callable[[Kernels], Values]

HELD_SIDES = (5120, 8192, 10240)
HELD_HEADS = (40, 64)
HELD_EXPERTS = ((4096, 1536, 128), (7168, 2048, 384), (6144, 16384, 8))
L2_BYTES = {"A40": 6e6, "A100": 40e6, "H100": 50e6}
"""Second-level caches (NVIDIA's white papers): Vidur's weights that fit are not fitted on."""


@dataclass(frozen=True)
class Sample:
    """Points of one kind on one GPU. For kernels `what` is the field of `Efficiency` that times them."""

    what: str
    source: str
    seconds: Floats
    held_out: Flags
    predict: Predict

    def errors(self, kernels: Kernels) -> Floats:
        """Modelled over measured, less 1."""
        return np.asarray(self.predict(kernels) / self.seconds - 1)


def kernel_samples(measured: Measured, gpu: str) -> Iterator[Sample]:
    """All kernels of a GPU but its collectives."""
    attention = measured["attention"].of(gpu=gpu)
    unseen = held_shapes(measured, gpu)
    for sample in (
        _matmul(measured["gemm"].of(gpu=gpu), 16, "matmul", unseen),
        _operations(measured, gpu, unseen),
        _matmul(measured["gemm"].of(gpu=gpu), 8, "matmul_fp8"),
        _experts(measured["experts"].of(gpu=gpu), 16, "experts"),
        _experts(measured["experts"].of(gpu=gpu), 8, "experts_fp8"),
        _experts(measured["experts"].of(gpu=gpu), 4.25, "experts_4bit"),
        _prefill_attention(attention.of(phase="prefill")),
        _decode_attention(attention.of(phase="decode")),
        elementwise(measured, measured["operations"].of(gpu=gpu)),
    ):
        if len(sample.seconds):
            yield sample


def collectives(measured: Measured, gpu: str) -> Iterator[tuple[int, Sample]]:
    """All-reduces by number of GPUs."""
    for (count,), t in measured["collectives"].of(gpu=gpu).each("gpus"):
        yield int(count), _all_reduce(t, int(count))


def every_third(values: Floats) -> Flags:
    """The middle of each three in order of size."""
    return np.asarray(np.argsort(np.argsort(values)) % 3 == 1)


def _all_reduce(t: Table, gpus: int) -> Sample:
    def predict(k: Kernels) -> Values:
        return k.all_reduce(t["bytes"], gpus).total_s

    return Sample("all_reduce", "aiconfigurator", t["us"] / 1e6, every_third(t["bytes"]), predict)


def held_shapes(measured: Measured, gpu: str) -> Floats:
    """The weights of 16-bit matrix products that are held out anywhere, each as one number."""
    t, o = measured["gemm"].of(gpu=gpu), measured["operations"].of(gpu=gpu)
    benchmarked = _weights(t["columns"], t["inner"])[_held_sides(t) & (t["weight_bits"] == 16)]
    of_models = o.where(np.isin(o.words["model"], measured.held_models))
    shapes = [_weights(columns, inner) for _, columns, inner in products(measured, of_models).values()]
    return np.unique(np.concatenate([benchmarked, *shapes]))


def _weights(columns: Floats, inner: Floats) -> Floats:
    """The shape [inner, columns] as one number; exact, as both are whole and below 2^20."""
    return columns * 2.0**20 + inner


def _held_sides(t: Table) -> Flags:
    return np.asarray(np.isin(t["columns"], HELD_SIDES) | np.isin(t["inner"], HELD_SIDES))


def _matmul(t: Table, bits: float, what: str, unseen: Floats | None = None) -> Sample:
    t = t.where(t["weight_bits"] == bits)
    if unseen is not None:
        t = t.where(_held_sides(t) | ~np.isin(_weights(t["columns"], t["inner"]), unseen))
    held = _held_sides(t)

    def predict(k: Kernels) -> Values:
        return k.matmul(t["rows"], t["columns"], t["inner"], bits).total_s

    return Sample(what, "aiconfigurator", t["us"] / 1e6, held, predict)


def _experts(t: Table, bits: float, what: str) -> Sample:
    t = t.where(t["weight_bits"] == bits)
    held = (t["tp"] == 2) if bits < 8 else np.zeros(len(t), dtype=np.bool_)
    for hidden, ffn, count in HELD_EXPERTS:
        held |= (t["hidden"] == hidden) & (t["ffn"] == ffn) & (t["experts"] == count)

    def predict(k: Kernels) -> Values:
        inner = t["ffn"] / t["tp"]
        return k.experts(t["tokens"], t["hidden"], inner, t["experts"], t["top_k"], bits).total_s

    return Sample(what, "aiconfigurator", t["us"] / 1e6, held, predict)


def _prefill_attention(t: Table) -> Sample:
    """Causal: a token looks at half of its prompt, or at its window less what the first tokens lack of it."""
    window = np.where((t["window"] > 0) & (t["window"] < t["tokens"]), t["window"], t["tokens"])
    context = window - window**2 / (2 * t["tokens"])
    tokens = t["sequences"] * t["tokens"]

    def predict(k: Kernels) -> Values:
        return k.prefill_attention(tokens, context, t["heads"], t["kv_heads"], t["head_dim"]).total_s

    held = np.isin(t["heads"], HELD_HEADS)
    return Sample("prefill_attention", "aiconfigurator", t["us"] / 1e6, held, predict)


def _decode_attention(t: Table) -> Sample:
    context = np.where(t["window"] > 0, np.minimum(t["window"], t["tokens"]), t["tokens"])

    def predict(k: Kernels) -> Values:
        heads = (t["heads"], t["kv_heads"], t["head_dim"])
        return k.decode_attention(t["sequences"], context, *heads).total_s

    held = np.isin(t["heads"], HELD_HEADS)
    return Sample("decode_attention", "aiconfigurator", t["us"] / 1e6, held, predict)


# ----------------------------------------------------------------------------------------- Vidur's operations


def products(measured: Measured, t: Table) -> dict[str, tuple[Floats, Floats, Floats]]:
    """The four matrix products of the layers in `operations`: tokens, columns, inner size."""
    hidden, heads, kv, ffn = _sizes(measured, t)
    return {
        "attn_pre_proj_ms": (t["tokens"], heads + 2 * kv, hidden),
        "attn_post_proj_ms": (t["tokens"], hidden, heads),
        "mlp_up_proj_ms": (t["tokens"], 2 * ffn, hidden),
        "mlp_down_proj_ms": (t["tokens"], hidden, ffn),
    }


def elementwise(measured: Measured, t: Table) -> Sample:
    """The other operations of a layer together: norms of one input, rotary, gate, an addition.

    Each row is a layer's, so none is dropped: no two models of other sizes move as many bytes a token.
    """
    hidden, heads, kv, ffn = _sizes(measured, t)
    moved = t["tokens"] * (2 * 2 * hidden + 2 * (heads + kv) + 3 * ffn + 3 * hidden) * ACTIVATION_BYTES
    matrices = products(measured, t)
    seconds = sum((t[name] for name in OPERATIONS if name not in matrices), np.zeros(len(t))) / 1e3

    def predict(k: Kernels) -> Values:
        return k.elementwise(moved, 5).total_s

    held = np.isin(t.words["model"], measured.held_models)
    return Sample("elementwise", "Vidur", seconds, held, predict)


def _operations(measured: Measured, gpu: str, unseen: Floats) -> Sample:
    """The matrix products one by one, of weights that do not fit the second-level cache."""
    t = measured["operations"].of(gpu=gpu)
    shapes = products(measured, t)
    rows, columns, inner = (np.concatenate([shape[i] for shape in shapes.values()]) for i in range(3))
    seconds = np.concatenate([t[name] for name in shapes]) / 1e3
    held = np.tile(np.isin(t.words["model"], measured.held_models), len(shapes))
    keep = 2 * columns * inner > L2_BYTES.get(gpu, 0.0)
    keep &= held | ~np.isin(_weights(columns, inner), unseen)
    rows, columns, inner = rows[keep], columns[keep], inner[keep]

    def predict(k: Kernels) -> Values:
        return k.matmul(rows, columns, inner).total_s

    return Sample("matmul", "Vidur", seconds[keep], held[keep], predict)


def _sizes(measured: Measured, t: Table) -> tuple[Floats, Floats, Floats, Floats]:
    """Hidden size, width of the queries, of the keys, and of the FFN, on one of `tp` GPUs."""
    archs = [measured.architectures[name] for name in t.words["model"]]
    hidden = np.array([float(a.hidden) for a in archs])
    heads = np.array([float(a.heads * a.head_dim) for a in archs]) / t["tp"]
    kv = np.maximum(np.array([float(a.kv_heads) for a in archs]) / t["tp"], 1.0)
    ffn = np.array([float(a.ffn_dim or 0) for a in archs]) / t["tp"]
    return hidden, heads, kv * np.array([float(a.head_dim) for a in archs]), ffn
