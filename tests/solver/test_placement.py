"""Placements as templates, and the reasons for having none; that none is better is in test_exactness."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from schemas.catalog import Configuration
from solver.chains import Placement
from solver.placement import Refusal, place, search
from solver.roofline import Roofline

Make = Callable[..., Roofline]
Nodes = Callable[..., list[Configuration]]


@pytest.mark.parametrize(
    ("model", "variant", "names", "reason"),
    [
        ("qwen3-32b", "fp8", ("1xA10G",), "gpu-not-allowed"),
        ("qwen3-32b", "bf16", ("1xL4",), "does-not-fit"),
        ("qwen3-32b", "bf16", ("2xL4",), "does-not-fit"),
        ("llama-3-70b", "bf16", ("8xL4",), "slo-too-tight"),
    ],
)
def test_refusals_name_their_reason(
    roofline: Make, nodes: Nodes, model: str, variant: str, names: tuple[str, ...], reason: str
) -> None:
    assert place(roofline(model, variant), nodes(*names)) == Refusal(reason)  # type: ignore[arg-type]


def test_more_stages_than_layers_is_no_parallelism(roofline: Make, nodes: Nodes) -> None:
    # Phi-4 splits over at most 2 devices, so 8 GPUs are at least 4 stages.
    assert search(roofline("phi-4-14b", "bf16", 3), nodes("8xL4")) == Refusal("no-parallelism")


@pytest.mark.parametrize("names", [("4xL4",), ("2xL40S",), ("1xA100",), ("1xH100",)])
def test_qwen3_32b_in_bf16_needs_about_80_gb(roofline: Make, nodes: Nodes, names: tuple[str, ...]) -> None:
    assert isinstance(place(roofline("qwen3-32b", "bf16"), nodes(*names)), Placement)


def test_a_template_covers_the_model_and_every_device(roofline: Make, nodes: Nodes) -> None:
    r = roofline("qwen3-32b", "bf16")
    placement = place(r, nodes("1xL40S", "1xH100"))
    assert isinstance(placement, Placement)
    t = placement.template
    assert sum(stage.layers for stage in t.stages) == 64
    assert t.stages[t.nodes.index("1xH100")].layers > t.stages[t.nodes.index("1xL40S")].layers
    for stage in t.stages:
        memory = {"1xL40S": 48, "1xH100": 80}[t.nodes[stage.ranks[0].node]]
        assert 0 < stage.ranks[0].memory_gb <= memory
    assert placement.rating.engine == "roofline-3"
    assert list(t.latency.step_ms) == sorted(t.latency.step_ms)
    assert 60 < t.latency.startup_s < 60 + r.shape.total_bytes / 1e9


def test_a_template_says_which_weights_and_whether_they_are_checked(roofline: Make, nodes: Nodes) -> None:
    r = roofline("gpt-oss-20b", "mxfp4")
    plain = place(r, nodes("1xL4"))
    said = r.variant.model_copy(update={"revision": "a" * 64, "unverified": "allow"})
    pinned = place(replace(r, variant=said), nodes("1xL4"))
    assert isinstance(plain, Placement)
    assert isinstance(pinned, Placement)
    assert (pinned.template.revision, pinned.template.unverified) == ("a" * 64, "allow")
    assert pinned.template.id != plain.template.id


def test_stages_of_a_node_are_consecutive_with_disjoint_devices(roofline: Make, nodes: Nodes) -> None:
    placement = place(roofline("qwen3-32b", "fp8"), nodes("4xL40S"))
    assert isinstance(placement, Placement)
    ranks = [rank for stage in placement.template.stages for rank in stage.ranks]
    assert sorted(d for rank in ranks for d in rank.device_ids) == [0, 1, 2, 3]
    assert len({rank.tp for rank in ranks}) == 1


def test_a_slow_network_is_worth_less(roofline: Make, nodes: Nodes) -> None:
    r = roofline("qwen3-32b", "bf16")
    slow = [n.model_copy(update={"network_gbps": 1.0}) for n in nodes("1xH100", "1xH100")]
    fast = search(r, nodes("1xH100", "1xH100"))
    hampered = search(r, slow)
    assert not isinstance(fast, Refusal)
    assert isinstance(hampered, Refusal) or hampered.throughput < fast.throughput


# ---------------------------------------------------------------------------------------------- runtime coral


def test_nodes_of_a_stage_hold_the_same_layers_and_add_up(roofline: Make, nodes: Nodes) -> None:
    """Two slow nodes share a stage beside a fast one: runtime `vllm` would need a chain of three."""
    r = roofline("qwen3-32b", "bf16", phase="decode")
    placement = place(r, nodes("2xL4", "1xH100", "2xL4"), "coral")
    assert isinstance(placement, Placement)
    template = placement.template
    assert template.runtime == "coral"
    assert sum(stage.layers for stage in template.stages) == 64
    shared = [{template.nodes[rank.node] for rank in stage.ranks} for stage in template.stages]
    assert sorted(map(sorted, shared)) == [["1xH100"], ["2xL4"]]
    devices = [
        (rank.node, device) for stage in template.stages for rank in stage.ranks for device in rank.device_ids
    ]
    assert len(set(devices)) == len(devices) == 5
    for stage in template.stages:
        for rank in stage.ranks:
            assert 0 < rank.memory_gb <= {"2xL4": 24, "1xH100": 80}[template.nodes[rank.node]] * rank.tp


@pytest.mark.parametrize(
    ("model", "variant", "names", "reason"),
    [
        ("qwen3-32b", "fp8", ("1xA10G",), "gpu-not-allowed"),
        ("qwen3-32b", "bf16", ("1xL4", "1xL4"), "does-not-fit"),
        ("llama-3-70b", "bf16", ("8xL4",), "slo-too-tight"),
    ],
)
def test_coral_refuses_with_the_same_reasons(
    roofline: Make, nodes: Nodes, model: str, variant: str, names: tuple[str, ...], reason: str
) -> None:
    assert place(roofline(model, variant), nodes(*names), "coral") == Refusal(reason)  # type: ignore[arg-type]


def test_a_node_that_would_add_nothing_makes_no_template(roofline: Make, nodes: Nodes) -> None:
    """Eight H100 hold all of it; as a stage of its own an L4 would be the slowest by far."""
    r = roofline("qwen3-32b", "bf16", phase="prefill")
    with pytest.raises(ValueError, match="1xL4 would add nothing"):
        place(r, nodes("8xH100", "1xL4"), "coral")
