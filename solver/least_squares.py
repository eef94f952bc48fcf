"""Least squares on log errors, outliers damped, deterministic; and what a fit's error is on points held out.

Only the fitting needs scipy, and only this module loads it.
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import least_squares

from schemas.performance import Evidence
from solver.kernels import Kernels
from solver.samples import Sample
from solver.shapes import Floats

DAMPING = 0.1
"""Log errors beyond it count less and less than squared (scipy's soft_l1)."""
DIGITS = 4
"""Significant ones of a constant: more would be noise."""

Bounds = Sequence[tuple[float, float]]


def solve(errors: Callable[[Floats], Floats], start: Sequence[float], bounds: Bounds) -> list[float]:
    """The positive values at which these log errors are least; sought on a log scale."""
    low, high = (np.log(np.array(side)) for side in zip(*bounds, strict=True))
    first = np.clip(np.log(np.array(start)), low + 1e-6, high - 1e-6)

    def on_log_scale(x: Floats) -> Floats:
        return errors(np.exp(x))

    solved = least_squares(on_log_scale, first, bounds=(low, high), loss="soft_l1", f_scale=DAMPING)
    return [round_to(float(value)) for value in np.exp(solved.x)]


def solve_samples(
    kernels: Callable[[Sequence[float]], Kernels],
    samples: Sequence[Sample],
    start: Sequence[float],
    bounds: Bounds,
) -> list[float]:
    """The same over samples, each with the same weight in all, however many points it has."""
    used = [~sample.held_out for sample in samples]
    weights = [np.sqrt(1 / max(1, int(use.sum()))) for use in used]
    largest = max(weights)

    def errors(values: Floats) -> Floats:
        trial = kernels([float(value) for value in values])
        parts = [
            np.log(np.asarray(sample.predict(trial)) / sample.seconds)[use] * (weight / largest)
            for sample, use, weight in zip(samples, used, weights, strict=True)
        ]
        return np.concatenate(parts)

    return solve(errors, start, bounds)


def evidence_of(samples: Sequence[Sample], kernels: Kernels) -> Evidence:
    """Sources, counts, and the error on what was held out."""
    off = np.concatenate([sample.errors(kernels)[sample.held_out] for sample in samples])
    used = sum(int((~sample.held_out).sum()) for sample in samples)
    return evidence(" and ".join(sorted({sample.source for sample in samples})), used, off)


def evidence(source: str, used: int, off: Floats) -> Evidence:
    """`off`: relative errors on the points held out; there may be none."""
    if not len(off):
        return Evidence(fitted_on=source, points=used)
    return Evidence(
        fitted_on=source,
        points=used,
        held_out_points=len(off),
        median_error=round(float(np.median(np.abs(off))), 3),
        p90_error=round(float(np.quantile(np.abs(off), 0.9)), 3),
        bias=round(float(np.median(off)), 3),
    )


def round_to(value: float, digits: int = DIGITS) -> float:
    """To so many significant digits."""
    return float(f"{value:.{digits}g}")
