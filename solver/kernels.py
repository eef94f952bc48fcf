"""Seconds of single GPU kernels: what a layer is made of.

A kernel takes launch + (compute^p + memory^p)^(1/p) seconds, where compute = flops / (peak x share) and
memory = bytes / (bandwidth x share) are what each would take alone, and p says how well they overlap. Peaks
are the catalog's (`Gpu`), shares the fitted ones (`Efficiency`). Everything broadcasts over numpy arrays.
"""

from dataclasses import dataclass

import numpy as np

from schemas.catalog import Gpu
from schemas.performance import Efficiency, Roof
from solver.shapes import ACTIVATION_BYTES, Floats

Values = float | Floats

LEAST_S = 1e-300
"""Stands in for no time at all where something is divided by it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds: what arithmetic, memory, links and fixed work would take each alone, and all with overlap."""

    compute_s: Values = 0.0
    memory_s: Values = 0.0
    link_s: Values = 0.0
    fixed_s: Values = 0.0
    total_s: Values = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        """One after the other."""
        return Cost(
            self.compute_s + other.compute_s,
            self.memory_s + other.memory_s,
            self.link_s + other.link_s,
            self.fixed_s + other.fixed_s,
            self.total_s + other.total_s,
        )

    def __mul__(self, times: Values) -> "Cost":
        """Again and again: a number of layers, say."""
        return Cost(
            _times(self.compute_s, times),
            _times(self.memory_s, times),
            _times(self.link_s, times),
            _times(self.fixed_s, times),
            _times(self.total_s, times),
        )

    __rmul__ = __mul__


@dataclass(frozen=True)
class Kernels:
    """The kernels of one GPU. Counts are of one GPU's part; bits are per element."""

    gpu: Gpu
    efficiency: Efficiency

    def matmul(self, rows: Values, columns: Values, inner: Values, weight_bits: float = 16) -> Cost:
        """[rows, inner] times weights [inner, columns]: rows are tokens.

        Weights of 8 bits are multiplied in fp8 where the GPU can, else they only save memory.
        """
        narrow = self.efficiency.matmul_fp8 if self._fp8(weight_bits) else None
        weights = inner * columns
        moved = weights * weight_bits / 8 + rows * ((inner + columns) * ACTIVATION_BYTES)
        quantised = rows * inner if narrow else 0.0
        return self._cost(narrow or self.efficiency.matmul, rows * (2.0 * weights), moved, quantised)

    def experts(
        self,
        tokens: Values,
        hidden: Values,
        inner: Values,
        experts: Values,
        top_k: Values,
        weight_bits: float = 16,
    ) -> Cost:
        """The gated FFN of `tokens` that each pick `top_k` of `experts`, evenly and independently.

        Reads the weights of the expected number of distinct experts, E (1 - (1 - k/E)^tokens).
        """
        efficiency = self.efficiency
        wide = efficiency.experts_4bit if weight_bits < 8 else efficiency.experts
        narrow = efficiency.experts_fp8 if self._fp8(weight_bits) else None
        distinct = experts * (1 - (1 - top_k / experts) ** tokens)
        weights = 3.0 * hidden * inner
        moved = distinct * (weights * weight_bits / 8)
        moved = moved + tokens * (top_k * (2.0 * hidden + 3.0 * inner) * ACTIVATION_BYTES)
        quantised = tokens * (top_k * (hidden + inner)) if narrow else 0.0
        return self._cost(narrow or wide, tokens * (2.0 * top_k * weights), moved, quantised)

    def prefill_attention(
        self, tokens: Values, context: Values, heads: Values, kv_heads: Values, head_dim: Values
    ) -> Cost:
        """`tokens` new tokens, each looking at `context` tokens in the mean."""
        flops = 4.0 * heads * head_dim * tokens * context
        moved = head_dim * ACTIVATION_BYTES * (2.0 * tokens * heads + 2.0 * (tokens + context) * kv_heads)
        return self._cost(self.efficiency.prefill_attention, flops, moved)

    def decode_attention(
        self,
        sequences: Values,
        context: Values,
        heads: Values,
        kv_heads: Values,
        head_dim: Values,
        kv_bits: float = 16,
    ) -> Cost:
        """One new token of each sequence, looking at `context` tokens of its cache."""
        flops = sequences * (4.0 * heads * head_dim * context)
        cache = 2.0 * kv_heads * head_dim * context * kv_bits / 8
        moved = sequences * (cache + 2.0 * heads * head_dim * ACTIVATION_BYTES)
        return self._cost(self.efficiency.decode_attention, flops, moved)

    def elementwise(self, moved: Values, kernels: int) -> Cost:
        """`kernels` that only move bytes, `moved` in all."""
        roof = self.efficiency.elementwise
        memory = moved / (self.gpu.bandwidth_gb_s * 1e9 * roof.bandwidth)
        fixed = kernels * roof.launch_s
        return Cost(memory_s=memory, fixed_s=fixed, total_s=memory + fixed)

    def all_reduce(self, moved: Values, gpus: int) -> Cost:
        """Sum `moved` bytes over `gpus` of one node (a ring: 2 (n-1)/n of them pass each link)."""
        if gpus == 1:
            return Cost()
        link = self.efficiency.all_reduce_over(gpus)
        filled = np.sqrt(moved * (moved + 2 * link.ramp_bytes))
        wire = 2.0 * (gpus - 1) / gpus * filled / (self.gpu.link_gb_s * 1e9 * link.share)
        return Cost(link_s=wire, fixed_s=link.latency_s, total_s=wire + link.latency_s)

    def send(self, moved: Values, gb_s: float) -> Cost:
        """Hand `moved` bytes to the next stage over a line of `gb_s` 10^9 bytes/s."""
        network = self.efficiency.network
        wire = moved / (gb_s * 1e9 * network.share)
        return Cost(link_s=wire, fixed_s=network.latency_s, total_s=wire + network.latency_s)

    def _fp8(self, weight_bits: float) -> bool:
        return weight_bits == 8 and self.gpu.fp8_tflops is not None

    def _cost(self, roof: Roof, flops: Values, moved: Values, quantised: Values = 0.0) -> Cost:
        """`quantised`: activations that are read in 16 and written in 8 bits where the roof says so."""
        fp8 = roof is self.efficiency.matmul_fp8 or roof is self.efficiency.experts_fp8
        peak = self.gpu.fp8_tflops if fp8 and self.gpu.fp8_tflops else self.gpu.bf16_tflops
        bandwidth = self.gpu.bandwidth_gb_s * 1e9
        compute = flops / (peak * 1e12 * roof.compute)
        memory = moved / (bandwidth * roof.bandwidth)
        both = _overlapped(compute, memory, roof.overlap)
        if roof.quantising is None:
            return Cost(compute, memory, 0.0, roof.launch_s, roof.launch_s + both)
        first = quantised * (3.0 / (bandwidth * roof.quantising))
        return Cost(compute, memory + first, 0.0, roof.launch_s, roof.launch_s + first + both)


def _times(seconds: Values, times: Values) -> Values:
    """The product, but nothing stays plain nothing: many costs lack a part or two."""
    return 0.0 if isinstance(seconds, float) and seconds == 0 else seconds * times


def _overlapped(one: Values, other: Values, p: float) -> Values:
    """(one^p + other^p)^(1/p), scaled by the longer so that no power underflows."""
    if p == 1:
        return one + other
    longer, shorter = np.maximum(one, other), np.minimum(one, other)
    ratio = shorter / np.maximum(longer, LEAST_S)
    total: Values = longer * (1 + ratio**p) ** (1 / p)
    return total
