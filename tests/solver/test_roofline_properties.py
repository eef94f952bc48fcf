"""What must hold of the roofline whatever is asked: hypothesis looks for a stage where it does not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.catalog import Catalog, Gpu, Phase, load_catalog
from schemas.performance import Efficiencies, load_efficiencies
from schemas.yamlfile import load_yaml
from solver.profiles import Curve, Curves
from solver.roofline import BATCHES, Roofline, Slot, objective_s

CATALOG, EFFICIENCIES = load_catalog(), load_efficiencies()
GPUS = {gpu.name: gpu for gpu in CATALOG.gpus}
SERVED = [(m, v, level) for m in CATALOG.models for v in m.variants for level in m.levels]
PHASES: tuple[Phase, ...] = ("prefill", "decode", "both")
RATES = ("bandwidth_gb_s", "bf16_tflops", "fp8_tflops", "link_gb_s", "memory_gb")
ROUNDING = 1 + 1e-9


@st.composite
def stages(draw: st.DrawFn) -> tuple[Roofline, Slot, int]:
    """Any variant on any of its GPUs, anywhere in a chain, for any request lengths, perhaps corrected."""
    model, variant, level = SERVED[draw(st.integers(0, len(SERVED) - 1))]
    gpu = draw(st.sampled_from([g for g in variant.gpus if g in {e.gpu for e in EFFICIENCIES.gpus}]))
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    depth = draw(st.integers(1, 8))
    lengths = {
        "mean_input_tokens": draw(st.floats(1, 30_000)),
        "mean_output_tokens": draw(st.floats(1, 3_000)),
    }
    workload = level.workload.model_copy(update=lengths)
    factors = draw(st.lists(st.floats(0.2, 5), min_size=2, max_size=2))
    curve = Curve((1.0, 64.0), (factors[0], factors[1]))
    roofline = Roofline(
        model,
        variant,
        level.model_copy(update={"workload": workload}),
        GPUS,
        EFFICIENCIES,
        draw(st.sampled_from(PHASES)),
        draw(st.sampled_from([Curves({}, {}), Curves({(gpu, tp): curve}, {(gpu, tp): curve})])),
    )
    first, last = (True, True) if depth == 1 else draw(st.sampled_from([(1, 0), (0, 0), (0, 1)]))
    return roofline, Slot(gpu, tp, bool(first), bool(last), draw(st.floats(0.1, 100))), depth


def with_gpu(roofline: Roofline, name: str, change: Callable[[Gpu], Gpu]) -> Roofline:
    return replace(roofline, gpus={**roofline.gpus, name: change(roofline.gpus[name])})


@settings(max_examples=60, deadline=None)
@given(stages())
def test_throughput_never_rises_with_layers(asked: tuple[Roofline, Slot, int]) -> None:
    roofline, slot, depth = asked
    table = roofline.table(slot, depth)
    assert table.shape == (len(BATCHES), roofline.model.architecture.layers)
    assert np.isfinite(table).all()
    assert (table >= 0).all()
    assert (np.diff(table, axis=1) <= 0).all()
    assert not table[:, roofline.most_layers(slot, depth) :].any()


@settings(max_examples=60, deadline=None)
@given(stages(), st.floats(0.1, 1), st.floats(0.1, 1))
def test_throughput_never_rises_with_a_tighter_budget(
    asked: tuple[Roofline, Slot, int], ttft: float, tpot: float
) -> None:
    roofline, slot, depth = asked
    level = roofline.level
    tight = level.model_copy(
        update={
            "ttft": tuple(o.model_copy(update={"ms": o.ms * ttft}) for o in level.ttft),
            "tpot": tuple(o.model_copy(update={"ms": o.ms * tpot}) for o in level.tpot),
        }
    )
    table = roofline.table(slot, depth)
    assert (replace(roofline, level=tight).table(slot, depth) <= table).all()
    assert (roofline.table(slot, depth + 1) <= table).all()  # a stage of more has less time and memory


@settings(max_examples=60, deadline=None)
@given(stages(), st.sampled_from(RATES), st.floats(1, 10))
def test_more_of_anything_never_hurts(asked: tuple[Roofline, Slot, int], field: str, more: float) -> None:
    roofline, slot, depth = asked
    had = getattr(GPUS[slot.gpu], field)
    if had is None:
        return
    better = with_gpu(roofline, slot.gpu, lambda gpu: gpu.model_copy(update={field: had * more}))
    table = roofline.table(slot, depth)
    assert (better.table(slot, depth) * ROUNDING >= table).all()
    assert (roofline.table(slot._replace(send_gb_s=slot.send_gb_s * more), depth) * ROUNDING >= table).all()


@settings(max_examples=60, deadline=None)
@given(stages(), st.floats(0.01, 300))
def test_memory_is_never_negative(asked: tuple[Roofline, Slot, int], memory_gb: float) -> None:
    roofline, slot, depth = asked
    small = with_gpu(roofline, slot.gpu, lambda gpu: gpu.model_copy(update={"memory_gb": memory_gb}))
    layers = small.layer_counts
    assert small.memory_bytes(slot) >= 0
    assert (np.asarray(small.weight_bytes(slot, layers)) > 0).all()
    assert (np.asarray(small.cache_bytes(slot, layers, depth * BATCHES[:, None])) > 0).all()
    assert (small.memory_depth(slot, layers, BATCHES[:, None]) * ROUNDING >= 0).all()
    held = np.asarray(small.weight_bytes(slot, layers)) + small.cache_bytes(
        slot, layers, depth * BATCHES[:, None]
    )
    served = small.table(slot, depth) > 0
    assert (held[served] <= small.memory_bytes(slot) * ROUNDING).all()


@settings(max_examples=60, deadline=None)
@given(stages())
def test_whole_requests_are_never_more_than_their_tokens_alone(asked: tuple[Roofline, Slot, int]) -> None:
    """Requests/s of `both` times output tokens is tokens/s, and prefill on top leaves no more of them."""
    roofline, slot, depth = asked
    output = roofline.level.workload.mean_output_tokens
    requests = replace(roofline, phase="both").table(slot, depth)
    tokens = replace(roofline, phase="decode").table(slot, depth)
    assert (requests * output <= tokens * ROUNDING)[requests > 0].all()
    assert requests * output / output == pytest.approx(requests)


@given(st.floats(1, 1e6))
def test_milliseconds_become_seconds_and_back(ms: float) -> None:
    level = SERVED[0][2]
    promised = tuple(o.model_copy(update={"ms": ms}) for o in level.tpot)
    assert objective_s(promised, 100) * 1000 == pytest.approx(ms)


def test_catalog_and_efficiencies_survive_yaml(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(CATALOG.model_dump(mode="json", exclude_none=True)))
    again: Catalog = load_catalog(path)
    assert (again, again.digest) == (CATALOG, CATALOG.digest)
    path.write_text(yaml.safe_dump(EFFICIENCIES.model_dump(mode="json", exclude_none=True)))
    assert load_yaml(Efficiencies, path) == EFFICIENCIES
