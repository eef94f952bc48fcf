"""Burstiness at every time scale."""

import numpy as np
import pytest

from agents.traces import SHIPPED_TRACES, read_requests
from schemas.catalog import Burstiness, Quantiles
from solver.arrivals import dispersion, length_cv2, rate_cv2, rate_cv2_within
from solver.shapes import Floats
from tests.solver.queues import modulated, poisson

SCALES = np.array([0.5, 1.0, 3.0, 10.0, 60.0, 300.0, 5000.0])


def conversation() -> Floats:
    requests = read_requests(SHIPPED_TRACES / "azure_2023_conv.csv.gz").requests
    return np.array([r.arrival_s for r in requests])


def test_poisson_arrivals_have_dispersion_one() -> None:
    arrivals = poisson(np.random.default_rng(1), 20.0, 200_000)
    measured = [dispersion(arrivals, scale) for scale in (1.0, 10.0)]
    assert [m.dispersion for m in measured] == pytest.approx([1.0, 1.0], rel=0.1)
    assert np.all(rate_cv2(measured, SCALES) < 0.01)


def test_the_rates_own_variation_is_found_under_poissons() -> None:
    arrivals = modulated(np.random.default_rng(2), 20.0, 200_000, cv2=0.5, holds_s=10.0)
    assert rate_cv2([dispersion(arrivals, 10.0)], np.array([10.0])) == pytest.approx(0.5, rel=0.1)


def test_a_thinned_trace_has_the_same_variation_of_its_rate() -> None:
    arrivals = conversation()
    thinned = arrivals[np.random.default_rng(3).random(len(arrivals)) < 0.25]
    whole, part = (rate_cv2([dispersion(a, 60.0)], np.array([60.0])) for a in (arrivals, thinned))
    assert part == pytest.approx(whole, rel=0.15)


def test_no_figures_mean_poisson() -> None:
    assert rate_cv2((), SCALES).tolist() == [0.0] * len(SCALES)


def test_longer_averages_never_vary_more_and_a_longer_horizon_leaves_more_to_headroom() -> None:
    measured = [dispersion(conversation(), scale) for scale in (1.0, 10.0, 60.0, 300.0)]
    assert np.all(np.diff(rate_cv2(measured, SCALES)) <= 0)
    short, long = (rate_cv2_within(measured, SCALES, horizon) for horizon in (60.0, 600.0))
    assert np.all(short <= long)
    assert np.all(short[SCALES >= 60.0] == 0)


def test_evener_than_poisson_is_taken_for_poisson() -> None:
    even = Burstiness(interval_s=10.0, dispersion=0.2, requests_per_s=5.0)
    assert rate_cv2([even], SCALES).max() == 0.0


def test_a_trace_shorter_than_two_intervals_is_refused() -> None:
    with pytest.raises(ValueError, match="interval_s"):
        dispersion(np.array([0.0, 5.0, 15.0]), 10.0)


def test_lengths_spread_as_their_quantiles_say() -> None:
    shares = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
    exponential = Quantiles(**{f"p{100 * s:.0f}": -float(np.log(1 - s)) for s in shares})
    assert length_cv2(exponential) == pytest.approx(1.0, rel=0.1)
    even = Quantiles(p10=90.0, p50=100.0, p90=110.0)
    assert length_cv2(even) < 0.1
    assert length_cv2(None) == 1.0
