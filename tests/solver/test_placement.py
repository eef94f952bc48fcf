"""The placement search against brute force, and the reasons it refuses with."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations

import pytest

from schemas.catalog import Configuration
from solver.placement import Placement, Refusal, chain_slots, place, search
from solver.roofline import BATCHES, Roofline

Make = Callable[..., Roofline]
Nodes = Callable[..., list[Configuration]]


def cuts(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut `layers` into `stages` of at least one."""
    for inner in combinations(range(1, layers), stages - 1):
        edges = (0, *inner, layers)
        yield tuple(b - a for a, b in pairwise(edges))


def brute_force(r: Roofline, nodes: Sequence[Configuration]) -> float:
    """All degrees, orders, cuts and batches, one by one."""
    best = 0.0
    layers = r.model.architecture.layers
    for tp in (1, 2, 4, 8):
        if any(node.gpus % tp for node in nodes) or not r.shape.splits_into(tp):
            continue
        for order in permutations(nodes):
            slots = chain_slots(r, order, tp)
            if len(slots) > layers:
                continue
            tables = [r.table(slot, len(slots)) for slot in slots]
            for cut in cuts(layers, len(slots)):
                for b in range(len(BATCHES)):
                    best = max(best, min(float(t[b, j - 1]) for t, j in zip(tables, cut, strict=True)))
    return best


@pytest.mark.parametrize(
    ("model", "variant", "layers", "names"),
    [
        ("gpt-oss-20b", "mxfp4", 9, ("1xL4",)),
        ("gpt-oss-20b", "mxfp4", 9, ("2xL4", "1xL40S")),
        ("gpt-oss-20b", "mxfp4", 8, ("1xL4", "1xL40S", "1xH100")),
        ("qwen3-32b", "bf16", 10, ("4xL4", "2xL40S")),
        ("qwen3-32b", "fp8", 11, ("1xA100", "2xL4", "1xA100")),
        ("phi-4-14b", "bf16", 9, ("4xA10G", "2xA10G")),
        ("qwen3-235b-a22b", "fp8", 9, ("4xL40S", "2xH100")),
    ],
)
def test_search_equals_brute_force(
    roofline: Make, nodes: Nodes, model: str, variant: str, layers: int, names: tuple[str, ...]
) -> None:
    r = roofline(model, variant, layers)
    found = search(r, nodes(*names))
    reached = 0.0 if isinstance(found, Refusal) else found.throughput
    assert reached == pytest.approx(brute_force(r, nodes(*names)), rel=1e-12)
    assert reached > 0


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
