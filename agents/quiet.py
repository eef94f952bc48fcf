"""The same complaint once a minute: Kafka's clients say theirs ten times a second when a broker is away."""

import logging
from dataclasses import dataclass

REMEMBERED = 1_000
"""Complaints; one that is forgotten may come again early."""


@dataclass
class _Said:
    at_s: float
    more: int = 0


class Repeats(logging.Filter):
    """Lets an equal warning or error of the same logger pass once in `every_s`; put it on a handler.

    The next one that passes tells how many did not. What is below a warning always passes.
    """

    def __init__(self, every_s: float = 60.0) -> None:
        super().__init__()
        self._every_s = every_s
        self._said: dict[tuple[str, str], _Said] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        text = record.getMessage()
        key = (record.name, text)
        before = self._said.get(key)
        if before is not None and record.created - before.at_s < self._every_s:
            before.more += 1
            return False
        self._said.pop(key, None)  # to the end: the first is the one said longest ago
        self._said[key] = _Said(record.created)
        if len(self._said) > REMEMBERED:
            del self._said[next(iter(self._said))]
        if before is not None and before.more:
            record.msg, record.args = f"{text} (and {before.more} times more)", None
        return True
