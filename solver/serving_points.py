"""Time to first and per output token of a closed loop: C clients, each asking again once it is answered.

In the steady state all C sequences decode while prompts are prefilled in the same steps (chunked prefill).
With d = seconds of a step in which only the C sequences gain a token, and P = what a prompt adds to the steps
that carry it:

- time per output token = d + P (C - 1) / O: while a request makes O tokens, each other client starts one;
- time to first token = r + q C + a (d + P) + b C P: r + q C is the way through the server, which handles
  requests one by one; a (d + P) is the request's own prompt, with the step it has to wait for and the prompts
  that happen to arrive beside it; b C P is the first wave, when all clients start at once (b is half the
  share of first requests among all of a client).

r, q, a and b describe the benchmark rather than the GPU: they are fitted on the serving points and not part
of the planner's model, which judges objectives from d and P.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from schemas.catalog import Gpu
from solver.kernels import Kernels
from solver.layers import Layers
from solver.measurements import Measured, Table
from solver.shapes import Flags, Floats, Shape

CHUNK_TOKENS = 8192.0
"""max-num-batched-tokens of vLLM's server on GPUs of 70 GB and more, where nothing else is set."""
MAX_SEQUENCES = 256
"""Beyond vLLM's older default for max-num-seqs, requests wait in a queue."""
MEMORY_SHARE, RESERVED_GB = 0.9, 4.0
ARITHMETIC_AT_MOST = 0.5
"""Share of peak that a whole engine may seem to reach; no other series here is above 0.43."""


@dataclass(frozen=True)
class Loads:
    """Closed loops on one set-up; all arrays of one length."""

    input_tokens: Floats
    output_tokens: Floats
    clients: Floats


@dataclass(frozen=True)
class Client:
    """r, q, a and b above."""

    request_s: float
    arrival_s: float
    own: float
    first_wave: float


def step_s(layers: Layers, loads: Loads) -> Floats:
    """d: a step in which every client's sequence, half-way through its output, gains a token."""
    context = loads.input_tokens + loads.output_tokens / 2
    cost = layers.decode(loads.clients, context) * layers.shape.arch.layers + layers.head(loads.clients)
    return np.asarray(cost.total_s + layers.embedding(loads.clients).total_s + layers.step_s)


def prompt_s(layers: Layers, loads: Loads) -> Floats:
    """P: what the chunks of one prompt add to the steps that carry them."""
    chunks = np.ceil(loads.input_tokens / CHUNK_TOKENS)
    chunk, context = loads.input_tokens / chunks, loads.input_tokens + loads.output_tokens / 2
    mixed = layers.mixed(loads.clients, context, chunk, loads.input_tokens / 2)
    alone = layers.decode(loads.clients, context)
    per_chunk = (mixed.total_s - alone.total_s) * layers.shape.arch.layers
    return np.asarray(chunks * (per_chunk + layers.embedding(chunk).total_s))


def tpot_s(layers: Layers, loads: Loads) -> Floats:
    """Seconds per output token."""
    return step_s(layers, loads) + prompt_s(layers, loads) * (loads.clients - 1) / loads.output_tokens


def ttft_s(step: Floats, prompt: Floats, clients: Floats, client: Client) -> Floats:
    """Seconds to the first token, from `step_s` and `prompt_s`."""
    server = client.request_s + client.arrival_s * clients
    return server + client.own * (step + prompt) + client.first_wave * clients * prompt


# ------------------------------------------------------------------------------------------ measured points


@dataclass(frozen=True)
class Point:
    """All loads of one set-up: a model in a precision on `tp` GPUs with one version of vLLM.

    `used` says which loads the model is judged on: the engine's own times (`engine_bound`), in themselves
    `consistent`, of a series that is possible (`arithmetic_share`). Set-ups are held out whole, by their
    names' checksums: one more set-up moves no other.
    """

    name: str
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

    def tpot_s(self, kernels: Kernels) -> Floats:
        return tpot_s(Layers(self.shape, kernels, self.tp), self.loads)

    def parts_s(self, kernels: Kernels) -> tuple[Floats, Floats]:
        """d and P."""
        layers = Layers(self.shape, kernels, self.tp)
        return step_s(layers, self.loads), prompt_s(layers, self.loads)

    def ttft_s(self, kernels: Kernels, client: Client) -> Floats:
        return ttft_s(*self.parts_s(kernels), self.loads.clients, client)


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
