"""Seconds of one transformer layer, put together from kernels.

One layer = matrix products (qkv, o, gate and up, down; experts grouped), attention, element-wise work, and
two all-reduces where `tp` GPUs share it. A stage's step = its layers, the embedding on the first stage, the
LM head of the sampled tokens on the last, sending activations on, and `step_s`.
"""

from dataclasses import dataclass

import numpy as np

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
        """The LM head of the tokens that are sampled."""
        arch = self.shape.arch
        return self.kernels.matmul(sequences, arch.vocab / self.tp, arch.hidden)

    def embedding(self, tokens: Values) -> Cost:
        """Looking `tokens` up; split over the vocabulary, so summed over the GPUs."""
        moved = tokens * (self.shape.arch.hidden * ACTIVATION_BYTES)
        return self.kernels.elementwise(2 * moved, 1) + self.kernels.all_reduce(moved, self.tp)

    def send(self, tokens: Values, gb_s: float) -> Cost:
        """Activations of `tokens` to the next stage, over a line of `gb_s` 10^9 bytes/s."""
        return self.kernels.send(tokens * (self.shape.arch.hidden * ACTIVATION_BYTES), gb_s)

    # ---------------------------------------------------------------------------------------- one layer

    def _tokens(self, tokens: Values) -> Cost:
        """All of a layer but attention: it sees how many tokens there are, not whose."""
        a, tp, bits = self.shape.arch, self.tp, self.shape.variant.weight_bits
        width = a.head_dim * (a.heads / tp + 2 * self._kv_heads)
        cost = self.kernels.matmul(tokens, width, a.hidden, bits)
        cost += self.kernels.matmul(tokens, a.hidden, a.head_dim * a.heads / tp, bits)
        return cost + self._ffn(tokens) + self._elementwise(tokens) + self._all_reduces(tokens)

    def _ffn(self, tokens: Values) -> Cost:
        a, variant = self.shape.arch, self.shape.variant
        if a.ffn_dim is not None:
            up = self.kernels.matmul(tokens, 2 * a.ffn_dim / self.tp, a.hidden, variant.weight_bits)
            return up + self.kernels.matmul(tokens, a.hidden, a.ffn_dim / self.tp, variant.weight_bits)
        assert a.experts is not None
        assert a.top_k is not None
        assert a.expert_ffn_dim is not None
        bits = variant.expert_bits or variant.weight_bits
        return self.kernels.experts(tokens, a.hidden, a.expert_ffn_dim / self.tp, a.experts, a.top_k, bits)

    def _elementwise(self, tokens: Values) -> Cost:
        """Norms read and write input and residual; rotary and cache write touch q, k, v; the gate 3 x ffn."""
        a = self.shape.arch
        norms = 2 * 4 * a.hidden
        rotary = 2 * a.head_dim * (a.heads / self.tp + 2 * self._kv_heads)
        gate = 0.0 if a.ffn_dim is None else 3 * a.ffn_dim / self.tp
        moved = tokens * ((norms + rotary + gate) * ACTIVATION_BYTES)
        return self.kernels.elementwise(moved, ELEMENTWISE_KERNELS)

    def _all_reduces(self, tokens: Values) -> Cost:
        moved = tokens * (self.shape.arch.hidden * ACTIVATION_BYTES)
        return 2 * self.kernels.all_reduce(moved, self.tp)

    def _decode_attention(self, sequences: Values, context: Values) -> Cost:
        a, bits = self.shape.arch, self.shape.variant.kv_bits
        heads, full = a.heads / self.tp, a.full_attention_layers / a.layers
        cost = full * self.kernels.decode_attention(
            sequences, context, heads, self._kv_heads, a.head_dim, bits
        )
        if a.sliding_window is None:
            return cost
        near = np.minimum(context, a.sliding_window)
        return cost + (1 - full) * self.kernels.decode_attention(
            sequences, near, heads, self._kv_heads, a.head_dim, bits
        )

    def _prefill_attention(self, tokens: Values, context: Values) -> Cost:
        a = self.shape.arch
        heads, full = a.heads / self.tp, a.full_attention_layers / a.layers
        cost = full * self.kernels.prefill_attention(tokens, context, heads, self._kv_heads, a.head_dim)
        if a.sliding_window is None:
            return cost
        near = np.minimum(context, a.sliding_window)
        return cost + (1 - full) * self.kernels.prefill_attention(
            tokens, near, heads, self._kv_heads, a.head_dim
        )

    @property
    def _kv_heads(self) -> float:
        """KV heads of one GPU: repeated where there are more GPUs than heads."""
        return max(1.0, self.shape.arch.kv_heads / self.tp)
