"""What routers and scrapers say of the requests they saw: `coral.telemetry`.

Times are milliseconds since the epoch; a name ending in `_ms` is a time or a span, never a rate.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from schemas.base import MAX_INT, Count, Frozen, Millis, Name
from schemas.sketch import Sketch

Positive = Annotated[int, Field(ge=1, le=MAX_INT)]


class Attained(Frozen):
    """How many of an interval's requests kept one objective of their SLO class."""

    objective: Name
    """Such as `ttft_p95_1200ms`: the time, the percentile it is promised for, and the promise."""
    met: Count
    judged: Count

    @model_validator(mode="after")
    def _no_more_met_than_judged(self) -> Self:
        if self.met > self.judged:
            raise ValueError(f"met: {self.met} exceeds judged {self.judged}")
        return self


class TelemetrySample(Frozen):
    """What one source saw of one (model, SLO class) in one interval; explicit zeros are said.

    `offered` counts every arrival: served, queued and refused. Output tokens are those of requests
    that finished in the interval. `input_tokens` includes the cached ones.
    """

    source: Name
    tenant: Name = "default"
    model: Name
    slo_class: Name
    at_ms: Millis
    """Start of the interval, event time."""
    interval_ms: Positive = 1000
    offered: Count
    refused: Count = 0
    finished: Count = 0
    input_tokens: Count = 0
    cached_input_tokens: Count = 0
    output_tokens: Count = 0
    ttft_ms: Sketch = Sketch()
    tpot_ms: Sketch = Sketch()
    attained: tuple[Attained, ...] = ()
    """SLO attainment of the requests that finished; none where the source knows no objectives."""

    @model_validator(mode="after")
    def _parts_do_not_exceed_wholes(self) -> Self:
        if self.refused > self.offered:
            raise ValueError(f"refused: {self.refused} exceeds offered {self.offered}")
        if self.cached_input_tokens > self.input_tokens:
            raise ValueError("cached_input_tokens: exceeds input_tokens")
        return self

    @property
    def id(self) -> str:
        """The same sample sent twice has the same id."""
        return f"{self.source}/{self.tenant}/{self.model}/{self.slo_class}/{self.at_ms}"
