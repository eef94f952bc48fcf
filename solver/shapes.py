"""A transformer's weights, cache and arithmetic, counted from its shape.

Norms and biases are ignored (below 0.1% of any model shipped). Bytes are plain bytes, tokens are tokens, and
everything is per layer unless its name says `total`, `embedding` or `head`. Where a model's layers differ
(full or sliding attention, experts or a dense FFN) a layer is their average, which makes layer slices
interchangeable, though a slice may hold more of one kind than its share.
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
"""Activations, embeddings, LM head and router are 16-bit in every variant."""


@dataclass(frozen=True)
class Shape:
    """An architecture in the precision of a variant."""

    arch: Architecture
    variant: Variant

    # ---------------------------------------------------------------------------------------- attention

    @property
    def attention_weights(self) -> int:
        """Parameters of all projections of attention: grouped-query, or latent (DeepSeek-V2, section 2.1)."""
        a, latent = self.arch, self.arch.latent
        if latent is None:
            return 2 * a.hidden * a.head_dim * (a.heads + a.kv_heads)
        query = latent.query_rank * (a.hidden + a.heads * (latent.nope_dim + latent.rope_dim))
        down = a.hidden * (latent.kv_rank + latent.rope_dim)
        up = latent.kv_rank * a.heads * (latent.nope_dim + latent.value_dim)
        return query + down + up + a.heads * latent.value_dim * a.hidden

    @property
    def attention_bytes(self) -> float:
        return self.attention_weights * self.variant.weight_bits / 8

    @property
    def cached_values(self) -> int:
        """Numbers that the KV cache keeps of a token."""
        a, latent = self.arch, self.arch.latent
        return 2 * a.kv_heads * a.head_dim if latent is None else latent.kv_rank + latent.rope_dim

    def cache_bytes(self, tokens: float) -> float:
        """KV cache of one sequence of `tokens`, averaged over full and sliding-window layers."""
        return self.cached_values * self._seen(tokens) * self.variant.kv_bits / 8

    def cache_copies(self, tp: int) -> float:
        """How often it is held when more devices than KV heads share a layer; a latent has no heads."""
        return float(tp) if self.arch.latent else max(1.0, tp / self.arch.kv_heads)

    def attention_flops(self, context: float) -> float:
        """Scores and weighted values of one token over `context` earlier ones, averaged likewise.

        Latent attention is counted as prefill does it, on keys and values made from the latent.
        """
        a, latent = self.arch, self.arch.latent
        score, value = a.head_dim, a.head_dim
        if latent is not None:
            score, value = latent.nope_dim + latent.rope_dim, latent.value_dim
        return 2 * a.heads * (score + value) * self._seen(context)

    def _seen(self, tokens: float) -> float:
        """Tokens that attention looks at, of `tokens` there are, averaged over the layers."""
        a = self.arch
        full = a.full_attention_layers / a.layers
        return full * tokens + (1 - full) * min(tokens, a.sliding_window or tokens)

    # ---------------------------------------------------------------------------------------------- FFN

    @property
    def experts(self) -> int:
        """Those that tokens are routed to; a dense model is one expert that every token uses."""
        return self.arch.experts or 1

    @property
    def experts_per_token(self) -> int:
        return self.arch.top_k or 1

    @property
    def expert_weights(self) -> int:
        """Parameters of one expert: gate, up and down."""
        a = self.arch
        return 3 * a.hidden * (a.expert_ffn_dim or a.ffn_dim or 0)

    @property
    def expert_bytes(self) -> float:
        bits = self.variant.expert_bits if self.arch.experts else None
        return self.expert_weights * (bits or self.variant.weight_bits) / 8

    @property
    def expert_share(self) -> float:
        """Share of the layers that route to experts; 1 for a dense model, its FFN being the one expert."""
        return 1 - self.arch.dense_ffn_layers / self.arch.layers

    @property
    def common_weights(self) -> float:
        """Parameters of an FFN that every token uses, beside the expert or experts it is routed to.

        The shared experts and the router of a layer with experts, the dense FFN of one without.
        """
        return self.shared_weights * self.expert_share + self._dense_weights

    @property
    def common_bytes(self) -> float:
        router = self.router_weights * ACTIVATION_BYTES * self.expert_share
        shared = self.arch.shared_experts * self.expert_bytes * self.expert_share
        return router + shared + self._dense_weights * self.variant.weight_bits / 8

    @property
    def shared_weights(self) -> int:
        return self.arch.shared_experts * self.expert_weights + self.router_weights

    @property
    def router_weights(self) -> int:
        return self.arch.hidden * (self.arch.experts or 0)

    @property
    def _dense_weights(self) -> float:
        """Of the dense FFN of the layers without experts, spread over all."""
        return 3 * self.arch.hidden * (self.arch.ffn_dim or 0) * (1 - self.expert_share)

    # -------------------------------------------------------------------------------------------- whole

    @property
    def layer_weights(self) -> float:
        routed = self.experts * self.expert_weights * self.expert_share
        return self.attention_weights + self.common_weights + routed

    @property
    def active_weights(self) -> float:
        """Those that one token is multiplied with."""
        routed = self.experts_per_token * self.expert_weights * self.expert_share
        return self.attention_weights + self.common_weights + routed

    @property
    def layer_bytes(self) -> float:
        return self.attention_bytes + self.common_bytes + self.experts * self.expert_bytes * self.expert_share

    @property
    def head_bytes(self) -> float:
        """The LM head, on the last stage; the embedding, on the first, is as large."""
        return self.arch.vocab * self.arch.hidden * ACTIVATION_BYTES

    @property
    def _tables(self) -> int:
        return 1 if self.arch.tied_embeddings else 2

    @property
    def total_weights(self) -> float:
        """Parameters of the model."""
        return self.arch.layers * self.layer_weights + self._tables * self.arch.vocab * self.arch.hidden

    @property
    def total_bytes(self) -> float:
        return self.arch.layers * self.layer_bytes + self._tables * self.head_bytes

    def bytes_read(self, tokens: Number) -> Number:
        """Weights of one layer that a batch of `tokens` reads.

        With experts: the expected number of distinct ones, E (1 - (1 - k/E)^tokens), where each token picks
        k of E independently and evenly (an assumption: real routing is skewed, so this reads a little much).
        """
        miss = 1 - self.experts_per_token / self.experts
        distinct: Number = self.experts * (1 - miss**tokens)
        always = self.attention_bytes + self.common_bytes
        return always + distinct * (self.expert_bytes * self.expert_share)

    def splits_into(self, tp: int) -> bool:
        """Whether vLLM accepts this tensor-parallel degree: heads divide, KV heads divide or repeat."""
        a = self.arch
        repeats = a.latent is not None or a.kv_heads % tp == 0 or tp % a.kv_heads == 0
        widths = (a.ffn_dim or tp, a.expert_ffn_dim or tp)
        return a.heads % tp == 0 and repeats and all(width % tp == 0 for width in widths)
