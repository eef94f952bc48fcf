"""A transformer's weights, cache and arithmetic, counted from its shape.

Norms, biases and rotary tables are ignored (below 0.1% of any model shipped). Bytes are plain bytes,
tokens are tokens, and everything is per layer unless its name says `total`, `embedding` or `head`.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from schemas.catalog import Architecture, Variant

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Number = TypeVar("Number", float, Floats)

ACTIVATION_BYTES = 2.0
"""Activations, embeddings and the LM head are 16-bit in every variant."""


@dataclass(frozen=True)
class Shape:
    """An architecture in the precision of a variant."""

    arch: Architecture
    variant: Variant

    @property
    def attention_weights(self) -> int:
        """Parameters of the query, key, value and output projections (grouped-query attention)."""
        a = self.arch
        return 2 * a.hidden * a.head_dim * (a.heads + a.kv_heads)

    @property
    def expert_weights(self) -> int:
        """Parameters of one expert; a dense model is one expert that every token uses. FFNs are gated."""
        a = self.arch
        return 3 * a.hidden * (a.ffn_dim or a.expert_ffn_dim or 0)

    @property
    def experts(self) -> int:
        return self.arch.experts or 1

    @property
    def experts_per_token(self) -> int:
        return self.arch.top_k or 1

    @property
    def expert_bytes(self) -> float:
        bits = self.variant.expert_bits if self.arch.experts else None
        return self.expert_weights * (bits or self.variant.weight_bits) / 8

    @property
    def attention_bytes(self) -> float:
        return self.attention_weights * self.variant.weight_bits / 8

    @property
    def layer_bytes(self) -> float:
        return self.attention_bytes + self.experts * self.expert_bytes

    @property
    def head_bytes(self) -> float:
        """The LM head, on the last stage; the embedding, on the first, is as large."""
        return self.arch.vocab * self.arch.hidden * ACTIVATION_BYTES

    @property
    def total_bytes(self) -> float:
        tables = 1 if self.arch.tied_embeddings else 2
        return self.arch.layers * self.layer_bytes + tables * self.head_bytes

    def bytes_read(self, tokens: Number) -> Number:
        """Weights of one layer that a batch of `tokens` reads.

        With experts: the expected number of distinct ones, E (1 - (1 - k/E)^tokens), where each token picks
        k of E independently and evenly (an assumption: real routing is skewed, so this reads a little much).
        """
        miss = 1 - self.experts_per_token / self.experts
        distinct: Number = self.experts * (1 - miss**tokens)
        return self.attention_bytes + distinct * self.expert_bytes

    def cache_bytes(self, tokens: float) -> float:
        """KV cache of one sequence of `tokens` in one layer, averaged over full and sliding-window layers.

        The average makes layer slices interchangeable; models alternate the two kinds, so a slice is off by
        at most one layer.
        """
        a = self.arch
        full = a.full_attention_layers / a.layers
        seen = full * tokens + (1 - full) * min(tokens, a.sliding_window or tokens)
        return 2 * a.kv_heads * a.head_dim * seen * self.variant.kv_bits / 8

    def attention_flops(self, context: float) -> float:
        """Scores and weighted values of one token over `context` earlier ones, averaged likewise."""
        a = self.arch
        full = a.full_attention_layers / a.layers
        seen = full * context + (1 - full) * min(context, a.sliding_window or context)
        return 4 * a.heads * a.head_dim * seen

    def splits_into(self, tp: int) -> bool:
        """Whether vLLM accepts this tensor-parallel degree: heads divide, KV heads divide or repeat."""
        a = self.arch
        repeats = a.kv_heads % tp == 0 or tp % a.kv_heads == 0
        return a.heads % tp == 0 and repeats and (a.ffn_dim or tp) % tp == 0

    def cache_copies(self, tp: int) -> float:
        """How often the cache is held when more devices than KV heads share a layer."""
        return max(1.0, tp / self.arch.kv_heads)
