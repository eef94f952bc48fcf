"""What is said of a node: the numbers add up, agree with the table, and name the limit that binds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from schemas.catalog import Configuration, Phase
from solver.explain import explain
from solver.explanation import Explanation
from solver.roofline import BATCHES, Roofline
from solver.tables import POSITIONS, node_table

Make = Callable[..., Roofline]
Nodes = Callable[..., list[Configuration]]

CASES = [
    ("qwen3-32b", "bf16", "2xL40S", 12, None, "decode"),
    ("qwen3-32b", "fp8", "1xH100", 64, None, "both"),
    ("llama-3-70b", "bf16", "8xA100", 80, None, "both"),
    ("gpt-oss-20b", "mxfp4", "1xL4", 24, None, "prefill"),
    ("gpt-oss-120b", "mxfp4", "4xH100", 9, "first", "decode"),
    ("qwen3-235b-a22b", "bf16", "8xA100", 47, "last", "both"),
]


@pytest.fixture
def explained(roofline: Make, nodes: Nodes) -> Callable[..., Explanation]:
    def make(
        model: str, variant: str, node: str, layers: int, place: Any, phase: Phase, **given: Any
    ) -> Explanation:
        r = replace(roofline(model, variant), phase=phase)
        return explain(r, nodes(node)[0], layers, place=place, **given)

    return make


@pytest.mark.parametrize("case", CASES)
def test_the_parts_add_up(explained: Callable[..., Explanation], case: tuple[Any, ...]) -> None:
    found = explained(*case)
    step, memory = found.step, found.memory
    parts = step.layers_ms + step.embedding_ms + step.head_ms + step.send_ms + step.overhead_ms
    assert step.total_ms == pytest.approx(parts)
    assert max(step.alone_ms.values()) <= step.total_ms <= sum(step.alone_ms.values()) * (1 + 1e-9)
    held = memory.weights_gb + memory.kv_gb + memory.reserved_gb + memory.free_gb
    assert memory.total_gb == pytest.approx(held)
    assert (found.stages > 1) == (step.send_ms > 0 or found.place == "last")


@pytest.mark.parametrize("case", CASES)
def test_it_agrees_with_the_table(
    explained: Callable[..., Explanation], roofline: Make, nodes: Nodes, case: tuple[Any, ...]
) -> None:
    found = explained(*case)
    r = replace(roofline(case[0], case[1]), phase=case[5])
    table = node_table(r, nodes(case[2]), (found.stages,))
    position = 0 if found.place == "alone" else POSITIONS.index(found.place)
    assert found.throughput == pytest.approx(table.throughput[position, 0, 0, found.layers - 1])
    assert found.throughput > 0
    assert found.tp == table.tp[position, 0, 0, found.layers - 1]
    assert found.replicas * found.tp == nodes(case[2])[0].gpus


@pytest.mark.parametrize("case", CASES)
def test_its_batch_keeps_every_limit_and_the_next_is_said_to_break_some_or_gains_nothing(
    explained: Callable[..., Explanation], case: tuple[Any, ...]
) -> None:
    found = explained(*case)
    assert not any(bound.broken for bound in found.bounds)
    following = found.next_batch
    if following is None:
        assert found.batch == BATCHES[-1]
    elif following.violates:
        assert all(bound.broken for bound in following.violates)
    else:
        assert following.throughput <= found.throughput
    assert all(gain >= -1e-9 for gain in found.gains.values())


# Each made to bind by taking away what it limits, or by giving the rest in plenty.
PLENTY: dict[str, Any] = {
    "bandwidth_gb_s": 1e6,
    "bf16_tflops": 1e6,
    "link_gb_s": 1e5,
    "memory_gb": 1e5,
}


def with_gpu(r: Roofline, **fields: Any) -> Roofline:
    return replace(r, gpus={name: gpu.model_copy(update=fields) for name, gpu in r.gpus.items()})


def patient(r: Roofline, times: float) -> Roofline:
    """The same with latency promises so many times as long."""
    later = {
        name: tuple(o.model_copy(update={"ms": times * o.ms}) for o in getattr(r.level, name))
        for name in ("ttft", "tpot")
    }
    return replace(r, level=r.level.model_copy(update=later))


@pytest.mark.parametrize(
    ("binds", "phase", "changes", "layers"),
    [
        ("compute", "prefill", {}, 32),
        ("memory-bandwidth", "decode", {"memory_gb": 1000.0}, 32),
        ("kv-space", "decode", {"memory_gb": 28.0}, 32),
        ("latency-budget", "decode", {"bandwidth_gb_s": 420.0, "memory_gb": 400.0}, 32),
        ("link", "prefill", {**PLENTY, "link_gb_s": 1.0}, 32),
        ("fixed-overhead", "decode", PLENTY, 64),
    ],
)
def test_the_limit_that_binds_is_named(
    roofline: Make, nodes: Nodes, binds: str, phase: Phase, changes: dict[str, Any], layers: int
) -> None:
    r = roofline("qwen3-32b", "bf16")
    endless = r.variant.model_copy(
        update={"vllm_args": {"max-num-seqs": "100000", "max-num-batched-tokens": "2048"}}
    )
    r = with_gpu(replace(r, variant=endless, phase=phase), **changes)
    found = explain(r if binds == "latency-budget" else patient(r, 100), nodes("2xL40S")[0], layers, tp=2)
    assert found.binds == binds, found


def test_the_network_binds_where_it_is_slow(roofline: Make, nodes: Nodes) -> None:
    r = patient(replace(roofline("qwen3-32b", "bf16"), phase="prefill"), 100)
    slow = nodes("2xL40S")[0].model_copy(update={"network_gbps": 0.5})
    found = explain(r, slow, 8, tp=2)
    assert found.binds == "network"
    assert found.gains["network"] == max(found.gains.values())
    assert found.step.send_ms == pytest.approx(found.step.alone_ms["network"])


def test_what_does_not_fit_says_by_how_much(roofline: Make, nodes: Nodes) -> None:
    found = explain(roofline("qwen3-32b", "bf16"), nodes("1xL4")[0], 64)
    assert (found.binds, found.throughput, found.batch, found.gains) == ("kv-space", 0, 1, {})
    assert found.memory.free_gb < -40
    (memory,) = [bound for bound in found.bounds if bound.limit == "kv-space"]
    assert memory.needs - memory.allowed == pytest.approx(-found.memory.free_gb)


def test_the_engines_own_limits_are_named(roofline: Make, nodes: Nodes) -> None:
    r = roofline("gpt-oss-20b", "mxfp4")
    few = r.variant.model_copy(update={"vllm_args": {"max-num-seqs": "8"}})
    found = explain(replace(r, variant=few, phase="decode"), nodes("1xH100")[0], 24)
    assert found.binds == "max-num-seqs"
    assert found.batch <= 8
    assert found.next_batch is not None
    assert [bound.limit for bound in found.next_batch.violates] == ["max-num-seqs"]


def test_a_limit_binds_where_a_larger_batch_gives_a_quarter_of_its_growth(
    roofline: Make, nodes: Nodes
) -> None:
    """And no earlier: at every limit on sequences, what binds goes by what one batch more would give."""
    r = replace(roofline("qwen3-32b", "bf16"), phase="decode")
    r, (node,) = patient(with_gpu(r, memory_gb=1000.0), 100), nodes("2xL40S")
    long = r.level.workload.model_copy(update={"mean_input_tokens": 8000.0})
    r = replace(r, level=r.level.model_copy(update={"workload": long}))
    shares = []
    for most in BATCHES[10:-1]:
        limited = r.variant.model_copy(update={"vllm_args": {"max-num-seqs": f"{most * 1.001}"}})
        found = explain(replace(r, variant=limited), node, 32, tp=2, stages=2)
        assert found.next_batch is not None
        shares.append(
            (found.next_batch.throughput / found.throughput - 1) / (found.next_batch.batch / found.batch - 1)
        )
        assert (found.binds == "max-num-seqs") == (shares[-1] >= 0.25), (most, shares[-1], found.binds)
    assert any(0.2 < share < 0.25 for share in shares)
    assert any(0.25 < share < 0.3 for share in shares)


def test_where_a_variant_says_nothing_vllms_own_default_is_the_most(roofline: Make, nodes: Nodes) -> None:
    r = with_gpu(patient(replace(roofline("qwen3-32b", "bf16"), phase="decode"), 100), **PLENTY)
    plain = replace(r, variant=r.variant.model_copy(update={"vllm_args": {}}))
    found = explain(plain, nodes("2xL40S")[0], 64, tp=2)
    (sequences,) = [bound for bound in found.bounds if bound.limit == "max-num-seqs"]
    assert sequences.allowed == 256
    assert found.batch == pytest.approx(256)


def test_without_a_number_of_stages_the_model_is_spread_over_such_nodes(roofline: Make, nodes: Nodes) -> None:
    r, (node,) = roofline("qwen3-32b", "bf16"), nodes("2xL40S")
    found = [explain(r, node, layers) for layers in (64, 63, 32, 31, 12)]
    assert [(e.stages, e.place) for e in found] == [
        (1, "alone"),
        (2, "last"),
        (2, "last"),
        (3, "middle"),
        (6, "middle"),
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"layers": 0}, "layers: 0, expected 1 to 64"),
        ({"layers": 65}, "layers: 65, expected 1 to 64"),
        ({"layers": 60, "stages": 6}, "stages: 6, expected 2 to 5"),
        ({"layers": 60, "stages": 1}, "stages: 1, expected 2 to 5"),
        ({"layers": 64, "stages": 2}, "stages: 2, expected 1 to 1"),
        ({"layers": 64, "place": "first"}, "place: first, expected alone at 1 stages"),
        ({"layers": 32, "place": "alone"}, "place: alone, expected first, middle or last at 2 stages"),
        ({"layers": 32, "place": "middle"}, "place: middle, expected first or last at 2 stages"),
        ({"layers": 32, "tp": 3}, "tp: 3, expected one of 1, 2, 4"),
    ],
)
def test_what_cannot_be_is_refused(roofline: Make, nodes: Nodes, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        explain(roofline("qwen3-32b", "bf16"), nodes("4xL40S")[0], **given)


def test_a_gpu_that_the_variant_does_not_run_on_is_refused(roofline: Make, nodes: Nodes) -> None:
    with pytest.raises(ValueError, match=r"gpu: A10G, expected one of .*L40S.*, on which fp8 runs"):
        explain(roofline("qwen3-32b", "fp8"), nodes("1xA10G")[0], 64)


def test_what_ifs_leave_the_question_alone(roofline: Make, nodes: Nodes) -> None:
    r = roofline("phi-4-14b", "bf16")
    once, twice = (explain(r, nodes("1xA100")[0], 40) for _ in range(2))
    assert once == twice
    assert np.isfinite(list(once.gains.values())).all()
