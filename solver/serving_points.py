"""Time to first and per output token of a closed loop: C clients, each asking again once it is answered.

In the steady state all C sequences decode while prompts are prefilled in the same steps (chunked prefill):
what `Roofline.round` describes at b = C. So its own waits, those that the planner holds promises against, are
what is compared here:

- time per output token is that wait as it is;
- time to first token is that wait + q C + w C P, with P = what a prompt adds to the steps that carry it. q C
  is the queue before a server that handles requests one by one; w C P is the first wave, when all clients
  start at once (w is half the share of first requests among all of a client).

q and w describe the benchmark: they are fitted for the comparison only. That clients come together is what
`solver.headroom` is about, so the planner's wait has neither. At 4 clients, the fewest that were measured, it
is about all there is; at 8 it no longer is.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from schemas.catalog import Gpu, Model, Objective, ServiceLevel, Workload
from schemas.performance import Efficiencies
from solver.kernels import Kernels
from solver.measurements import Measured, Table
from solver.roofline import Roofline, Slot
from solver.shapes import Flags, Floats, Shape

CHUNK_TOKENS = 8192
"""max-num-batched-tokens of vLLM's server on GPUs of 70 GB and more, where nothing else is set."""
MAX_SEQUENCES = 256
"""Beyond vLLM's older default for max-num-seqs, requests wait in a queue."""
FEW_CLIENTS = 4
"""The fewest that were measured, and the only load at which waiting for each other hardly shows."""
MEMORY_SHARE, RESERVED_GB = 0.9, 4.0
ARITHMETIC_AT_MOST = 0.5
"""Share of peak that a whole engine may seem to reach. The one series of Llama-3.1-8B, 21 points, is above it
(0.90), so no small model is judged at all; of all others the nearest, Qwen3-32B, reaches 0.475."""


@dataclass(frozen=True)
class Loads:
    """Closed loops on one set-up; all arrays of one length."""

    input_tokens: Floats
    output_tokens: Floats
    clients: Floats


@dataclass(frozen=True)
class Client:
    """What a benchmark adds to times to first token: q and w above."""

    arrival_s: float
    first_wave: float

    def waits_s(self, loads: Loads, prompt_s: Floats) -> Floats:
        """Seconds that a request waits for others."""
        return loads.clients * (self.arrival_s + self.first_wave * prompt_s)


class Waits(NamedTuple):
    """The roofline's seconds, of each load."""

    ttft_s: Floats
    tpot_s: Floats
    prompt_s: Floats
    """P above."""


def waits(shape: Shape, kernels: Kernels, tp: int, loads: Loads, chunk_tokens: int = CHUNK_TOKENS) -> Waits:
    """What the planner says of closed loops on one set-up."""
    found = np.zeros((3, len(loads.clients)))
    for lengths in sorted(set(zip(loads.input_tokens, loads.output_tokens, strict=True))):
        same = (loads.input_tokens == lengths[0]) & (loads.output_tokens == lengths[1])
        roofline = roofline_of(shape, kernels, float(lengths[0]), float(lengths[1]), chunk_tokens)
        found[:, same] = _waits(roofline, tp, loads.clients[same][:, None])
    return Waits(*found)


def _waits(roofline: Roofline, tp: int, clients: Floats) -> Floats:
    (gpu,) = roofline.gpus
    alone, layers = Slot(gpu, tp, first=True, last=True, send_gb_s=0.0), roofline.layer_counts[-1]
    work = roofline.round(gpu, tp, clients)
    tpot, ttft = work.waits
    mean, plain = (
        roofline.seconds(alone, layers, s) for s in (work.step, roofline.decode_step(gpu, tp, clients))
    )
    prompt_s = (mean - plain) / (clients / roofline.level.workload.mean_output_tokens)
    seconds = [roofline.waited_s(alone, layers, 1, wait) for wait in (ttft, tpot)]
    return np.stack([np.ravel(s) for s in (*seconds, prompt_s)])


def roofline_of(
    shape: Shape,
    kernels: Kernels,
    input_tokens: float,
    output_tokens: float,
    chunk_tokens: int = CHUNK_TOKENS,
) -> Roofline:
    """The set-up as a service of these lengths; what it promises does not matter to its seconds."""
    endless = (Objective(percentile=50, ms=1e12),)
    lengths = Workload(mean_input_tokens=input_tokens, mean_output_tokens=output_tokens, source="measured")
    level = ServiceLevel(slo_class="measured", ttft=endless, tpot=endless, workload=lengths)
    server = {"max-num-batched-tokens": str(chunk_tokens)}
    variant = shape.variant.model_copy(update={"vllm_args": server})
    model = Model(name="measured", architecture=shape.arch, variants=(variant,), source="measured")
    gpu = kernels.gpu
    return Roofline(model, variant, level, {gpu.name: gpu}, Efficiencies(gpus=(kernels.efficiency,)))


# ------------------------------------------------------------------------------------------ measured points


@dataclass(frozen=True)
class Point:
    """All loads of one set-up: a model in a precision on `tp` GPUs with one version of vLLM.

    `used` says which loads the model is judged on: the engine's own times (`engine_bound`), in themselves
    `consistent`, of a series that is possible (`arithmetic_share`). Set-ups are held out whole, by their
    names' checksums: one more set-up moves no other.
    """

    name: str
    model: str
    gpu: str
    tp: int
    shape: Shape
    loads: Loads
    ttft: Floats
    tpot: Floats
    queued: Flags
    contradicted: Flags
    impossible: bool
    fold: int
    """0, 1 or 2: the third of the set-ups it belongs to; 0 is held out."""

    @property
    def held_out(self) -> bool:
        return self.fold == 0

    @property
    def used(self) -> Flags:
        return np.asarray(~self.queued & ~self.contradicted & (not self.impossible))

    def waits(self, kernels: Kernels, chunk_tokens: int = CHUNK_TOKENS) -> Waits:
        """What the planner says of them, at most so many tokens a step."""
        return waits(self.shape, kernels, self.tp, self.loads, chunk_tokens)

    @property
    def few(self) -> Flags:
        """Of those used, the loads of `FEW_CLIENTS`."""
        return np.asarray(self.used & (self.loads.clients == FEW_CLIENTS))

    def ttft_s(self, waits: Waits, client: Client) -> Floats:
        """The planner's seconds, and those that this benchmark's clients wait for each other."""
        return waits.ttft_s + client.waits_s(self.loads, waits.prompt_s)


def points(measured: Measured, gpus: Mapping[str, Gpu]) -> Iterator[Point]:
    """The set-ups of these GPUs that the model describes: no expert or data parallelism."""
    t = measured["serving"]
    t = t.where((t["attention_dp"] == 1) & (t["expert_parallel"] == 1))
    t = t.where(np.isin(t.words["gpu"], list(gpus)))
    for (model, precision, version), series in t.each("model", "precision", "vllm"):
        shape = _shape(measured, str(model), str(precision))
        setups = list(series.each("gpu", "tp"))
        shares = [arithmetic_share(shape, gpus[str(gpu)], int(tp), of) for (gpu, tp), of in setups]
        impossible = max(float(np.max(share)) for share in shares) > ARITHMETIC_AT_MOST
        for (gpu, tp), of in setups:
            loads, tpot = _loads(of), of["tpot_ms"] / 1e3
            name = f"{model} {precision}, {tp:g} x {gpu}, vLLM {version}"
            yield Point(
                name=name,
                model=str(model),
                gpu=str(gpu),
                tp=int(tp),
                shape=shape,
                loads=loads,
                ttft=of["ttft_ms"] / 1e3,
                tpot=tpot,
                queued=~engine_bound(shape, gpus[str(gpu)], int(tp), loads),
                contradicted=~consistent(loads, tpot),
                impossible=impossible,
                fold=zlib.crc32(name.encode()) % 3,
            )


def _shape(measured: Measured, model: str, precision: str) -> Shape:
    mxfp4 = 4.25 if model.startswith("gpt-oss") else None
    return measured.shape(model, 8 if precision == "fp8" else 16, mxfp4)


def _loads(t: Table) -> Loads:
    return Loads(t["input_tokens"], t["output_tokens"], t["concurrency"])


def arithmetic_share(shape: Shape, gpu: Gpu, tp: int, t: Table) -> Floats:
    """Of the GPUs' peak, that a load implies by Little's law if every prompt is prefilled.

    Far up there, prompts came from a prefix cache, or the clients did not ask again.
    """
    a, loads = shape.arch, _loads(t)
    per_second = loads.clients / (t["ttft_ms"] + (loads.output_tokens - 1) * t["tpot_ms"]) * 1e3
    attention = np.array([shape.attention_flops(float(i) / 2) for i in loads.input_tokens])
    tokens = loads.input_tokens + loads.output_tokens
    flops = a.layers * (2 * tokens * shape.active_weights + loads.input_tokens * attention)
    narrow = gpu.fp8_tflops if shape.variant.weight_bits == 8 else None
    return np.asarray(per_second * flops / (tp * (narrow or gpu.bf16_tflops) * 1e12))


def engine_bound(shape: Shape, gpu: Gpu, tp: int, loads: Loads) -> Flags:
    """Whether all clients can be served at once: else the times are those of a queue before the engine."""
    usable = tp * (gpu.memory_gb * MEMORY_SHARE - RESERVED_GB) * 1e9 - shape.total_bytes
    per_sequence = np.array([shape.cache_bytes(float(t)) for t in loads.input_tokens + loads.output_tokens])
    held = loads.clients * per_sequence * shape.arch.layers * shape.cache_copies(tp)
    return np.asarray((held <= usable) & (loads.clients <= MAX_SEQUENCES))


def consistent(loads: Loads, tpot: Floats, tolerance: float = 0.1) -> Flags:
    """Whether no load with the same lengths and more clients is faster per token, beyond a tolerance."""
    same = (loads.input_tokens[:, None] == loads.input_tokens[None, :]) & (
        loads.output_tokens[:, None] == loads.output_tokens[None, :]
    )
    more = loads.clients[None, :] > loads.clients[:, None]
    slower = tpot[:, None] > (1 + tolerance) * tpot[None, :]
    return np.asarray(~np.any(same & more & slower, axis=1))
