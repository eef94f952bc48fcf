"""Measured points of a user's own, and what they say about the roofline: `Profile` and `Correction`.

A point is one load at which one instance was measured. `solver.profile_csv` reads points from a file and
refuses what cannot be; `solver.correction` puts them over the roofline.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Protocol, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from schemas.base import Frozen, Name, canonical, digest
from schemas.catalog import Catalog, Phase, Positive, Whole
from schemas.yamlfile import load_yaml
from solver.shapes import Floats

Values = float | Floats
Text = Annotated[str, Field(min_length=1, max_length=200)]


class Point(Frozen):
    """One load, measured: means over all requests that were served."""

    model: Name
    variant: Name
    gpu: Name
    tp: Whole
    pp: Whole
    engine: Text
    """What served, with its version, such as `vllm 0.32.0`."""
    phase: Phase
    input_tokens: Positive
    """Of one request; no part of it may have come from a prefix cache."""
    output_tokens: Positive
    max_concurrency: Positive | None
    """Most requests in flight; None: no limit."""
    request_rate: Positive | None
    """Requests a second that were offered (an open loop); None: one for each answered (a closed loop)."""
    request_throughput: Positive
    """Requests a second that were served."""
    ttft_ms: Positive | None
    """Not measured in phase `decode`."""
    tpot_ms: Positive | None
    """Without the first token; not measured in phase `prefill`."""
    source: Text
    date: Text

    @model_validator(mode="after")
    def _phase_is_measured(self) -> Self:
        if self.ttft_ms is None and self.phase != "decode":
            raise ValueError(f"ttft_ms: none, expected one in phase {self.phase}")
        if self.tpot_ms is None and self.phase != "prefill":
            raise ValueError(f"tpot_ms: none, expected one in phase {self.phase}")
        if self.max_concurrency is None and self.request_rate is None:
            raise ValueError("max_concurrency or request_rate is expected, got neither")
        return self

    @property
    def load(self) -> tuple[object, ...]:
        """What was measured: two points with the same load are the same point twice."""
        where = (self.model, self.variant, self.gpu, self.tp, self.pp, self.engine, self.phase)
        lengths = (round(self.input_tokens), round(self.output_tokens))
        return (*where, *lengths, self.max_concurrency, self.request_rate)

    @property
    def in_flight(self) -> float:
        """Mean requests in flight, by Little's law: throughput times the time a request takes."""
        took_ms = (self.ttft_ms or 0.0) + (self.output_tokens - 1) * (self.tpot_ms or 0.0)
        return self.request_throughput * took_ms / 1000

    @property
    def decoding(self) -> float:
        """Mean sequences in a decode step, likewise; the planner counts an output's every token as a step."""
        return max(1.0, self.request_throughput * self.output_tokens * (self.tpot_ms or 0.0) / 1000)


class Profile(Frozen):
    """Points that go together; a YAML or JSON file of `coral profile import`."""

    points: tuple[Point, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _once(self) -> Self:
        twice = [load for load, times in Counter(p.load for p in self.points).items() if times > 1]
        if twice:
            raise ValueError(f"points: {twice[0]} given twice, expected each load once")
        return self

    @cached_property
    def digest(self) -> str:
        """The same for the same points in any order."""
        return digest(sorted((p.model_dump(mode="json") for p in self.points), key=canonical))

    def of(self, model: str, variant: str) -> tuple[Point, ...]:
        """The points of one variant."""
        return tuple(p for p in self.points if (p.model, p.variant) == (model, variant))


def load_profile(paths: Sequence[Path], catalog: Catalog) -> Profile | None:
    """All points of the files that `coral profile import` wrote; None without files.

    Raises:
        OSError: a file cannot be read.
        yaml.YAMLError: it is no YAML.
        pydantic.ValidationError: it is no profile; the error names file and field.
        ValueError: it names what the catalog does not have, or two files have a point in common.
    """
    points: list[Point] = []
    for path in paths:
        profile = load_yaml(Profile, path)
        for place, point in enumerate(profile.points):
            _check_names(f"{path}: points.{place}", point, catalog)
        points.extend(profile.points)
    try:
        return Profile(points=tuple(points)) if points else None
    except ValidationError as error:
        error.add_note(", ".join(map(str, paths)))
        raise


def _check_names(where: str, point: Point, catalog: Catalog) -> None:
    variants = {(m.name, v.name): v for m in catalog.models for v in m.variants}
    variant = variants.get((point.model, point.variant))
    if variant is None:
        known = ", ".join("/".join(names) for names in variants)
        raise ValueError(
            f"{where}: {point.model}/{point.variant} is not in the catalog, expected one of {known}"
        )
    if point.gpu not in variant.gpus:
        raise ValueError(f"{where}.gpu: {point.gpu!r}, expected one of {', '.join(variant.gpus)}")


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


NONE = Curves({}, {})
"""Corrects nothing."""
