"""Measured points of a user's own, and what they say about the roofline: `load_profile` and `Correction`.

A point is one load at which one instance was measured (`solver.points`). `solver.profile_csv` makes a profile
of a user's CSV, `load_profile` reads it again, both refuse what cannot be (`solver.plausible`), and
`solver.correction` puts the points over the roofline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from schemas.catalog import Catalog
from schemas.drafts import Draft, draft
from schemas.faults import Fault, FileError, Place, unique
from schemas.marked import read_marked
from solver.plausible import impossible
from solver.points import Point, Profile
from solver.shapes import Floats

__all__ = ["Point", "Profile"]  # what the parts below are made of is to be had here too

Values = float | Floats


def load_profile(paths: Sequence[Path], catalog: Catalog) -> Profile | None:
    """All points of the files that `coral profile import` wrote; None without files.

    Raises:
        OSError: a file cannot be read.
        FileError: it is no profile, names what the catalog does not have, has times that cannot be, or a
            load that is there already; each with file, line and field.
    """
    points: dict[tuple[object, ...], tuple[Point, Place]] = {}
    faults: list[Fault] = []
    for path in paths:
        marked = read_marked(path)
        found = draft(Profile, marked) if not marked.unread else Draft(None, {}, {})
        for i, point in enumerate(found.model.points if found.model else ()):
            steps = found.steps(("points", i))
            first, place = points.setdefault(point.load, (point, marked.place(steps)))
            if first is not point:
                marked.fault(steps, f"given twice, expected each load once: it is at {place} too")
            for wrong in impossible(point, catalog):
                marked.fault((*steps, wrong.field), f"{wrong.value}, expected {wrong.expected}")
        if not (points or marked.faults):
            marked.fault(("points",), "none, expected at least one")
        faults.extend(unique(marked.faults))
    if faults:
        raise FileError(faults)
    return Profile(points=tuple(point for point, _ in points.values())) if points else None


class Correction(Protocol):
    """Measured seconds over modelled ones, by which the roofline multiplies the time of a stage's work.

    Factors depend on neither layers nor budget, so whatever falls with layers or rises with the budget
    still does once it is multiplied.
    """

    def decode(self, gpu: str, tp: int, sequences: Values) -> Values:
        """Of a decode step of so many sequences of one micro-batch on `tp` GPUs of a kind."""
        ...

    def prefill(self, gpu: str, tp: int, tokens: Values) -> Values:
        """Of prefilling a prompt of so many tokens."""
        ...

    def knows_first_token(self, gpu: str, tp: int) -> bool:
        """Whether prefill there was measured by what a client waited for its first token.

        Then the way through the server and all else that was waited for is in the factor, and is not added.
        """
        ...


@dataclass(frozen=True)
class Curve:
    """Factors over something positive: exact at its points, between them straight in log-log space.

    Outside it is as at the nearest point.
    """

    at: tuple[float, ...]
    """Rising."""
    factors: tuple[float, ...]

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Self:
        """Through (at, factor) pairs; those with equal `at` become one, their geometric mean."""
        together: dict[float, list[float]] = {}
        for at, factor in points:
            together.setdefault(at, []).append(factor)
        rising = sorted(together)
        means = [_mean(together[at]) for at in rising]
        return cls(tuple(rising), tuple(means))

    def __call__(self, at: Values) -> Values:
        found: Values = np.exp(np.interp(np.log(at), np.log(self.at), np.log(self.factors)))
        return found


def _mean(factors: Sequence[float]) -> float:
    """Geometric; a lone one stays as it is, to the last bit."""
    return factors[0] if len(factors) == 1 else float(np.exp(np.mean(np.log(factors))))


@dataclass(frozen=True)
class Curves:
    """A `Correction` of curves by (GPU, tensor-parallel degree); what has none is not corrected."""

    decodes: Mapping[tuple[str, int], Curve]
    prefills: Mapping[tuple[str, int], Curve]

    def decode(self, gpu: str, tp: int, sequences: Values) -> Values:
        curve = self.decodes.get((gpu, tp))
        return 1.0 if curve is None else curve(sequences)

    def prefill(self, gpu: str, tp: int, tokens: Values) -> Values:
        curve = self.prefills.get((gpu, tp))
        return 1.0 if curve is None else curve(tokens)

    def knows_first_token(self, gpu: str, tp: int) -> bool:
        return (gpu, tp) in self.prefills


NONE = Curves({}, {})
"""Corrects nothing."""
