"""The rules of `agents.deployable`: each broken alone, and what the planner makes keeps them all."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.deployable import undeployable
from schemas.plans import Instance, Rank, Stage
from tests.agents.shapes import Place, shaped

TWO: list[Place] = [("c1", (0,)), ("c2", (0,))]


def changed(instance: Instance, stage: int, **fields: Any) -> Instance:
    stages = list(instance.stages)
    stages[stage] = stages[stage].model_copy(update=fields)
    return instance.model_copy(update={"stages": tuple(stages)})


def with_rank(instance: Instance, stage: int, **fields: Any) -> Instance:
    return changed(instance, stage, ranks=(instance.stages[stage].ranks[0].model_copy(update=fields),))


@pytest.mark.parametrize(
    ("layers", "places"),
    [
        ([4], [("c1", (0,))]),
        ([1, 3], TWO),
        ([1, 2, 1], [("c1", (0,)), ("c1", (1,)), ("c2", (0,))]),
        ([2, 2], [("c1", (0, 1)), ("c2", (2, 3))]),
        ([1, 3], [("c1", (3,)), ("c1", (0,))]),
    ],
)
def test_what_vllm_can_do(layers: list[int], places: list[Place]) -> None:
    assert undeployable(*shaped(layers, places)) is None


def test_another_runtime() -> None:
    assert undeployable(*shaped([4], [("c1", (0,))], runtime="coral")) == "runtime coral is not deployable"


def test_data_parallel_ranks_inside_a_stage() -> None:
    instance, template = shaped([1, 3], TWO)
    pair = (instance.stages[1].ranks[0], Rank(claim="c2", device_ids=(1,), tp=1, memory_gb=1.0))
    assert undeployable(changed(instance, 1, ranks=pair), template) == (
        "stage 1: 2 ranks, runtime vllm takes one a stage"
    )


def test_one_tensor_parallel_degree_for_all_stages() -> None:
    assert undeployable(*shaped([1, 3], [("c1", (0,)), ("c2", (0, 1))])) == (
        "stage 1: tp 2, expected 1 as in the first stage"
    )


@pytest.mark.parametrize("devices", [(0,), (0, 1, 2), (1, 1)])
def test_a_device_for_each_of_tp(devices: tuple[int, ...]) -> None:
    """vLLM's parser takes any list; the workers then fail, or leave devices idle."""
    instance, template = shaped([1, 3], [("c1", (0, 1)), ("c2", (0, 1))])
    assert undeployable(with_rank(instance, 1, device_ids=devices), template) == (
        f"stage 1: device_ids {list(devices)}, expected 2 different ones"
    )


def test_stages_of_a_node_are_consecutive() -> None:
    assert undeployable(*shaped([1, 2, 1], [("c1", (0,)), ("c2", (0,)), ("c1", (1,))])) == (
        "claim c1: stages [0, 2], expected consecutive ones on one node"
    )


def test_layers_follow_each_other() -> None:
    instance, template = shaped([1, 3], TWO)
    assert undeployable(changed(instance, 1, first_layer=2), template) == "stage 1: first_layer 2, expected 1"


def test_layers_add_up_to_the_models() -> None:
    instance, template = shaped([1, 3], TWO)
    assert undeployable(changed(instance, 1, layers=2), template) == (
        "3 layers in all stages, expected the model's 4"
    )


def test_no_more_stages_than_layers() -> None:
    instance, template = shaped([1, 1], TWO)
    extra = Stage(
        index=2, first_layer=2, layers=1, ranks=(Rank(claim="c3", device_ids=(0,), tp=1, memory_gb=1.0),)
    )
    longer = instance.model_copy(update={"stages": (*instance.stages, extra)})
    assert undeployable(longer, template) == "3 stages, expected at most 2, one for each layer"


def test_stages_are_numbered_in_order() -> None:
    instance, template = shaped([1, 3], TWO)
    assert undeployable(changed(instance, 1, index=2), template) == (
        "stages [0, 2], expected 0 to 1 in this order"
    )


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_nixl_knows_no_pipeline(phase: Any) -> None:
    assert undeployable(*shaped([4], [("c1", (0,))], phase=phase)) is None
    assert undeployable(*shaped([1, 3], TWO, phase=phase)) == (
        f"phase {phase}: 2 stages, expected 1, the most NIXL connects"
    )


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 4), st.integers(1, 3))
def test_chains_over_whole_nodes_are_deployable(layers: list[int], tp: int, a_node: int) -> None:
    """What the planner makes: stages in order, `a_node` on each node, alike in their devices."""
    places: list[Place] = [
        (f"c{stage // a_node}", tuple(range(stage % a_node * tp, (stage % a_node + 1) * tp)))
        for stage in range(len(layers))
    ]
    assert undeployable(*shaped(layers, places)) is None
