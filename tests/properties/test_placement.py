"""Hypothesis hunts for a combination or a table where the placement found is not the best one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from schemas.catalog import Phase, load_catalog
from schemas.performance import load_efficiencies
from solver.chains import best_cut
from solver.placement import Refusal, search
from solver.roofline import Roofline
from solver.shapes import Floats
from solver.stage_search import place_stages
from solver.stage_tables import tables_of
from solver.tables import NodeTable
from tests.solver import references

# -------------------------------------------------------------------------------------------------- coral

LEVELS = [0.0, 0.5, 1.0, 1.5, 2.0, 7.0, 7.000000001]
"""Few, so that ties are common; two that rounding must not mix up."""


@st.composite
def node_tables(draw: st.DrawFn) -> NodeTable:
    """Up to 3 configurations, 7 layers and 5 stages; throughput falls with layers and depends on all else."""
    shape = (3, draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 7)))
    values = draw(arrays(np.float64, shape, elements=st.sampled_from(LEVELS)))
    return references.as_table(-np.sort(-values, axis=-1))


@st.composite
def combinations_of(draw: st.DrawFn) -> tuple[NodeTable, list[int]]:
    table = draw(node_tables())
    configuration = st.integers(0, table.throughput.shape[2] - 1)
    return table, sorted(draw(st.lists(configuration, min_size=1, max_size=len(table.stages))))


@settings(max_examples=200, deadline=None)
@given(combinations_of(), st.sampled_from([0.0, 0.5, 0.999, 1.0]))
def test_no_assignment_and_cut_beats_shared_stages(case: tuple[NodeTable, list[int]], start: float) -> None:
    """Nor when the search starts at a part of the best value, as it does at what the splits give."""
    table, nodes = case
    best = references.best_shared(table, nodes)
    tables = tables_of(table)
    found = place_stages(np.array([nodes], dtype=np.int8), np.array([start * best]), tables)
    throughput, stages = float(found.throughput[0]), int(found.stages[0])
    assert throughput == pytest.approx(best if best > start * best else 0.0, rel=1e-12)
    if throughput:
        layers = dict(zip(found.stage_of[0].tolist(), found.layers[0].tolist(), strict=True))
        cut = [layers[s] for s in range(stages)]
        assert references.given(table, nodes, cut, found.stage_of[0].tolist()) == pytest.approx(throughput)


# --------------------------------------------------------------------------------------------------- vllm


@st.composite
def rates_of_stages(draw: st.DrawFn) -> Floats:
    """Stages x batches x layers, not rising with layers, with ties and impossible ends."""
    stages = draw(st.integers(1, 4))
    layers = draw(st.integers(stages, 8))
    batches = draw(st.integers(1, 3))
    size = stages * batches * layers
    values = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 7.0]), min_size=size, max_size=size))
    shaped = np.array(values).reshape(stages, batches, layers)
    falling: Floats = -np.sort(-shaped, axis=2)
    return falling


@settings(max_examples=300, deadline=None)
@given(rates_of_stages())
def test_the_cut_is_the_best_of_all(rates: Floats) -> None:
    best = max(references.best_of_all_cuts(rates[:, b]) for b in range(rates.shape[1]))
    least, batch, layers = best_cut(rates)
    assert least == best
    assert best_cut(rates, floor=best) == (0.0, 0, ())
    if best == 0:
        return
    assert sum(layers) == rates.shape[2]
    assert min(layers) >= 1
    assert min(float(rates[s, batch, j - 1]) for s, j in enumerate(layers)) == best


CATALOG = load_catalog()
GPUS = {gpu.name: gpu for gpu in CATALOG.gpus}
PHASES: tuple[Phase, ...] = ("both", "both", "prefill", "decode")
NAMES = [c.name for c in CATALOG.configurations if c.gpus <= 4]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3),
    st.sampled_from(["gpt-oss-20b", "qwen3-32b"]),
    st.sampled_from(PHASES),
)
def test_no_chain_is_better_and_the_order_of_the_question_never_matters(
    names: list[str], model_name: str, phase: Phase
) -> None:
    model = CATALOG.model(model_name)
    roofline = Roofline(model, model.variants[0], model.levels[0], GPUS, load_efficiencies(), phase)
    nodes = [CATALOG.configuration(name) for name in names]
    forth, back = search(roofline, nodes), search(roofline, nodes[::-1])
    assert forth == back
    best = references.best_chain(roofline, nodes)
    assert (0.0 if isinstance(forth, Refusal) else forth.throughput) == pytest.approx(best, rel=1e-9)
    if not isinstance(forth, Refusal):
        assert sum(forth.layers) == model.architecture.layers
        assert len(forth.layers) == sum(n.gpus for n in forth.nodes) // forth.tp
