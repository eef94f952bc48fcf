"""Seconds of one transformer layer, put together from kernels.

One layer = matrix products (qkv, o, gate and up, down; experts grouped), attention, element-wise work, and
two all-reduces where `tp` GPUs share it. A stage's step = its layers, the embedding on the first stage, the
LM head of the sampled tokens on the last, sending activations on, and `step_s`. Where layers differ (full or
sliding attention, dense FFN or experts), one layer is their average, as in `solver.shapes`.
"""

from dataclasses import dataclass

import numpy as np

from schemas.architecture import LatentAttention
from solver.kernels import Cost, Kernels, Values
from solver.shapes import ACTIVATION_BYTES, Shape

ELEMENTWISE_KERNELS = 5
"""Two norms with their residual, rotary embedding, cache write, activation."""


@dataclass(frozen=True)
class Layers:
    """The layers of a model on `tp` GPUs of one kind. All arguments may be numpy arrays that broadcast."""

    shape: Shape
    kernels: Kernels
    tp: int = 1

    @property
    def step_s(self) -> float:
        """Fixed seconds of one step of a stage."""
        return self.kernels.efficiency.overhead.step_s

    def decode(self, sequences: Values, context: Values) -> Cost:
        """One layer of a step in which each of `sequences` gains a token after `context` earlier ones."""
        return self._tokens(sequences) + self._decode_attention(sequences, context)

    def prefill(self, tokens: Values, context: Values) -> Cost:
        """One layer over `tokens` prompt tokens that look at `context` tokens in the mean.

        A whole prompt of I tokens has a mean context of I / 2.
        """
        return self._tokens(tokens) + self._prefill_attention(tokens, context)

    def mixed(self, sequences: Values, context: Values, chunk: Values, chunk_context: Values) -> Cost:
        """One layer of a step with decodes and a chunk of a prompt: one pass over the weights for both."""
        cost = self._tokens(sequences + chunk)
        cost += self._decode_attention(sequences, context)
        return cost + self._prefill_attention(chunk, chunk_context)

    def head(self, sequences: Values) -> Cost:
        """The LM head of the tokens that are sampled, and the engine's own work on each."""
        arch, sampling = self.shape.arch, sequences * self.kernels.efficiency.overhead.sequence_s
        logits = self.kernels.matmul(sequences, arch.vocab / self.tp, arch.hidden)
        return logits + Cost(fixed_s=sampling, total_s=sampling)

    def embedding(self, tokens: Values) -> Cost:
        """Looking `tokens` up; split over the vocabulary, so summed over the GPUs."""
        moved = tokens * (self.shape.arch.hidden * ACTIVATION_BYTES)
        return self.kernels.elementwise(2 * moved, 1) + self.kernels.all_reduce(moved, self.tp)

    def send(self, tokens: Values, gb_s: float) -> Cost:
        """Activations of `tokens` to the next stage, over a line of `gb_s` 10^9 bytes/s."""
        return self.kernels.send(tokens * (self.shape.arch.hidden * ACTIVATION_BYTES), gb_s)

    # ---------------------------------------------------------------------------------------- one layer

    def _tokens(self, tokens: Values) -> Cost:
        """All of a layer but attention itself: it sees how many tokens there are, not whose."""
        moved = tokens * (self.shape.arch.hidden * ACTIVATION_BYTES)
        cost = self._projections(tokens) + self._ffn(tokens) + self._elementwise(tokens)
        return cost + 2 * self.kernels.all_reduce(moved, self.tp)

    def _projections(self, tokens: Values) -> Cost:
        a, bits = self.shape.arch, self.shape.variant.weight_bits
        if a.latent is not None:
            return self._latent_projections(tokens, a.latent)
        width = a.head_dim * (a.heads / self.tp + 2 * self._kv_heads)
        cost = self.kernels.matmul(tokens, width, a.hidden, bits)
        return cost + self.kernels.matmul(tokens, a.hidden, a.head_dim * a.heads / self.tp, bits)

    def _latent_projections(self, tokens: Values, latent: LatentAttention) -> Cost:
        """Down to the latents on every GPU alike, up to a GPU's own heads, and out."""
        a, bits, heads = self.shape.arch, self.shape.variant.weight_bits, self.shape.arch.heads / self.tp
        down = latent.query_rank + latent.kv_rank + latent.rope_dim
        cost = self.kernels.matmul(tokens, down, a.hidden, bits)
        query = heads * (latent.nope_dim + latent.rope_dim)
        cost += self.kernels.matmul(tokens, query, latent.query_rank, bits)
        cost += self.kernels.matmul(
            tokens, heads * (latent.nope_dim + latent.value_dim), latent.kv_rank, bits
        )
        return cost + self.kernels.matmul(tokens, a.hidden, heads * latent.value_dim, bits)

    def _ffn(self, tokens: Values) -> Cost:
        """Routed experts, router and what every token shares; a dense FFN in the layers without."""
        a, variant, routed = self.shape.arch, self.shape.variant, self.shape.expert_share
        bits = variant.weight_bits
        if a.experts is None or a.top_k is None or a.expert_ffn_dim is None:
            return self._gated(tokens, a.ffn_dim or 0, bits)
        expert_bits = variant.expert_bits or bits
        cost = self.kernels.experts(
            tokens, a.hidden, a.expert_ffn_dim / self.tp, a.experts, a.top_k, expert_bits
        )
        cost += self.kernels.matmul(tokens, a.experts, a.hidden)
        if a.shared_experts:
            cost += self._gated(tokens, a.shared_experts * a.expert_ffn_dim, expert_bits)
        if a.ffn_dim is None or routed == 1:
            return cost
        return routed * cost + (1 - routed) * self._gated(tokens, a.ffn_dim, bits)

    def _gated(self, tokens: Values, ffn: int, bits: float) -> Cost:
        hidden = self.shape.arch.hidden
        up = self.kernels.matmul(tokens, 2 * ffn / self.tp, hidden, bits)
        return up + self.kernels.matmul(tokens, hidden, ffn / self.tp, bits)

    def _elementwise(self, tokens: Values) -> Cost:
        """Norms read and write input and residual; rotary and cache write touch q, k, v; the gate 3 x ffn.

        The gate of experts is timed with them.
        """
        a = self.shape.arch
        norms = 2 * 4 * a.hidden
        rotary = 2 * a.head_dim * (a.heads / self.tp + 2 * self._kv_heads)
        gate = 3 * (a.ffn_dim or 0) / self.tp * (1 if a.experts is None else 1 - self.shape.expert_share)
        moved = tokens * ((norms + rotary + gate) * ACTIVATION_BYTES)
        return self.kernels.elementwise(moved, ELEMENTWISE_KERNELS)

    # ---------------------------------------------------------------------------------------- attention

    def _decode_attention(self, sequences: Values, context: Values) -> Cost:
        a, bits = self.shape.arch, self.shape.variant.kv_bits
        heads, kv_heads, width = a.heads / self.tp, self._kv_heads, float(a.head_dim)
        if a.latent is not None:  # all heads look at one latent, which is key and value at once
            kv_heads, width = 0.5, float(a.latent.kv_rank + a.latent.rope_dim)
        full = a.full_attention_layers / a.layers
        cost = full * self.kernels.decode_attention(sequences, context, heads, kv_heads, width, bits)
        if a.sliding_window is None:
            return cost
        near = np.minimum(context, a.sliding_window)
        return cost + (1 - full) * self.kernels.decode_attention(
            sequences, near, heads, kv_heads, width, bits
        )

    def _prefill_attention(self, tokens: Values, context: Values) -> Cost:
        a = self.shape.arch
        heads, kv_heads, width = a.heads / self.tp, self._kv_heads, float(a.head_dim)
        if a.latent is not None:  # keys and values are made from the latent, for each head
            kv_heads, width = heads, (a.latent.nope_dim + a.latent.rope_dim + a.latent.value_dim) / 2
        full = a.full_attention_layers / a.layers
        cost = full * self.kernels.prefill_attention(tokens, context, heads, kv_heads, width)
        if a.sliding_window is None:
            return cost
        near = np.minimum(context, a.sliding_window)
        return cost + (1 - full) * self.kernels.prefill_attention(tokens, near, heads, kv_heads, width)

    @property
    def _kv_heads(self) -> float:
        """KV heads of one GPU: repeated where there are more GPUs than heads."""
        return max(1.0, self.shape.arch.kv_heads / self.tp)
