"""The roofline against figures that can be reckoned by hand. Properties: test_roofline_properties.py."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from schemas.catalog import Objective, Phase
from schemas.performance import Efficiencies, Evidence, FirstToken
from solver.kernels import Values
from solver.profiles import Curve, Curves
from solver.roofline import BATCHES, Roofline, Slot, objective_s

Make = Callable[..., Roofline]
WHOLE_H100 = Slot("H100", 1, first=True, last=True, send_gb_s=0.0)
WHOLE_A100 = Slot("A100", 1, first=True, last=True, send_gb_s=0.0)


def workload(r: Roofline, **lengths: float) -> Roofline:
    changed = r.level.workload.model_copy(update=lengths)
    return replace(r, level=r.level.model_copy(update={"workload": changed}))


def argued(r: Roofline, **arguments: str) -> Roofline:
    """With other vLLM arguments."""
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    return replace(r, variant=r.variant.model_copy(update={"vllm_args": given}))


def one(value: Values) -> float:
    return float(np.ravel(value)[0])


# ----------------------------------------------------------------------------------------------- seconds


def test_a_lone_decode_step_reads_the_weights_once(roofline: Make) -> None:
    r = roofline("qwen3-32b", "bf16")
    at_full_bandwidth = (65.52 - 1.56) / 3350  # the embedding is looked up, not read
    assert at_full_bandwidth < one(r.decode_s(WHOLE_H100, 64.0, 1.0)) < 1.5 * at_full_bandwidth


def test_a_long_prompt_takes_several_passes(roofline: Make) -> None:
    r = workload(roofline("qwen3-32b", "bf16"), mean_input_tokens=8192.0)
    step = r.prefill_step("H100", 1, 1.0)
    assert one(step.passes) == 4
    assert one(step.tokens) == 8192
    assert one(step.overhead.total_s) == pytest.approx(4 * r.efficiencies.of("H100").overhead.step_s)
    in_one = argued(r, max_num_batched_tokens="8192").prefill_step("H100", 1, 1.0)
    assert one(in_one.passes) == 1
    assert one(in_one.layer.total_s) < one(step.layer.total_s)


def test_several_short_prompts_share_a_pass(roofline: Make) -> None:
    r = replace(workload(roofline("qwen3-32b", "bf16"), mean_input_tokens=100.0), phase="prefill")
    table = r.table(WHOLE_H100, 1)[:, 63]
    assert BATCHES[table.argmax()] > 8, "one prompt a pass reads all weights for 100 tokens"
    assert table[BATCHES * 100 <= 2048].all()
    assert not table[BATCHES * 100 > 2048].any()


def test_a_chunk_rides_on_the_weights_that_the_decodes_read(roofline: Make) -> None:
    r = roofline("qwen3-32b", "bf16")
    decode = one(r.seconds(WHOLE_H100, 64.0, r.decode_step("H100", 1, 8.0)))
    mixed = one(r.seconds(WHOLE_H100, 64.0, r.mixed_step("H100", 1, 8.0, 256.0)))
    alone = one(workload(r, mean_input_tokens=256.0).prefill_s(WHOLE_H100, 64.0))
    assert decode < mixed < decode + alone


def test_both_objectives_hold_wherever_the_table_is_positive(roofline: Make) -> None:
    """Reckoned again from single steps, for one batch after another."""
    r = workload(roofline("qwen3-32b", "bf16"), mean_input_tokens=1155.0, mean_output_tokens=211.0)
    slot = Slot("L40S", 4, first=True, last=True, send_gb_s=0.0)
    table = r.table(slot, 1)[:, 63]
    assert table.any()
    for batch, rate in zip(BATCHES[table > 0], table[table > 0], strict=True):
        decode = one(r.decode_s(slot, 64.0, float(batch)))
        prompts = batch / 211  # in the mean step
        chunk = min(2048 - batch, 1155 * max(1.0, prompts))
        mixed = one(r.seconds(slot, 64.0, r.mixed_step("L40S", 4, float(batch), chunk)))
        share = prompts * 1155 / chunk
        mean = share * mixed + (1 - share) * decode
        assert share <= 1
        assert rate == pytest.approx(batch / 211 / mean)
        assert mean - (mean - decode) / batch <= 0.100  # its own prompt is over before its first token
        first = r.efficiencies.of("L40S").first_token
        assert first.server_s + first.own * max(1.0, 1155 / chunk) * mixed <= 1.600


@pytest.mark.parametrize("phase", ["prefill", "both"])
def test_a_first_token_comes_through_the_server_once_and_through_every_stage(
    roofline: Make, phase: Phase
) -> None:
    r = replace(roofline("qwen3-32b", "bf16"), phase=phase)
    first = FirstToken(server_s=0.030, own=1.25, evidence=Evidence(assumed="made up"))
    known = r.efficiencies.of("L40S").model_copy(update={"first_token": first})
    r = replace(r, efficiencies=Efficiencies(gpus=(known,)))
    slot, layers, batch = Slot("L40S", 4, True, True, 1.0), r.layer_counts, np.array([[4.0]])
    work = r.round("L40S", 4, batch)
    (wait,) = (wait for wait in work.waits if wait.promise == "TTFT")
    over = [one(r.waited_s(slot, 16.0, stages, wait)) for stages in (1, 2, 3)]
    assert np.diff(over) == pytest.approx(over[0] - 0.030)
    plain = known.model_copy(update={"first_token": first.model_copy(update={"server_s": 0.0, "own": 1.0})})
    bare = replace(r, efficiencies=Efficiencies(gpus=(plain,)))
    (steps,) = (wait for wait in bare.round("L40S", 4, batch).waits if wait.promise == "TTFT")
    assert over[0] == pytest.approx(0.030 + 1.25 * one(bare.waited_s(slot, 16.0, 1, steps)))
    _, deepest = r.pace(slot, layers, replace(work, waits=(wait,)))
    assert deepest[0, 15] == pytest.approx((wait.budget_s - 0.030) / (over[0] - 0.030))


def test_a_promise_shorter_than_the_way_through_the_server_is_never_kept(roofline: Make) -> None:
    r = roofline("qwen3-32b", "bf16")
    server_ms = 1000 * r.efficiencies.of("H100").first_token.server_s
    assert server_ms > 0
    hasty = r.level.model_copy(update={"ttft": (Objective(percentile=95, ms=0.9 * server_ms),)})
    assert r.table(WHOLE_H100, 1).any()
    assert not replace(r, level=hasty).table(WHOLE_H100, 1).any()


def test_ends_of_the_chain_do_what_is_theirs(roofline: Make) -> None:
    r = roofline("qwen3-32b", "bf16")
    step = r.decode_step("L40S", 2, 16.0)
    first, middle, last = (one(r.once_s(Slot("L40S", 2, at == 0, at == 2, 1.0), step)) for at in range(3))
    assert first == pytest.approx(middle + one(step.embedding.total_s))
    assert last == pytest.approx(one(step.overhead.total_s) + one(step.head.total_s))
    network = r.efficiencies.of("L40S").network
    sent = 16 * 5120 * 2 / (1e9 * network.share) + network.latency_s
    assert middle == pytest.approx(one(step.overhead.total_s) + sent)


def test_gpus_that_share_a_layer_talk_over_their_link(roofline: Make) -> None:
    r = roofline("qwen3-32b", "bf16")
    alone, shared = (r.decode_step("L40S", tp, 16.0).layer for tp in (1, 2))
    assert one(alone.link_s) == 0
    assert one(shared.link_s) > 0
    assert one(alone.total_s) / 2 < one(shared.total_s) < one(alone.total_s)


def test_a_correction_multiplies_the_layers_and_nothing_else(roofline: Make) -> None:
    r = roofline("qwen3-32b", "bf16")
    twice = Curve((1.0,), (2.0,))
    slow = replace(r, correction=Curves({("H100", 1): twice}, {("H100", 1): twice}))
    for name, sizes in (("decode_step", (8.0,)), ("prefill_step", (1.0,)), ("mixed_step", (8.0, 512.0))):
        plain, corrected = (getattr(which, name)("H100", 1, *sizes) for which in (r, slow))
        assert one(corrected.layer.total_s) == pytest.approx(2 * one(plain.layer.total_s))
        assert corrected.head == plain.head
        assert corrected.overhead == plain.overhead
    assert slow.decode_step("A100", 1, 8.0) == r.decode_step("A100", 1, 8.0)


def test_a_gpu_without_efficiencies_is_named(roofline: Make) -> None:
    r = roofline("qwen3-32b", "bf16")
    few = Efficiencies(gpus=tuple(e for e in r.efficiencies.gpus if e.gpu != "H100"))
    with pytest.raises(ValueError, match="efficiencies: no GPU 'H100', expected one of"):
        replace(r, efficiencies=few).table(WHOLE_H100, 1)


# ------------------------------------------------------------------------------------------------ memory


def test_a_stage_holds_the_cache_of_every_micro_batch_in_flight(roofline: Make) -> None:
    r = workload(roofline("qwen3-32b", "bf16"), mean_input_tokens=2000.0, mean_output_tokens=48.0)
    slot = Slot("L40S", 1, first=False, last=False, send_gb_s=1.0)
    room = 48e9 * 0.9 - 2e9 - 16 * r.shape.layer_bytes
    sequences = room / (16 * 2048 * 4096)  # 262144 bytes a token over 64 layers
    for batch in (1.0, 8.0, 32.0):
        assert one(r.memory_depth(slot, np.array([16.0]), batch)) == pytest.approx(sequences / batch)


def test_prefill_hands_the_cache_on_before_the_output_comes(roofline: Make) -> None:
    r = argued(workload(roofline("qwen3-32b", "bf16"), mean_input_tokens=100.0, mean_output_tokens=300.0))
    held = {
        phase: one(replace(r, phase=phase).cache_bytes(WHOLE_H100, 64.0, 10.0))
        for phase in ("prefill", "decode", "both")
    }
    assert held == pytest.approx({"prefill": 262144e3, "decode": 4 * 262144e3, "both": 4 * 262144e3})


def test_vllm_must_hold_one_longest_request(roofline: Make) -> None:
    r = roofline("qwen3-32b", "bf16")
    room = r.memory_bytes(WHOLE_A100) - r.shape.total_bytes
    assert 8192 * 262144 <= room < 32768 * 262144
    assert r.most_layers(WHOLE_A100, 1) == 64
    assert argued(r, max_model_len="32768").most_layers(WHOLE_A100, 1) < 64


def test_tied_embeddings_are_one_table_within_one_stage(roofline: Make) -> None:
    r = roofline("qwen3-32b", "bf16")
    tied = r.model.architecture.model_copy(update={"tied_embeddings": True})
    r = replace(r, model=r.model.model_copy(update={"architecture": tied}))
    ends = [Slot("H100", 1, first, last, 1.0) for first, last in ((True, True), (True, False), (False, True))]
    assert [one(r.weight_bytes(slot, 0.0)) / r.shape.head_bytes for slot in ends] == [1, 1, 1]


# ------------------------------------------------------------------------------------- the engine's limits


@pytest.mark.parametrize(
    ("phase", "arguments", "most"),
    [
        ("decode", {"max_num_seqs": "32"}, 32 / 4),
        ("decode", {"max_num_batched_tokens": "20"}, 20),
        ("both", {"max_num_seqs": "32"}, 32 / 4),
        # Each sequence brings itself and 1155/211 prompt tokens a step.
        ("both", {"max_num_batched_tokens": "200"}, 200 / (1 + 1155 / 211)),
    ],
)
def test_batches_keep_to_the_engines_limits(
    roofline: Make, phase: Phase, arguments: dict[str, Any], most: float
) -> None:
    r = workload(roofline("phi-4-14b", "bf16"), mean_input_tokens=1155.0, mean_output_tokens=211.0)
    slot = Slot("H100", 1, first=False, last=False, send_gb_s=100.0)
    served = BATCHES[argued(replace(r, phase=phase), **arguments).table(slot, 4)[:, 0] > 0]
    assert served.max() <= most < served.max() * 1.09


def test_the_objective_is_that_of_the_prompts_bucket() -> None:
    objectives = (
        Objective(percentile=95, ms=900),
        Objective(percentile=95, ms=300, max_prompt_tokens=512),
        Objective(percentile=95, ms=500, max_prompt_tokens=2048),
    )
    assert [objective_s(objectives, n) for n in (100, 512, 513, 5000)] == [0.3, 0.3, 0.5, 0.9]
    assert objective_s(objectives[1:], 5000) == 0.5
