"""Kernels and layers, reckoned by hand on a GPU of round numbers, and what must hold of any."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.architecture import Architecture
from schemas.catalog import Gpu, Variant, load_catalog
from schemas.performance import (
    Collective,
    Efficiency,
    Evidence,
    FirstToken,
    Link,
    Overhead,
    Roof,
    load_efficiencies,
)
from solver.kernels import Cost, Kernels
from solver.layers import Layers
from solver.shapes import Shape

SAID = Evidence(assumed="made up")
ROOF = Roof(compute=0.5, bandwidth=0.5, launch_s=1e-6, overlap=1.0, evidence=SAID)
GPU = Gpu(
    name="round",
    memory_gb=100,
    bandwidth_gb_s=1000,
    bf16_tflops=100,
    fp8_tflops=200,
    link="nvlink",
    link_gb_s=100,
    source="made up",
)
EFFICIENCY = Efficiency(
    gpu="round",
    matmul=ROOF,
    matmul_fp8=ROOF.model_copy(update={"quantising": 0.5}),
    experts=ROOF,
    experts_4bit=ROOF,
    prefill_attention=ROOF,
    decode_attention=ROOF,
    elementwise=ROOF,
    all_reduce=(Collective(gpus=2, share=0.5, latency_s=1e-5, evidence=SAID),),
    network=Link(share=0.5, latency_s=1e-4, evidence=SAID),
    overhead=Overhead(step_s=1e-3, sequence_s=1e-5, evidence=SAID),
    first_token=FirstToken(server_s=1e-2, own=1.5, evidence=SAID),
)
KERNELS = Kernels(GPU, EFFICIENCY)
SHAPE = Shape(
    Architecture(
        layers=10,
        hidden=1000,
        heads=10,
        kv_heads=2,
        head_dim=100,
        ffn_dim=4000,
        full_attention_layers=10,
        vocab=10000,
    ),
    Variant(name="v", checkpoint="c", weight_bits=16, gpus=()),
)
SHIPPED = [Kernels(gpu, load_efficiencies().of(gpu.name)) for gpu in load_catalog().gpus]


def test_a_matrix_product_computes_and_moves_and_is_launched() -> None:
    """2 x 100 x 1000 x 1000 operations at 50 TFLOPS; 2.4 MB at 500 GB/s, one after the other."""
    cost = KERNELS.matmul(100.0, 1000.0, 1000.0)
    assert cost.compute_s == pytest.approx(4e-6)
    assert cost.memory_s == pytest.approx(4.8e-6)
    assert cost.total_s == pytest.approx(4e-6 + 4.8e-6 + 1e-6)


def test_fp8_computes_twice_as_fast_moves_half_the_weights_and_narrows_its_inputs() -> None:
    cost = KERNELS.matmul(100.0, 1000.0, 1000.0, 8)
    assert cost.compute_s == pytest.approx(2e-6)
    assert cost.memory_s == pytest.approx((1.4e6 + 3 * 1e5) / 5e11)


def test_fp8_weights_save_memory_only_where_the_gpu_has_no_fp8() -> None:
    old = Kernels(GPU.model_copy(update={"fp8_tflops": None}), EFFICIENCY)
    assert old.matmul(100.0, 1000.0, 1000.0, 8).compute_s == pytest.approx(4e-6)
    assert old.matmul(100.0, 1000.0, 1000.0, 8).memory_s == pytest.approx(2.8e-6)


def test_experts_read_the_distinct_ones_that_tokens_pick() -> None:
    """Two tokens with one of two experts each: 1.5 distinct on average."""
    once, twice = (KERNELS.experts(tokens, 1000, 1000.0, 2, 1) for tokens in (1.0, 2.0))
    weights = 3 * 1000 * 1000 * 2
    assert once.memory_s == pytest.approx((weights + 10000) / 5e11)
    assert twice.memory_s == pytest.approx((1.5 * weights + 20000) / 5e11)


def test_an_all_reduce_over_one_gpu_is_nothing_and_over_two_passes_all_once() -> None:
    assert KERNELS.all_reduce(1e6, 1) == Cost()
    assert KERNELS.all_reduce(1e6, 2).total_s == pytest.approx(1e6 / 5e10 + 1e-5)


def test_costs_add_up_and_multiply() -> None:
    cost = 2 * Cost(1.0, 2.0, 3.0, 4.0, 5.0) + Cost(total_s=1.0)
    assert cost == Cost(2.0, 4.0, 6.0, 8.0, 11.0)


def test_everything_broadcasts() -> None:
    layers = Layers(SHAPE, KERNELS, 2)
    cost = layers.decode(np.array([[1.0], [2.0]]), np.array([10.0, 20.0, 30.0]))
    assert np.shape(cost.total_s) == (2, 3)
    assert np.asarray(cost.total_s)[1, 2] == pytest.approx(layers.decode(2.0, 30.0).total_s)


def test_a_step_with_decodes_and_a_chunk_reads_the_weights_once() -> None:
    layers = Layers(SHAPE, KERNELS)
    both = layers.decode(8.0, 100.0) + layers.prefill(64.0, 32.0)
    mixed = layers.mixed(8.0, 100.0, 64.0, 32.0)
    saved = np.asarray(both.memory_s) - np.asarray(mixed.memory_s)
    assert saved == pytest.approx(SHAPE.layer_bytes / 5e11)


def test_a_sliding_window_bounds_what_attention_looks_at() -> None:
    near = replace(
        SHAPE, arch=SHAPE.arch.model_copy(update={"sliding_window": 128, "full_attention_layers": 5})
    )
    short, long = ((Layers(s, KERNELS).decode(8.0, 1e4)).total_s for s in (near, SHAPE))
    assert short < long


def test_sampling_costs_each_sequence() -> None:
    one, two = (Layers(SHAPE, KERNELS).head(n).fixed_s for n in (1.0, 2.0))
    assert two - one == pytest.approx(1e-5)


# ----------------------------------------------------------------------------------------- whatever the GPU

tokens = st.floats(1, 1e5)


@given(st.sampled_from(SHIPPED), tokens, st.floats(1, 1e5), st.sampled_from((1, 2, 4, 8)))
def test_more_bandwidth_arithmetic_or_link_never_hurts(
    kernels: Kernels, count: float, context: float, tp: int
) -> None:
    layers = Layers(SHAPE, kernels, tp)
    before = [layers.decode(count, context).total_s, layers.prefill(count, context).total_s]
    for field in ("bandwidth_gb_s", "bf16_tflops", "link_gb_s"):
        better = kernels.gpu.model_copy(update={field: 2 * getattr(kernels.gpu, field)})
        more = Layers(SHAPE, Kernels(better, kernels.efficiency), tp)
        after = [more.decode(count, context).total_s, more.prefill(count, context).total_s]
        assert np.all(np.asarray(after) <= np.asarray(before) * (1 + 1e-12))


@given(st.sampled_from(SHIPPED), tokens, tokens, st.floats(0, 1e5), st.sampled_from((4.25, 8, 16)))
def test_more_tokens_or_context_never_take_less_time(
    kernels: Kernels, one: float, other: float, context: float, bits: float
) -> None:
    few, many = sorted((one, other))
    layers = Layers(replace(SHAPE, variant=SHAPE.variant.model_copy(update={"weight_bits": bits})), kernels)
    assert layers.decode(few, context).total_s <= layers.decode(many, context).total_s * (1 + 1e-12)
    assert layers.prefill(few, context).total_s <= layers.prefill(many, context).total_s * (1 + 1e-12)
    assert layers.decode(few, context).total_s <= layers.decode(few, context + many).total_s


@given(st.sampled_from(SHIPPED), tokens, st.floats(16, 1e5), st.floats(16, 1e5))
def test_the_whole_is_between_its_longest_part_and_all_of_them(
    kernels: Kernels, rows: float, columns: float, inner: float
) -> None:
    cost = kernels.matmul(rows, columns, inner)
    parts = (cost.compute_s, cost.memory_s)
    assert max(parts) <= cost.total_s * (1 + 1e-12)
    assert cost.total_s <= (sum(parts) + cost.fixed_s) * (1 + 1e-12)
