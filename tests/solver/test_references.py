"""The references against each other: all cuts one by one, stage after stage, and the paper's program."""

from collections.abc import Callable

import numpy as np
import pytest

from schemas.catalog import Configuration, Phase
from solver.placement_ilp import Unproven, program, solve_placement, solve_program
from solver.roofline import BATCHES, Roofline
from solver.tables import node_table
from tests.solver.references import (
    as_table,
    assignments,
    best_cuts,
    best_of_all_cuts,
    best_of_stages,
    best_shared,
    chain_rates,
    given,
    made_up,
    stage_rates,
)

Make = Callable[..., Roofline]
Nodes = Callable[..., list[Configuration]]


def test_stage_after_stage_finds_what_every_cut_one_by_one_does() -> None:
    rng = np.random.default_rng(1)
    for stages in (1, 2, 3, 4):
        for _ in range(10):
            rates = rng.integers(0, 6, (stages, 5, 8)).astype(float)  # not even falling
            assert best_cuts(rates) == pytest.approx([best_of_all_cuts(rates[:, i]) for i in range(5)])
    assert best_of_all_cuts(np.ones((3, 2))) == best_cuts(np.ones((3, 2))) == 0  # two layers in three stages


def test_every_assignment_is_told_once() -> None:
    surjections = {1: 1, 2: 62, 3: 540, 4: 1560, 5: 1800, 6: 720}
    for stages, count in surjections.items():
        assert len(set(assignments((0, 1, 2, 3, 4, 5), stages))) == count
    # Equal nodes: only how many of them each stage has counts, so compositions of 6.
    assert [len(list(assignments((0,) * 6, s))) for s in range(1, 7)] == [1, 5, 10, 10, 5, 1]


@pytest.mark.parametrize("seed", range(12))
def test_the_program_finds_what_going_through_all_placements_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = made_up(rng, configurations=3, layers=4 + seed % 3, most_stages=4, digits=seed % 3)
    nodes = sorted(rng.integers(0, 3, 1 + seed % 4).tolist())
    for stages in range(1, len(nodes) + 1):
        expected = best_of_stages(table, nodes, stages)
        found = solve_program(program(table, nodes, stages))
        assert (found.throughput if found else 0.0) == pytest.approx(expected, rel=1e-9)
        if found:
            assert found.bound == pytest.approx(expected, rel=1e-7)
            assert given(table, nodes, found.layers, found.stage_of) == pytest.approx(found.throughput)
    whole = solve_placement(table, nodes)
    assert (whole.throughput if whole else 0.0) == pytest.approx(best_shared(table, nodes), rel=1e-9)


def test_a_stage_is_as_good_as_its_nodes_together_and_ends_differ() -> None:
    """By hand: 3 layers; the slow pair shares the first stage, where the fast node alone would be worse."""
    that = np.zeros((3, 3, 2, 3))  # positions, stages, configurations, layers
    that[:, 1, 0] = [6, 3, 0]  # slow: two of them give 6 with two layers
    that[:, 1, 1] = [9, 4, 0]  # fast
    that[0, 1, 1] = 0  # but has no room for the embedding
    table = as_table(that)
    found = solve_placement(table, (0, 0, 1))
    assert found is not None
    assert (found.throughput, found.layers, found.stage_of) == (6, (2, 1), (0, 0, 1))
    assert best_shared(table, (0, 0, 1)) == 6
    assert solve_placement(table, (0, 1)) is not None
    assert solve_placement(table, (1, 1)) is None  # neither can be first
    assert best_shared(table, (1, 1)) == 0


def test_without_the_time_nothing_is_claimed() -> None:
    table = made_up(np.random.default_rng(0), configurations=6, layers=40, most_stages=6)
    with pytest.raises(Unproven, match="5 stages"):
        solve_program(program(table, range(6), 5), time_limit_s=0.1)


@pytest.mark.parametrize("phase", ["both", "prefill", "decode"])
def test_chains_and_shared_stages_agree_where_they_are_the_same(
    roofline: Make, nodes: Nodes, phase: Phase
) -> None:
    """One stage on one node of one GPU, in either runtime: the best batch of the one table."""
    r = roofline("gpt-oss-20b", "mxfp4", phase=phase)
    (node,) = nodes("1xL40S")
    lone = best_cuts(chain_rates(r, [node], 1))
    assert lone.shape == (1, len(BATCHES))
    shared = node_table(r, [node])
    assert lone.max() == best_shared(shared, (0,)) == stage_rates(shared, (0,), 1)[0, 0, -1] > 0


@pytest.mark.parametrize(
    ("model", "variant", "layers", "names", "tp"),
    [
        ("gpt-oss-20b", "mxfp4", 8, ("2xL4", "1xL40S"), 1),
        ("qwen3-32b", "bf16", 10, ("4xL4", "2xL40S"), 2),
        ("qwen3-32b", "fp8", 9, ("1xA100", "2xL4", "1xA100"), 1),
    ],
)
def test_the_best_chain_is_the_best_of_all_one_by_one(
    roofline: Make, nodes: Nodes, model: str, variant: str, layers: int, names: tuple[str, ...], tp: int
) -> None:
    rates = chain_rates(roofline(model, variant, layers), nodes(*names), tp)
    stages, orders, batches, _ = rates.shape
    assert stages == sum(node.gpus // tp for node in nodes(*names))
    chains = rates.reshape(stages, orders * batches, layers)
    one_by_one = [best_of_all_cuts(chains[:, i]) for i in range(orders * batches)]
    assert best_cuts(chains) == pytest.approx(one_by_one)
    assert max(one_by_one) > 0
