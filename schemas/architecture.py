"""The shape of a transformer: what its weights, cache and arithmetic are counted from (`solver.shapes`)."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from schemas.base import Frozen, Whole


class LatentAttention(Frozen):
    """Multi-head latent attention (DeepSeek): keys and values are made from one small vector a token.

    That vector, with a rotary key that all heads share, is all that the KV cache holds.
    """

    query_rank: Whole
    kv_rank: Whole
    rope_dim: Whole
    """Of the key, position-dependent and shared by all heads."""
    nope_dim: Whole
    """Of each head's query and key, without position."""
    value_dim: Whole


class Architecture(Frozen):
    """The shape of a transformer, as its config.json has it. FFNs are gated."""

    layers: Whole
    hidden: Whole
    heads: Whole
    kv_heads: Whole
    head_dim: Whole
    latent: LatentAttention | None = None
    ffn_dim: Whole | None = None
    """Of dense layers: all of them, or the first `dense_ffn_layers` of a model with experts."""
    dense_ffn_layers: Annotated[int, Field(ge=0)] = 0
    """Layers without experts in a model that has experts."""
    experts: Whole | None = None
    top_k: Whole | None = None
    shared_experts: Annotated[int, Field(ge=0)] = 0
    """Experts that every token uses, beside its `top_k`; as large as the others."""
    expert_ffn_dim: Whole | None = None
    sliding_window: Whole | None = None
    full_attention_layers: Whole
    vocab: Whole
    tied_embeddings: bool = False

    @model_validator(mode="after")
    def _dense_or_experts(self) -> Self:
        if self.experts is None:
            if self.ffn_dim is None or self.dense_ffn_layers or self.shared_experts:
                raise ValueError(
                    "a model without experts needs ffn_dim and has no dense_ffn_layers or shared_experts"
                )
            return self
        if self.top_k is None or self.expert_ffn_dim is None:
            raise ValueError("a model with experts needs top_k and expert_ffn_dim")
        if self.top_k > self.experts:
            raise ValueError(f"top_k is {self.top_k}, expected at most {self.experts}, the number of experts")
        if (self.ffn_dim is None) != (self.dense_ffn_layers == 0):
            raise ValueError(
                "ffn_dim beside experts is that of dense_ffn_layers: both or neither is expected"
            )
        return self

    @model_validator(mode="after")
    def _parts_of_a_whole(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads is {self.heads}, expected a multiple of kv_heads, {self.kv_heads}")
        if max(self.full_attention_layers, self.dense_ffn_layers) > self.layers:
            raise ValueError(
                f"full_attention_layers and dense_ffn_layers: expected at most {self.layers}, the layers"
            )
        if self.sliding_window is None and self.full_attention_layers < self.layers:
            raise ValueError("fewer full_attention_layers than layers need a sliding_window")
        return self
