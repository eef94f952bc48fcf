"""What every schema shares: frozen, closed to unknown keys, no NaN, digests.

Everything that crosses a boundary (topic, file, process) is one of these models, so that a value is
checked once, where it enters, and trusted afterwards.
"""

import hashlib
import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\s/|]+$")]
"""An identifier that may stand in a key: no white space, no `/`, no `|`."""

MAX_INT = 2**53 - 1
"""The greatest whole number that JSON readers of every language keep exactly; sums of such stay finite."""

Millis = Annotated[int, Field(ge=0, le=MAX_INT)]
"""Milliseconds since the Unix epoch (times, names ending in `_ms`), or a span of them."""

DrainMs = Annotated[int, Field(ge=5_000, le=7 * 86_400_000)]
"""How long a drain may take: less than 5 s would cut what is idle (engines must be quiet for 2 s)."""

Count = Annotated[int, Field(ge=0, le=MAX_INT)]
Rate = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Whole = Annotated[int, Field(ge=1)]
Usd = Annotated[float, Field(gt=0, le=1e6)]
"""US dollars an hour for one whole node; zero, less, or a million is a feed's mistake, never a price."""


class Frozen(BaseModel):
    """A value object: immutable, strict about types, refusing unknown keys, NaN and infinities."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True
    )


def canonical(value: Any) -> bytes:
    """The one JSON spelling of `value` (a model or plain data): sorted keys, no spaces, UTF-8."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return json.dumps(
        plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest(value: Any, length: int = 16) -> str:
    """The first `length` hex digits of the SHA-256 of `canonical(value)`."""
    return hashlib.sha256(canonical(value)).hexdigest()[:length]
