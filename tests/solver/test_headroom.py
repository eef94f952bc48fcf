"""Head-room: its shape, and how near it comes to simulated queues (docs/headroom.md has the table)."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.traces import SHIPPED_TRACES, read_requests
from schemas.catalog import Burstiness, Objective, Phase, ServiceLevel, Workload
from schemas.policy import HeadroomCurve
from solver.arrivals import dispersion
from solver.headroom import RATES, Assumptions, Promise, curve, factor, headroom, promises
from solver.shapes import Floats
from tests.solver.queues import Needed, for_tpot, for_ttft, modulated, poisson

NEVER = 1e9
"""A horizon within which everything happens: the simulated capacity is never planned anew."""
SCALES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


def level(
    ttft_ms: float = 1200.0,
    tpot_ms: float = 60.0,
    percentile: float = 95.0,
    burstiness: Sequence[Burstiness] = (),
    output_tokens: float = 211.0,
) -> ServiceLevel:
    return ServiceLevel(
        slo_class="interactive",
        ttft=(Objective(percentile=percentile, ms=ttft_ms),),
        tpot=(Objective(percentile=percentile, ms=tpot_ms),),
        workload=Workload(
            mean_input_tokens=1155.0,
            mean_output_tokens=output_tokens,
            burstiness=tuple(burstiness),
            source="test",
        ),
    )


def bursts(cv2: float, interval_s: float = 10.0) -> tuple[Burstiness, ...]:
    return (Burstiness(interval_s=interval_s, dispersion=1 + 10 * interval_s * cv2, requests_per_s=10.0),)


# ------------------------------------------------------------------------------------------------ its shape
rates = st.floats(0.02, 500.0)
PHASES: tuple[Phase, ...] = ("prefill", "decode", "both")
phases = st.sampled_from(PHASES)
variations = st.floats(0.0, 5.0)
uncapped = Assumptions(at_most=1e9)


@settings(max_examples=50, deadline=None)
@given(rates, phases, variations, st.floats(1.0, 30.0), st.floats(1.01, 4.0))
def test_more_demand_never_needs_more(
    rate: float, phase: Phase, cv2: float, interval_s: float, times: float
) -> None:
    here = level(burstiness=bursts(cv2, interval_s))
    less, more = (headroom(here, phase, r, uncapped).factor for r in (rate, times * rate))
    assert 1 <= more <= less * (1 + 1e-6)
    assert times * rate * more >= rate * less * (1 - 1e-6), "but more capacity in all"


@settings(max_examples=50, deadline=None)
@given(rates, phases, variations, variations)
def test_more_burstiness_never_needs_less(rate: float, phase: Phase, one: float, other: float) -> None:
    calm, wild = (level(burstiness=bursts(cv2)) for cv2 in sorted((one, other)))
    assert headroom(calm, phase, rate, uncapped).factor <= headroom(wild, phase, rate, uncapped).factor * (
        1 + 1e-6
    )


@settings(max_examples=50, deadline=None)
@given(rates, phases, variations, st.floats(0.2, 1.0), st.floats(0.2, 1.0))
def test_a_tighter_promise_never_needs_less(
    rate: float, phase: Phase, cv2: float, ttft: float, tpot: float
) -> None:
    loose = level(burstiness=bursts(cv2))
    tight = level(ttft_ms=1200 * ttft, tpot_ms=60 * tpot, burstiness=bursts(cv2))
    assert headroom(loose, phase, rate, uncapped).factor <= headroom(tight, phase, rate, uncapped).factor * (
        1 + 1e-6
    )


@settings(max_examples=50, deadline=None)
@given(rates, phases, variations, st.floats(50.0, 99.9), st.floats(50.0, 99.9))
def test_a_higher_percentile_never_needs_less(
    rate: float, phase: Phase, cv2: float, one: float, other: float
) -> None:
    low, high = (level(percentile=p, burstiness=bursts(cv2)) for p in sorted((one, other)))
    assert headroom(low, phase, rate, uncapped).factor <= headroom(high, phase, rate, uncapped).factor * (
        1 + 1e-6
    )


@settings(max_examples=50, deadline=None)
@given(rates, variations, st.floats(10.0, 1000.0), st.floats(1.0, 10.0))
def test_a_slower_planner_never_needs_less(rate: float, cv2: float, horizon_s: float, times: float) -> None:
    here = level(burstiness=bursts(cv2))
    quick, slow = (Assumptions(at_most=1e9, horizon_s=h) for h in (horizon_s, times * horizon_s))
    assert headroom(here, "both", rate, quick).factor <= headroom(here, "both", rate, slow).factor * (
        1 + 1e-6
    )


def test_both_is_held_to_what_either_phase_is_held_to() -> None:
    here = level(burstiness=bursts(0.5))
    single = [headroom(here, phase, 5.0) for phase in PHASES[:2]]
    both = headroom(here, "both", 5.0)
    assert both == max(single, key=lambda found: found.needed)
    assert [s.binding.of for s in single] == ["ttft", "tpot"]


def test_the_bucket_of_the_mean_prompt_counts() -> None:
    buckets = (
        Objective(percentile=99, ms=500, max_prompt_tokens=512),
        Objective(percentile=90, ms=2000, max_prompt_tokens=4096),
        Objective(percentile=80, ms=9000),
    )
    (prefill,) = promises(level().model_copy(update={"ttft": buckets}), "prefill")
    assert (prefill.percentile, prefill.busy_s + prefill.wait_s) == (90, 2.0)


def test_beyond_the_most_a_promise_is_given_up_and_it_shows() -> None:
    wild = headroom(level(burstiness=bursts(5.0, 60.0)), "both", 5.0)
    assert wild.capped
    assert wild.factor == Assumptions().at_most < wild.needed
    assert not headroom(level(), "both", 50.0).capped


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="requests_per_s"):
        headroom(level(), "both", rate)


def test_the_curve_lies_on_or_above_what_it_is_drawn_through() -> None:
    here = level(burstiness=bursts(0.2))
    line = HeadroomCurve(phase="both", requests_per_s=RATES, factor=tuple(curve(here, "both", uncapped)))
    for rate in np.geomspace(0.01, 1000, 37).tolist():
        exact = headroom(here, "both", rate, uncapped).factor
        assert exact - 1e-9 <= line.at(rate) <= exact * 1.1
    assert line.at(0.0) == line.factor[0]
    assert line.at(1e6) == line.factor[-1]


ODD = tuple(
    Burstiness(interval_s=seconds, dispersion=d, requests_per_s=rate)
    for seconds, d, rate in ((0.12, 1.2, 0.067), (1.43, 17.5, 4.57), (133.0, 28.3, 259.0))
)
"""Intervals recorded at rates far apart: V falls steeply from one to the next."""


def test_the_curve_never_rises_where_the_formula_does() -> None:
    here = level(burstiness=ODD)
    exact = [headroom(here, "prefill", rate, uncapped).factor for rate in RATES]
    assert max(np.diff(exact)) > 1, "which is why the curve is what is planned by"
    assert max(np.diff(curve(here, "prefill", uncapped))) <= 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rate", [1e-6, 1e3, 1e6, 1e9])
def test_rates_out_of_the_common_have_a_factor_too(rate: float) -> None:
    for here in (level(), level(burstiness=bursts(0.5)), level(burstiness=ODD)):
        assert 1 <= headroom(here, "both", rate).factor <= Assumptions().at_most


# ----------------------------------------------------------------------------------- next to simulated queues
def agrees(found: float, simulated: Needed, slack: float) -> bool:
    """Within what a whole number of slots resolves, and some per cent."""
    return simulated.too_little * (1 - slack) <= found <= simulated.enough * (1 + slack)


@pytest.mark.parametrize("per_s", [2.0, 10.0, 50.0])
@pytest.mark.parametrize(("busy_s", "wait_s"), [(0.5, 0.5), (1.5, 0.5)])
def test_waits_of_poisson_arrivals(per_s: float, busy_s: float, wait_s: float) -> None:
    rng = np.random.default_rng(5)
    arrivals = poisson(rng, per_s, 20_000)
    simulated = for_ttft(arrivals, rng.exponential(busy_s, len(arrivals)), wait_s, 95)
    found = factor(Promise("ttft", 95, busy_s, wait_s, 1.0), per_s, (), NEVER)
    assert agrees(found, simulated, 0.05), (found, simulated)


@pytest.mark.parametrize("cv2", [0.1, 0.5])
@pytest.mark.parametrize("per_s", [5.0, 40.0])
def test_waits_of_modulated_arrivals(per_s: float, cv2: float) -> None:
    rng = np.random.default_rng(6)
    arrivals = modulated(rng, per_s, 40_000, cv2, holds_s=20.0)
    busy = rng.exponential(0.6, len(arrivals))
    simulated = for_ttft(arrivals, busy, 0.6, 95)
    measured = [dispersion(arrivals, s) for s in SCALES]
    found = factor(Promise("ttft", 95, 0.6, 0.6, 1.0), len(arrivals) / arrivals[-1], measured, NEVER)
    assert agrees(found, simulated, 0.2), (found, simulated)


def trace(name: str, share: float) -> tuple[Floats, Floats, Floats, list[Burstiness]]:
    """Arrivals, input and output tokens of a thinned copy, and the burstiness of the whole."""
    requests = read_requests(SHIPPED_TRACES / f"azure_2023_{name}.csv.gz").requests
    rows = np.array([(r.arrival_s, r.input_tokens, r.output_tokens) for r in requests], dtype=np.float64)
    measured = [dispersion(rows[:, 0], s) for s in SCALES]
    kept = rows[np.random.default_rng(7).random(len(rows)) < share]
    return kept[:, 0] - kept[0, 0], kept[:, 1], kept[:, 2], measured


@pytest.mark.parametrize("share", [1.0, 0.2])
@pytest.mark.parametrize("name", ["conv", "code"])
def test_waits_of_the_real_traces(name: str, share: float) -> None:
    arrivals, tokens, _, measured = trace(name, share)
    busy = 0.6 * tokens / tokens.mean()
    simulated = for_ttft(arrivals, busy, 0.6, 95)
    promise = Promise("ttft", 95, 0.6, 0.6, float(tokens.var() / tokens.mean() ** 2))
    found = factor(promise, len(arrivals) / arrivals[-1], measured, NEVER)
    assert agrees(found, simulated, 0.1), (found, simulated)


@pytest.mark.parametrize("share", [1.0, 0.2])
@pytest.mark.parametrize("name", ["conv", "code"])
def test_requests_in_flight_of_the_real_traces(name: str, share: float) -> None:
    arrivals, _, tokens, measured = trace(name, share)
    simulated = for_tpot(arrivals, 0.06 * tokens, 95)
    promise = Promise("tpot", 95, 0.06 * tokens.mean(), 0.0, float(tokens.var() / tokens.mean() ** 2))
    found = factor(promise, len(arrivals) / arrivals[-1], measured, NEVER)
    assert simulated.too_little <= found <= 1.35 * simulated.enough, (found, simulated)
