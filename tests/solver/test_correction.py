"""Measured points over the roofline: exact where they are, in between on a line, elsewhere the nearest."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.catalog import Catalog, Phase
from schemas.performance import load_efficiencies
from solver.correction import LEAST, Comparison, compare, correction_of
from solver.profiles import NONE, Correction, Curve, Curves, Point, Profile
from solver.roofline import Roofline, Slot

WHOLE = Slot("A100", 2, first=True, last=True, send_gb_s=300.0)
LAYERS = 64.0
Make = Callable[..., Roofline]


def point(**changed: Any) -> Point:
    given: dict[str, Any] = {
        "model": "qwen3-32b",
        "variant": "bf16",
        "gpu": "A100",
        "tp": 2,
        "pp": 1,
        "engine": "vllm-0.32.0",
        "phase": "both",
        "source": "made up",
        "date": "2026-11-29",
        "input_tokens": 1000.0,
        "output_tokens": 200.0,
        "max_concurrency": 1.0,
        "request_rate": None,
        "request_throughput": 0.16,
        "ttft_ms": 400.0,
        "tpot_ms": 30.0,
        **changed,
    }
    return Point.model_validate(given)


ALONE = point()
CROWD = point(max_concurrency=16.0, request_throughput=1.9, ttft_ms=900.0, tpot_ms=37.0)


def compared(catalog: Catalog, *points: Point) -> Comparison:
    model = catalog.model("qwen3-32b")
    return compare(catalog, load_efficiencies(), model, model.variants[0], points)


@pytest.fixture
def corrected(catalog: Catalog, roofline: Make) -> Callable[..., Roofline]:
    """The roofline of a service of the points' lengths, with what they say or without."""

    def make(correction: Correction = NONE, phase: Phase = "both") -> Roofline:
        plain = roofline("qwen3-32b", "bf16")
        lengths = {"mean_input_tokens": 1000.0, "mean_output_tokens": 200.0}
        level = plain.level.model_copy(update={"workload": plain.level.workload.model_copy(update=lengths)})
        return Roofline(
            plain.model,
            plain.variant,
            level,
            plain.gpus,
            plain.efficiencies,
            phase,
            correction,
        )

    return make


# --- the curve -------------------------------------------------------------------------------------
def test_a_curve_is_exact_at_its_points_and_nearest_outside() -> None:
    curve = Curve.through([(16.0, 1.5), (1.0, 1.2), (4.0, 0.9)])
    assert curve(np.array([0.1, 1, 4, 16, 99])) == pytest.approx([1.2, 1.2, 0.9, 1.5, 1.5])
    assert curve(2.0) == pytest.approx((1.2 * 0.9) ** 0.5)  # half-way in log space


def test_points_at_the_same_place_are_their_geometric_mean() -> None:
    assert Curve.through([(2.0, 4.0), (2.0, 1.0)])(2.0) == pytest.approx(2.0)


@given(st.lists(st.tuples(st.floats(1, 512), st.floats(0.05, 20)), min_size=1, unique_by=lambda p: p[0]))
def test_a_curve_never_leaves_the_range_of_its_factors(points: list[tuple[float, float]]) -> None:
    factors = [factor for _, factor in points]
    between = np.asarray(Curve.through(points)(np.geomspace(0.5, 1024, 40)))
    assert (between >= min(factors) * (1 - 1e-9)).all()
    assert (between <= max(factors) * (1 + 1e-9)).all()


def test_what_was_not_measured_is_not_corrected() -> None:
    some = Curves({("A100", 2): Curve((1.0,), (2.0,))}, {})
    assert (some.decode("A100", 2, 5.0), some.decode("A100", 4, 5.0), some.decode("L4", 2, 5.0)) == (2, 1, 1)
    assert some.prefill("A100", 2, 5.0) == 1


# --- over the roofline -----------------------------------------------------------------------------
def test_the_corrected_roofline_gives_the_measured_times(
    catalog: Catalog, corrected: Callable[..., Roofline]
) -> None:
    right = corrected(compared(catalog, CROWD, ALONE).correction)
    assert 1000 * right.prefill_s(WHOLE, LAYERS) == pytest.approx(ALONE.ttft_ms)
    assert 1000 * right.decode_s(WHOLE, LAYERS, 1.0) == pytest.approx(ALONE.tpot_ms)
    batch = np.array([[CROWD.decoding]])
    round_ = right.round("A100", 2, batch)
    seconds = right.seconds(WHOLE, LAYERS, round_.step)
    assert 1000 * seconds == pytest.approx(CROWD.tpot_ms)
    assert round_.done / seconds == pytest.approx(CROWD.request_throughput)


@pytest.mark.parametrize("phase", ["prefill", "both"])
def test_the_planner_waits_as_long_for_a_first_token_as_was_measured(
    catalog: Catalog, corrected: Callable[..., Roofline], phase: Phase
) -> None:
    """The way through the server is in what a client measured: what the fit says of it is not added."""
    right = corrected(compared(catalog, ALONE).correction, phase)
    work = right.round("A100", 2, np.array([[1.0]]))
    (wait,) = (w for w in work.waits if w.promise == "TTFT")
    waited_ms = 1000 * float(np.asarray(right.waited_s(WHOLE, LAYERS, 1, wait)).item())
    beside_ms = 0.0 if phase == "prefill" else 1000 * float(right.decode_s(WHOLE, LAYERS, 1.0))
    assert ALONE.ttft_ms is not None
    assert ALONE.ttft_ms - 1e-6 <= waited_ms <= ALONE.ttft_ms + beside_ms + 1e-6


def test_phases_alone_are_exact_too(catalog: Catalog, corrected: Callable[..., Roofline]) -> None:
    decoding = point(phase="decode", max_concurrency=32.0, request_throughput=3.2, tpot_ms=45.0, ttft_ms=None)
    right = corrected(compared(catalog, decoding).correction, "decode")
    assert 1000 * right.decode_s(WHOLE, LAYERS, decoding.decoding) == pytest.approx(45.0)
    prefilling = point(phase="prefill", output_tokens=1.0, request_throughput=2.4, tpot_ms=None)
    right = corrected(compared(catalog, prefilling).correction, "prefill")
    assert 1000 * right.prefill_s(WHOLE, LAYERS) == pytest.approx(400.0)


def test_a_pipeline_is_exact_over_all_its_stages(
    catalog: Catalog, corrected: Callable[..., Roofline]
) -> None:
    deep = point(pp=2, max_concurrency=16.0, request_throughput=1.9, ttft_ms=900.0, tpot_ms=37.0)
    right = corrected(compared(catalog, deep).correction)
    stages = [Slot("A100", 2, True, False, 300.0), Slot("A100", 2, False, True, 300.0)]
    step = right.round("A100", 2, np.array([[deep.decoding / 2]])).step
    assert 1000 * sum(right.seconds(s, LAYERS / 2, step) for s in stages) == pytest.approx(37.0)


def test_waiting_is_not_taken_for_prefill(catalog: Catalog) -> None:
    assert compared(catalog, CROWD).correction.prefills == {}
    assert [c.what for c in compared(catalog, CROWD, ALONE).points] == ["TTFT", "TPOT", "TPOT"]


def test_an_impossible_time_is_corrected_as_far_as_factors_go(catalog: Catalog) -> None:
    """The step's overhead is fixed; a time below it would need a factor below zero."""
    (only,) = compared(catalog, point(phase="decode", ttft_ms=None, tpot_ms=0.01)).points
    assert only.factor == LEAST


def test_slower_measured_is_slower_planned_and_nothing_rises_with_layers(
    catalog: Catalog, corrected: Callable[..., Roofline]
) -> None:
    comparison = compared(catalog, ALONE, CROWD)
    slow = Curves(
        {
            kind: Curve(c.at, tuple(3 * f for f in c.factors))
            for kind, c in comparison.correction.decodes.items()
        },
        comparison.correction.prefills,
    )
    for correction in (comparison.correction, slow):
        table = corrected(correction).table(WHOLE, 1)
        assert (np.diff(table, axis=1) <= 0).all()
    fast = corrected(comparison.correction).table(WHOLE, 1)
    assert (corrected(slow).table(WHOLE, 1) <= fast).all()
    assert (fast > 0).any()


def test_only_a_variants_own_points_count(catalog: Catalog) -> None:
    model = catalog.model("qwen3-32b")
    profile = Profile(points=(ALONE,))
    arguments = profile, catalog, load_efficiencies(), model
    bf16, fp8 = model.variants
    assert correction_of(*arguments, bf16).decodes.keys() == {("A100", 2)}
    assert correction_of(*arguments, fp8) == NONE
