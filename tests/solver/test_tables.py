"""That[position, S, c, j] of whole nodes, against single slots, and in time."""

import time
from collections.abc import Callable

import numpy as np
import pytest

from schemas.catalog import Catalog, Configuration, Phase
from schemas.performance import load_efficiencies
from solver.roofline import Roofline, Slot
from solver.tables import POSITIONS, NodeTable, node_table

Make = Callable[..., Roofline]
Nodes = Callable[..., list[Configuration]]
HANG_S = 3 * 2.0
"""Three times what issue 5 allows for the whole table."""


def test_an_entry_is_the_best_degree_with_replicas_on_the_rest(roofline: Make, nodes: Nodes) -> None:
    r, (node,) = roofline("qwen3-32b", "bf16"), nodes("4xL40S")
    found = node_table(r, [node], (1, 3))
    for p, (first, last) in enumerate([(True, False), (False, False), (False, True)]):
        by_degree = []
        for tp in (1, 2, 4):
            send = node.network_gbps / 8 / (4 // tp)  # replicas share the node's network
            table = r.table(Slot("L40S", tp, first, last, 0.0 if last else send), 3)
            by_degree.append(4 // tp * table.max(axis=0))
        assert found.throughput[p, 1, 0] == pytest.approx(np.max(by_degree, axis=0))
        best = found.tp[p, 1, 0]
        assert set(best[found.throughput[p, 1, 0] > 0]) <= {1, 2, 4}
        assert not best[found.throughput[p, 1, 0] == 0].any()


def test_a_lone_stage_is_first_and_last(roofline: Make, nodes: Nodes) -> None:
    r = roofline("qwen3-32b", "fp8")
    found = node_table(r, nodes("1xH100"), (1,))
    whole = r.table(Slot("H100", 1, True, True, 0.0), 1).max(axis=0)
    for p in range(len(POSITIONS)):
        assert found.throughput[p, 0, 0] == pytest.approx(whole)


def test_ends_of_a_chain_give_no_more_than_its_middle_save_for_what_is_sent(
    roofline: Make, nodes: Nodes
) -> None:
    """The first holds the embedding beside; the last has the LM head, but sends nothing."""
    found = node_table(roofline("llama-3-70b", "bf16"), nodes("8xA100", "4xL40S"), (2, 4))
    first, middle = found.throughput[POSITIONS.index("first")], found.throughput[POSITIONS.index("middle")]
    assert (first <= middle).all()
    assert (first < middle).any()


def test_a_gpu_that_the_variant_does_not_run_on_gives_nothing(roofline: Make, nodes: Nodes) -> None:
    r = roofline("qwen3-32b", "fp8")
    assert "A10G" not in r.variant.gpus
    found = node_table(r, nodes("8xA10G", "8xL40S"))
    assert not found.throughput[:, :, 0].any()
    assert found.throughput[:, :, 1].any()


def test_layers_and_stages_never_add_throughput(roofline: Make, nodes: Nodes) -> None:
    found = node_table(roofline("gpt-oss-120b", "mxfp4"), nodes("1xL4", "2xL40S", "8xA100", "4xH100"))
    assert (np.diff(found.throughput, axis=-1) <= 0).all()
    assert (np.diff(found.throughput[:, 1:], axis=1) <= 0).all()


def full_table(catalog: Catalog) -> dict[tuple[str, str, Phase], NodeTable]:
    """All phases of all variants of the paper's six models on its 20 configurations, up to 6 stages."""
    gpus, efficiencies = {gpu.name: gpu for gpu in catalog.gpus}, load_efficiencies()
    kinds = ("L4", "A10G", "L40S", "A100", "H100")
    configurations = [catalog.configuration(f"{n}x{kind}") for kind in kinds for n in (1, 2, 4, 8)]
    names = ("phi-4-14b", "gpt-oss-20b", "qwen3-32b", "llama-3-70b", "gpt-oss-120b", "qwen3-235b-a22b")
    phases: tuple[Phase, ...] = ("prefill", "decode", "both")
    return {
        (name, variant.name, phase): node_table(
            Roofline(model, variant, model.levels[0], gpus, efficiencies, phase), configurations
        )
        for name in names
        for model in [catalog.model(name)]
        for variant in model.variants
        for phase in phases
    }


def test_the_whole_table_takes_seconds(catalog: Catalog) -> None:
    """A guard against hangs on the processor's time; tests/bench prints the figure that counts."""
    began = time.process_time()
    tables = full_table(catalog)
    assert time.process_time() - began < HANG_S
    assert {phase for _, _, phase in tables} == {"prefill", "decode", "both"}
    assert len({model for model, _, _ in tables}) == 6
    for found in tables.values():
        assert found.throughput.shape[:3] == (3, 6, 20)
        assert np.isfinite(found.throughput).all()
        assert found.throughput.any()
