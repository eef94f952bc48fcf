"""Parameters, bytes and cache of every model, against published sizes and by hand."""

import csv
import os
from pathlib import Path

import pytest

from schemas.catalog import Architecture, Catalog, Model, Variant
from solver.shapes import Shape

PUBLISHED_B = {
    "phi-4-14b": 14.66,
    "gpt-oss-20b": 20.91,
    "gpt-oss-120b": 116.83,
    "qwen3-0.6b": 0.596,
    "qwen3-1.7b": 1.72,
    "qwen3-8b": 8.19,
    "qwen3-14b": 14.77,
    "qwen3-32b": 32.76,
    "qwen3-30b-a3b": 30.53,
    "qwen3-235b-a22b": 235.09,
    "qwen3-coder-480b-a35b": 480.15,
    "llama-3-70b": 70.55,
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.55,
    "llama-3.1-405b": 405.85,
    "llama-2-70b": 68.98,
    "llama-30b": 32.53,
    "mixtral-8x7b": 46.70,
    "mixtral-8x22b": 140.62,
    "deepseek-v3": 671.03,
    "minimax-m2.5": 228.69,
}
"""Billions of parameters, from model cards and the checkpoints' indices."""

SHARED = Path(os.environ.get("CORAL_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


def shape_of(model: Model, variant: str | None = None) -> Shape:
    return Shape(model.architecture, next(v for v in model.variants if variant in (None, v.name)))


def shape(**given: object) -> Shape:
    arch = {"layers": 4, "hidden": 8, "heads": 4, "kv_heads": 2, "head_dim": 2, "vocab": 10} | given
    variant = Variant(name="v", checkpoint="c", weight_bits=16, gpus=())
    return Shape(Architecture.model_validate(arch | {"full_attention_layers": 4}), variant)


@pytest.mark.parametrize("name", PUBLISHED_B)
def test_published_sizes_within_half_a_percent(catalog: Catalog, name: str) -> None:
    total = shape_of(catalog.model(name)).total_weights / 1e9
    assert total == pytest.approx(PUBLISHED_B[name], rel=0.005)


def test_every_model_has_a_published_size(catalog: Catalog) -> None:
    assert {model.name for model in catalog.models} == set(PUBLISHED_B)


def test_it_agrees_with_the_table_the_catalog_was_made_from(catalog: Catalog) -> None:
    path = SHARED / "model_configs" / "models.csv"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    with path.open() as file:
        rows = {row["hf_id"]: row for row in csv.DictReader(file)}
    seen = 0
    for model in catalog.models:
        hub, _, _ = model.source.partition(" config.json")
        row, found = rows[hub], shape_of(model)
        seen += 1
        arch = found.arch
        active = arch.layers * found.active_weights + 2 * arch.vocab * arch.hidden
        if not arch.tied_embeddings:
            assert active / 1e9 == pytest.approx(float(row["params_active_b"]), rel=0.005), hub
        assert found.total_weights / 1e9 == pytest.approx(
            float(row["params_total_b"]), rel=0.005, abs=0.005
        ), hub
        assert found.total_bytes / 1e9 == pytest.approx(float(row["weight_gb"]), rel=0.006), hub
        cached = arch.layers * found.cached_values * 2
        assert cached == float(row["kv_bytes_per_token"]), hub
        assert arch.full_attention_layers == int(row["full_attention_layers"]), hub
    assert seen == len(rows) == 21


def test_dense_by_hand() -> None:
    dense = shape(ffn_dim=6)
    assert dense.attention_weights == 8 * 8 + 2 * 8 * 4 + 8 * 8
    assert dense.layer_weights == dense.attention_weights + 3 * 8 * 6 == dense.active_weights
    assert dense.layer_bytes == 2 * dense.layer_weights == dense.bytes_read(1.0)
    assert dense.cache_bytes(10) == 2 * 2 * 2 * 10 * 2
    assert (dense.cache_copies(2), dense.cache_copies(4)) == (1, 2)


def test_experts_shared_ones_and_dense_layers_by_hand() -> None:
    moe = shape(experts=8, top_k=2, expert_ffn_dim=4, shared_experts=1, dense_ffn_layers=1, ffn_dim=6)
    expert, router, dense = 3 * 8 * 4, 8 * 8, 3 * 8 * 6
    assert moe.layer_weights == moe.attention_weights + (3 * (9 * expert + router) + dense) / 4
    assert moe.active_weights == moe.attention_weights + (3 * (3 * expert + router) + dense) / 4
    assert moe.layer_bytes == 2 * moe.layer_weights
    assert moe.bytes_read(1.0) == pytest.approx(2 * moe.active_weights)
    assert moe.bytes_read(1e6) == pytest.approx(moe.layer_bytes)


def test_a_latent_is_cached_once_for_all_heads_and_on_every_device(catalog: Catalog) -> None:
    deepseek = shape_of(catalog.model("deepseek-v3"))
    assert deepseek.cached_values == 512 + 64
    assert deepseek.cache_copies(8) == 8
    assert deepseek.splits_into(8)
    assert deepseek.attention_flops(1.0) == 2 * 128 * (192 + 128)


def test_sliding_windows_are_averaged_in(catalog: Catalog) -> None:
    oss = shape_of(catalog.model("gpt-oss-20b"))
    assert oss.cache_bytes(1000) == pytest.approx(2 * 8 * 64 * (1000 + 128) / 2 * 2)
    assert oss.cache_bytes(100) == 2 * 8 * 64 * 100 * 2


def test_degrees_that_do_not_divide(catalog: Catalog) -> None:
    llama = shape_of(catalog.model("llama-30b"))
    assert [llama.splits_into(tp) for tp in (1, 2, 4, 8)] == [True, True, True, False]  # 52 heads
