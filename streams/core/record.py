"""A record of the control log, as every driver hands it to `step`."""

from dataclasses import dataclass

from schemas.events import ControlEvent


@dataclass(frozen=True)
class Malformed:
    """Stands for an event that could not be read; the core sees that it came, and why it is none."""

    reason: str


@dataclass(frozen=True)
class LogRecord:
    """Offset and LogAppendTime are the broker's; `value` are the bytes that history is hashed over."""

    offset: int
    timestamp_ms: int
    value: bytes
    event: ControlEvent | Malformed
