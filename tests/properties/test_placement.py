"""Hypothesis hunts for a combination or a table where the cut is not the best one."""

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.catalog import load_catalog
from schemas.performance import load_efficiencies
from solver.placement import Refusal, best_cut, search
from solver.roofline import Roofline
from solver.shapes import Floats


@st.composite
def tables(draw: st.DrawFn) -> Floats:
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
@given(tables())
def test_the_cut_is_the_best_of_all(rates: Floats) -> None:
    stages, batches, total = rates.shape
    best = 0.0
    for inner in combinations(range(1, total), stages - 1):
        edges = (0, *inner, total)
        cut = [b - a for a, b in pairwise(edges)]
        for b in range(batches):
            best = max(best, min(float(rates[s, b, j - 1]) for s, j in enumerate(cut)))
    least, batch, layers = best_cut(rates)
    assert least == best
    assert best_cut(rates, floor=best) == (0.0, 0, ())
    if best == 0:
        return
    assert sum(layers) == total
    assert min(layers) >= 1
    assert min(float(rates[s, batch, j - 1]) for s, j in enumerate(layers)) == best


CATALOG = load_catalog()
GPUS = {gpu.name: gpu for gpu in CATALOG.gpus}
NAMES = [c.name for c in CATALOG.configurations if c.gpus <= 4]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3), st.sampled_from(["gpt-oss-20b", "qwen3-32b"])
)
def test_order_of_the_question_never_matters(names: list[str], model_name: str) -> None:
    model = CATALOG.model(model_name)
    roofline = Roofline(model, model.variants[0], model.levels[0], GPUS, load_efficiencies())
    forth = search(roofline, [CATALOG.configuration(n) for n in names])
    back = search(roofline, [CATALOG.configuration(n) for n in reversed(names)])
    assert forth == back
    if not isinstance(forth, Refusal):
        assert sum(forth.layers) == model.architecture.layers
        assert len(forth.layers) == sum(n.gpus for n in forth.nodes) // forth.tp
