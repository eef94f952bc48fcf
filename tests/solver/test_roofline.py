"""The roofline against figures that are known, and its monotony."""

from collections.abc import Callable

import numpy as np
import pytest

from schemas.catalog import Catalog, Objective
from solver.roofline import BATCHES, Roofline, Slot, objective_s

Make = Callable[..., Roofline]
WHOLE_H100 = Slot("H100", 1, first=True, last=True, send_gb_s=0.0)
WHOLE_L4 = Slot("L4", 1, first=True, last=True, send_gb_s=0.0)


@pytest.mark.parametrize(
    ("model", "variant", "weights_gb", "cache_bytes_per_token"),
    [
        # Published sizes: parameters x 2 bytes, or the mxfp4 checkpoints' size on disk.
        ("phi-4-14b", "bf16", 29.3, 204800),
        ("qwen3-32b", "bf16", 65.5, 262144),
        ("qwen3-32b", "fp8", 34.3, 262144),
        ("llama-3-70b", "bf16", 141.1, 327680),
        ("gpt-oss-20b", "mxfp4", 13.75, 49152),
        ("gpt-oss-120b", "mxfp4", 65.2, 73728),
        ("qwen3-235b-a22b", "bf16", 470.2, 192512),
    ],
)
def test_weights_and_cache_match_the_published_sizes(
    roofline: Make, model: str, variant: str, weights_gb: float, cache_bytes_per_token: int
) -> None:
    r = roofline(model, variant)
    assert r.shape.total_bytes / 1e9 == pytest.approx(weights_gb, rel=0.005)
    layers = r.model.architecture.layers
    # One token is inside every sliding window, so each layer holds it.
    assert r.shape.cache_bytes(1) * layers == pytest.approx(cache_bytes_per_token)
    assert float(r.weight_bytes(WHOLE_H100, float(layers))) == pytest.approx(r.shape.total_bytes)


def test_sliding_window_halves_a_long_cache(roofline: Make) -> None:
    shape = roofline("gpt-oss-20b", "mxfp4").shape
    assert shape.cache_bytes(8192) / (8192 * shape.cache_bytes(1)) == pytest.approx(0.5, abs=0.01)


def test_a_batch_reads_its_distinct_experts(roofline: Make) -> None:
    shape = roofline("gpt-oss-20b", "mxfp4").shape
    always = shape.attention_bytes + shape.common_bytes
    assert shape.bytes_read(1.0) == pytest.approx(always + 4 * shape.expert_bytes)
    assert shape.bytes_read(1000.0) == pytest.approx(shape.layer_bytes)


def test_a_lone_decode_step_reads_the_weights_once(roofline: Make) -> None:
    r = roofline("qwen3-32b", "bf16")
    at_full_bandwidth = (65.52 - 1.56) / 3350  # the embedding is looked up, not read
    assert at_full_bandwidth < float(r.decode_s(WHOLE_H100, 64.0, 1.0)) < 1.5 * at_full_bandwidth


def test_table_never_rises_with_layers_nor_falls_with_time(roofline: Make) -> None:
    for model, variant in (("gpt-oss-20b", "mxfp4"), ("qwen3-32b", "fp8"), ("phi-4-14b", "bf16")):
        for slot in (WHOLE_L4, WHOLE_H100, Slot("L40S", 2, first=True, last=False, send_gb_s=0.3)):
            r = roofline(model, variant)
            table = r.table(slot, 1)
            assert (np.diff(table, axis=1) <= 0).all()
            assert not table[:, r.most_layers(slot, 1) :].any()
            tight = r.level.model_copy(
                update={
                    "tpot": tuple(o.model_copy(update={"ms": o.ms / 2}) for o in r.level.tpot),
                    "ttft": tuple(o.model_copy(update={"ms": o.ms / 2}) for o in r.level.ttft),
                }
            )
            assert (Roofline(r.model, r.variant, tight, r.gpus, r.efficiencies).table(slot, 1) <= table).all()


@pytest.mark.parametrize("phase", ["prefill", "decode", "both"])
def test_more_bandwidth_or_arithmetic_never_hurts(catalog: Catalog, roofline: Make, phase: str) -> None:
    r = roofline("qwen3-32b", "fp8")
    for field in ("bandwidth_gb_s", "bf16_tflops", "fp8_tflops", "link_gb_s", "memory_gb"):
        gpu = catalog.gpu("L40S")
        better = gpu.model_copy(update={field: 2 * getattr(gpu, field)})
        slot = Slot("L40S", 2, first=False, last=False, send_gb_s=5.0)
        slow = Roofline(r.model, r.variant, r.level, {"L40S": gpu}, r.efficiencies, phase)  # type: ignore[arg-type]
        fast = Roofline(r.model, r.variant, r.level, {"L40S": better}, r.efficiencies, phase)  # type: ignore[arg-type]
        assert (fast.table(slot, 2) >= slow.table(slot, 2)).all(), field


def test_both_objectives_hold_wherever_the_table_is_positive(roofline: Make) -> None:
    """Reckoned again from single steps, for one batch after another."""
    r = roofline("qwen3-32b", "bf16")
    slot = Slot("L40S", 4, first=True, last=True, send_gb_s=0.0)
    served = BATCHES[r.table(slot, 1)[:, 63] > 0]
    assert served.size
    for batch in served:
        decode = float(r.decode_s(slot, 64.0, float(batch)))
        prompts = batch / 211  # in the mean step
        chunk = min(2048 - batch, 1155 * max(1.0, prompts))
        mixed = float(r.seconds(slot, 64.0, r.mixed_step("L40S", 4, float(batch), chunk)))
        share = prompts * 1155 / chunk
        assert share <= 1
        assert share * mixed + (1 - share) * decode <= 0.100
        assert max(1.0, 1155 / chunk) * mixed <= 1.600


def test_vllm_must_hold_one_longest_request(roofline: Make) -> None:
    r = roofline("qwen3-32b", "bf16")
    room = r.memory_bytes(Slot("A100", 1, True, True, 0.0)) - r.shape.total_bytes
    assert 8192 * 262144 <= room < 32768 * 262144
    longer = r.variant.model_copy(update={"vllm_args": {"max-model-len": "32768"}})
    slot = Slot("A100", 1, True, True, 0.0)
    assert r.most_layers(slot, 1) == 64
    assert Roofline(r.model, longer, r.level, r.gpus, r.efficiencies).most_layers(slot, 1) < 64


def test_tensor_parallel_degrees_are_those_of_vllm(roofline: Make) -> None:
    phi, qwen = roofline("phi-4-14b", "bf16").shape, roofline("qwen3-235b-a22b", "bf16").shape
    assert [t for t in (1, 2, 4, 8) if phi.splits_into(t)] == [1, 2]  # 10 KV heads
    assert [t for t in (1, 2, 4, 8) if qwen.splits_into(t)] == [1, 2, 4, 8]
    assert qwen.cache_copies(8) == 2  # 4 KV heads on 8 devices


def test_the_objective_is_that_of_the_prompts_bucket() -> None:
    objectives = (
        Objective(percentile=95, ms=900),
        Objective(percentile=95, ms=300, max_prompt_tokens=512),
        Objective(percentile=95, ms=500, max_prompt_tokens=2048),
    )
    assert [objective_s(objectives, n) for n in (100, 512, 513, 5000)] == [0.3, 0.3, 0.5, 0.9]
    assert objective_s(objectives[1:], 5000) == 0.5
