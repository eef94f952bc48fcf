"""One instance measured at one load, and several of these together: `Point` and `Profile`."""

from collections import Counter
from functools import cached_property
from typing import Annotated, Self

from pydantic import Field, model_validator

from schemas.base import Frozen, Name, canonical, digest
from schemas.catalog import Phase, Positive, Whole

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
