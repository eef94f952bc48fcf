"""How unevenly requests arrive, at every time scale, from the few figures that a catalog has.

A catalog's `Burstiness` says for an interval w how far the number of arrivals within it spreads: D, variance
over mean, in a stream of r requests/s. Poisson arrivals have D = 1 whatever their rate, so what is above 1 is
how the *rate* moves. Its squared coefficient of variation, averaged over w,

    V(w) = (D - 1) / (r w),

is the same for the stream and for any thinned copy of it. That is why head-room is reckoned with V: a service
of another rate than the trace's has the trace's V, and Poisson's part by its own rate. It is the shape of the
day at another volume. A greater volume made of more independent users would be smoother, so above r this is
careful.
"""

from collections.abc import Sequence

import numpy as np

from schemas.catalog import Burstiness, Quantiles
from solver.shapes import Floats

UNKNOWN_CV2 = 1.0
"""Squared coefficient of variation of lengths without quantiles: that of exponential ones."""


def rate_cv2(burstiness: Sequence[Burstiness], seconds: Floats) -> Floats:
    """V: squared coefficient of variation of the rate averaged over so many seconds. Never rises with them.

    Without figures it is 0: Poisson arrivals. Between two intervals V is linear in log seconds. Below the
    shortest it stays, since a burst lasts longer than that; above the longest it falls as 1 / seconds, as for
    bursts that know nothing of each other.
    """
    if not burstiness:
        return np.zeros_like(seconds)
    intervals = np.array([b.interval_s for b in burstiness])
    known = np.array([max(0.0, b.dispersion - 1) / (b.requests_per_s * b.interval_s) for b in burstiness])
    known = np.maximum.accumulate(known[::-1])[::-1]
    within: Floats = np.interp(np.log(seconds), np.log(intervals), known)
    beyond: Floats = np.minimum(1.0, intervals[-1] / seconds)
    return within * beyond


def rate_cv2_within(burstiness: Sequence[Burstiness], seconds: Floats, horizon_s: float) -> Floats:
    """The part of V that happens within `horizon_s`, around that horizon's own mean.

    The law of total variance takes the rest away exactly: V(w) = (within a horizon) + V(horizon).
    """
    slow = rate_cv2(burstiness, np.array([horizon_s]))
    left: Floats = np.maximum(0.0, rate_cv2(burstiness, seconds) - slow)
    return left


def dispersion(arrivals_s: Floats, interval_s: float) -> Burstiness:
    """Measure a trace: arrival times in seconds, rising, from the start of the first interval.

    Raises:
        ValueError: the trace is shorter than two intervals.
    """
    intervals = int(arrivals_s[-1] // interval_s)
    if intervals < 2:
        raise ValueError(f"interval_s: {interval_s}, expected at most half of the trace's {arrivals_s[-1]} s")
    counts = np.histogram(arrivals_s, bins=np.arange(intervals + 1) * interval_s)[0]
    return Burstiness(
        interval_s=interval_s,
        dispersion=float(counts.var(ddof=1) / counts.mean()),
        requests_per_s=float(counts.mean() / interval_s),
    )


def length_cv2(quantiles: Quantiles | None) -> float:
    """Squared coefficient of variation of a length, its quantiles joined by lines.

    The last two give the line up to the greatest length, so what lies far above them is not seen.
    """
    if quantiles is None or len(quantiles.known) < 2:
        return UNKNOWN_CV2
    share, tokens = np.array(list(quantiles.known)), np.array(list(quantiles.known.values()))
    slope = (tokens[-1] - tokens[-2]) / (share[-1] - share[-2])
    share = np.concatenate(([0.0], share, [1.0]))
    tokens = np.concatenate(([0.0], tokens, [tokens[-1] + slope * (1 - share[-2])]))
    grid = np.linspace(0.0005, 0.9995, 1000)
    lengths = np.interp(grid, share, tokens)
    return float(lengths.var() / lengths.mean() ** 2)
