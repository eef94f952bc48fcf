"""Seconds and bytes of a pipeline stage on a slice of a node: That[j] of coral.md, from first principles.

A stage holds j consecutive layers on `tp` GPUs of one kind. Its work takes the longer of arithmetic and
memory traffic, plus collectives, plus sending activations on, plus a fixed overhead. All of `Assumptions`
is a guess in the usual range until measured data calibrates it.

Saturated throughput (b = sequences of one micro-batch, I and O = mean input and output tokens,
d = seconds of a decode step at b, P = seconds of prefilling one mean prompt, S = stages):

- A finished request made O decode steps and one prefill, so a micro-batch of b finishes b/O requests in each
  round of d + (b/O) P seconds: T = (b/O) / (d + (b/O) P) requests/s for phase `both`.
- Time per output token: every sequence waits for S such rounds, so each must stay within TPOT / S.
- Time to first token: chunked prefill gets the part of a round that decoding leaves, (TPOT/S - d) / (TPOT/S),
  so P (TPOT/S) / (TPOT/S - d) must stay within TTFT / S.
- `decode`: T = b / d tokens/s, d <= TPOT / S. `prefill`: T = I / P tokens/s, P <= TTFT / S.
- S micro-batches are in flight, so a stage's memory holds S b sequences of I + O tokens.

Objectives are judged at the mean prompt, as the paper does; queueing head-room belongs on the demand.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from schemas.catalog import Gpu, Model, Objective, Phase, ServiceLevel, Variant
from solver.shapes import ACTIVATION_BYTES, Flags, Floats, Number, Shape

ENGINE = "roofline-1"
"""Version of these figures; a rating names it, so that a change here makes old ratings visible."""

BATCHES: Floats = np.geomspace(1, 256, 73)
"""Micro-batch sizes that are tried, 8% apart. Means over time, so they need not be whole."""


@dataclass(frozen=True)
class Assumptions:
    """Efficiencies and overheads. None is measured yet: the usual figures of well-tuned serving kernels."""

    compute: float = 0.5
    """Share of peak arithmetic that dense matrix products reach."""
    experts: float = 0.35
    """The same for grouped expert products."""
    bandwidth: float = 0.8
    """Share of peak memory bandwidth."""
    link: float = 0.7
    """Share of the link bandwidth that all-reduce reaches."""
    network: float = 0.8
    """Share of the line rate between stages."""
    pcie_latency_s: float = 30e-6
    """Fixed cost of an all-reduce without NVLink."""
    nvlink_latency_s: float = 10e-6
    network_latency_s: float = 200e-6
    """Fixed cost of sending activations to the next stage."""
    step_s: float = 2e-3
    """Scheduling and launching one step of one stage."""
    layer_s: float = 20e-6
    """Launch gaps within a layer."""
    memory_share: float = 0.9
    """vLLM's gpu-memory-utilization where a variant does not set it."""
    reserved_gb: float = 2.0
    """Per GPU: activations, CUDA graphs, communication buffers."""
    prefill_chunk: int = 2048
    """Prompt tokens a step: weights are read once for each."""
    load_gb_s: float = 1.0
    """Weights from storage to one node."""
    startup_s: float = 60.0
    """Process start, compilation and graph capture, without loading."""


DEFAULT = Assumptions()


class Slot(NamedTuple):
    """Where a stage lies: what its time and memory depend on beside its layers."""

    gpu: str
    tp: int
    first: bool
    last: bool
    send_gb_s: float
    """Line rate to the next stage, 10^9 bytes/s: the link within a node, else the network. Unused if last."""


@dataclass(frozen=True)
class Roofline:
    """The roofline of one variant of a model at one service level; layers j run from 1 to the model's."""

    model: Model
    variant: Variant
    level: ServiceLevel
    gpus: dict[str, Gpu]
    phase: Phase = "both"
    assume: Assumptions = DEFAULT
    shape: Shape = field(init=False)
    _tables: dict[tuple[Slot, int], Floats] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )
    _layers: dict[tuple[Slot, int], int] = field(init=False, default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", Shape(self.model.architecture, self.variant))

    # ------------------------------------------------------------------------------------------ seconds

    def decode_s(self, slot: Slot, layers: Number, batch: Number) -> Number:
        """Seconds of one decode step of `batch` sequences, each half-way through its output."""
        a, shape, gpu = self.assume, self.shape, self.gpus[slot.gpu]
        context = self.level.workload.mean_input_tokens + self.level.workload.mean_output_tokens / 2
        cache = batch * shape.cache_bytes(context) * shape.cache_copies(slot.tp)
        read = layers * (shape.bytes_read(batch) + cache) + slot.last * shape.head_bytes
        memory = read / (slot.tp * gpu.bandwidth_gb_s * 1e9 * a.bandwidth)
        head = 2 * batch * slot.last * self.model.architecture.vocab * self.model.architecture.hidden
        compute = self._compute_s(slot, layers, batch, context) + head / (
            slot.tp * gpu.bf16_tflops * 1e12 * a.compute
        )
        longest: Number = np.maximum(memory, compute)
        return longest + self._moving_s(slot, layers, batch) + layers * a.layer_s + a.step_s

    def prefill_s(self, slot: Slot, layers: Number) -> Number:
        """Seconds of prefilling one mean prompt, in chunks; causal attention sees half of it."""
        a, shape, gpu = self.assume, self.shape, self.gpus[slot.gpu]
        tokens = self.level.workload.mean_input_tokens
        chunks = max(1.0, tokens / a.prefill_chunk)
        read = layers * shape.bytes_read(min(tokens, float(a.prefill_chunk))) * chunks
        memory = read / (slot.tp * gpu.bandwidth_gb_s * 1e9 * a.bandwidth)
        longest: Number = np.maximum(memory, self._compute_s(slot, layers, tokens, tokens / 2))
        return longest + self._moving_s(slot, layers, tokens) + layers * a.layer_s

    def _compute_s(self, slot: Slot, layers: Number, tokens: Number | float, context: float) -> Number:
        a, shape = self.assume, self.shape
        peak = slot.tp * self.peak_tflops(slot.gpu) * 1e12
        dense = 2 * shape.attention_weights / (peak * a.compute)
        attention = shape.attention_flops(context) / (
            slot.tp * self.gpus[slot.gpu].bf16_tflops * 1e12 * a.compute
        )
        share = a.experts if self.model.architecture.experts else a.compute
        ffn = 2 * shape.experts_per_token * shape.expert_weights / (peak * share)
        return layers * tokens * (dense + attention + ffn)

    def _moving_s(self, slot: Slot, layers: Number, tokens: Number | float) -> Number:
        """Two ring all-reduces a layer over the GPUs' link, and the activations to the next stage."""
        a, gpu = self.assume, self.gpus[slot.gpu]
        activations = tokens * (self.model.architecture.hidden * ACTIVATION_BYTES)
        latency = a.nvlink_latency_s if gpu.link == "nvlink" else a.pcie_latency_s
        ring = 2 * (slot.tp - 1) / slot.tp * activations / (gpu.link_gb_s * 1e9 * a.link)
        reduce = layers * (2 * (ring + latency) if slot.tp > 1 else 0.0)
        hop = 0.0 if slot.last else activations / (slot.send_gb_s * 1e9 * a.network) + a.network_latency_s
        return reduce + hop

    def peak_tflops(self, gpu_name: str) -> float:
        """fp8 where weights are 8-bit and the GPU can, else bf16 (4-bit weights are widened)."""
        gpu = self.gpus[gpu_name]
        return gpu.fp8_tflops if gpu.fp8_tflops and self.variant.weight_bits == 8 else gpu.bf16_tflops

    # ------------------------------------------------------------------------------------------- memory

    def weight_bytes(self, slot: Slot, layers: Number) -> Number:
        """Weights of a stage over all its GPUs; tied embeddings are one table only within one stage."""
        once = self.model.architecture.tied_embeddings and slot.first and slot.last
        tables = 1 if once else slot.first + slot.last
        return layers * self.shape.layer_bytes + tables * self.shape.head_bytes

    def memory_bytes(self, slot: Slot) -> float:
        """What a stage may use over all its GPUs."""
        share = float(self.variant.vllm_args.get("gpu-memory-utilization", self.assume.memory_share))
        gpu = self.gpus[slot.gpu]
        return slot.tp * max(0.0, gpu.memory_gb * share - self.assume.reserved_gb) * 1e9

    def cache_bytes(self, slot: Slot, layers: Number, sequences: Number | float) -> Number:
        """KV cache of `sequences` whole requests; at least one of `max-model-len`, or vLLM won't start."""
        w = self.level.workload
        need = sequences * self.shape.cache_bytes(w.mean_input_tokens + w.mean_output_tokens)
        longest = self.shape.cache_bytes(float(self.variant.vllm_args.get("max-model-len", 0)))
        held: Number = np.maximum(need, longest)
        return layers * held * self.shape.cache_copies(slot.tp)

    def most_layers(self, slot: Slot, stages: int) -> int:
        """Layers that a stage's memory holds at the smallest batch, whatever time they take."""
        key = (slot, stages)
        if key not in self._layers:
            layers = np.arange(1.0, self.model.architecture.layers + 1)
            held = self.weight_bytes(slot, layers) + self.cache_bytes(slot, layers, stages * BATCHES[0])
            self._layers[key] = int((held <= self.memory_bytes(slot)).sum())
        return self._layers[key]

    # --------------------------------------------------------------------------------------- throughput

    def table(self, slot: Slot, stages: int) -> Floats:
        """That[b, j-1]: throughput of a stage, one of `stages`; 0 where memory or an objective forbids it.

        Shape (len(BATCHES), layers); requests/s for `both`, else tokens/s. Never rises with j.
        """
        key = (slot, stages)
        if key not in self._tables:
            self._tables[key] = self._table(slot, stages)
        return self._tables[key]

    def _table(self, slot: Slot, stages: int) -> Floats:
        layers = np.arange(1.0, self.model.architecture.layers + 1)[None, :]
        batch = BATCHES[:, None]
        held = self.weight_bytes(slot, layers) + self.cache_bytes(slot, layers, stages * batch)
        limit = float(self.variant.vllm_args.get("max-num-seqs", 256))
        fits = (held <= self.memory_bytes(slot)) & (stages * batch <= max(limit, stages))
        rate, in_time = self._rate(slot, layers, batch, stages)
        return np.where(fits & in_time, rate, 0.0)

    def _rate(self, slot: Slot, layers: Floats, batch: Floats, stages: int) -> tuple[Floats, Flags]:
        """Throughput and whether the objectives hold, by phase (formulas: top of this file)."""
        w = self.level.workload
        prompt = w.mean_input_tokens
        ttft = objective_s(self.level.ttft, prompt) / stages
        tpot = objective_s(self.level.tpot, prompt) / stages
        decode, prefill = self.decode_s(slot, layers, batch), self.prefill_s(slot, layers) + 0 * batch
        if self.phase == "decode":
            return batch / decode, decode <= tpot
        if self.phase == "prefill":
            return prompt / prefill, prefill <= ttft
        finished = batch / w.mean_output_tokens
        spent = decode + finished * prefill
        return finished / spent, (spent <= tpot) & (prefill * tpot <= ttft * (tpot - decode))


def objective_s(objectives: tuple[Objective, ...], prompt_tokens: float) -> float:
    """The promise for a prompt of this length, in seconds: its tightest bucket, else the one for all others.

    Without a bucket that holds the prompt, the longest one's promise stands in.
    """
    endless = float("inf")
    buckets = sorted(objectives, key=lambda o: (o.max_prompt_tokens or endless, o.ms))
    fitting = [o for o in buckets if (o.max_prompt_tokens or endless) >= prompt_tokens]
    return (fitting[0] if fitting else buckets[-1]).ms / 1000
