"""Recorded traces, played for ever: requests that arrive, and a level that moves in steps.

Pure but for reading the file. Times are seconds of the trace; a trace that ends starts again, and both
kinds are asked about any time from zero on, so whoever plays one keeps no position.
"""

import csv
import gzip
import io
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SHIPPED_TRACES = Path(__file__).resolve().parent.parent / "schemas" / "data" / "traces"
"""Their origin and licences: README.md there."""


class TraceError(ValueError):
    """A trace file that is not what it should be: file, line, field, value and expectation."""


@dataclass(frozen=True)
class Request:
    """One recorded request; lengths in tokens."""

    arrival_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class RequestTrace:
    """Requests in order of arrival, and how long the recording lasts (whole seconds)."""

    requests: tuple[Request, ...]
    period_s: int

    def between(self, start_s: float, end_s: float) -> Iterator[tuple[int, Request]]:
        """The requests of [start_s, end_s), each with its index, which counts on from loop to loop."""
        loop = math.floor(start_s / self.period_s)
        while (origin := loop * self.period_s) < end_s:
            first = bisect_left(self.requests, start_s - origin, key=lambda r: r.arrival_s)
            last = bisect_left(self.requests, end_s - origin, key=lambda r: r.arrival_s)
            for i in range(first, last):
                yield loop * len(self.requests) + i, self.requests[i]
            loop += 1


@dataclass(frozen=True)
class StepTrace:
    """A level over time: from `times_s[i]` on it is `levels[i]`."""

    times_s: tuple[float, ...]
    levels: tuple[int, ...]

    @property
    def peak(self) -> int:
        return max(self.levels)

    def at(self, elapsed_s: float, offset_s: float = 0) -> int:
        """The level after `elapsed_s`, having started at `offset_s` of the trace.

        At its end it goes on at `offset_s`, so that what was skipped at first stays skipped.

        Raises:
            ValueError: the offset is not within the trace.
        """
        start, end = self.times_s[0], self.times_s[-1]
        if not start <= offset_s < end:
            raise ValueError(f"offset_s: {offset_s} is outside the trace, expected {start} to below {end}")
        time_s = offset_s + elapsed_s % (end - offset_s)
        return self.levels[bisect_right(self.times_s, time_s) - 1]


def share(index: int, quota: float) -> int:
    """How often the request of this index is played, so that a share `quota` of all of them is.

    The carry makes it even: any n requests in a row are played floor or ceil of n * quota times.
    """
    return math.floor((index + 1) * quota) - math.floor(index * quota)


def read_requests(path: Path) -> RequestTrace:
    """Read `arrival_s,context_tokens,generated_tokens` (gzip-compressed CSV with a header).

    Raises:
        OSError: the file cannot be read.
        TraceError: it is not such a file.
    """
    requests: list[Request] = []
    for where, row in _rows(path, ("arrival_s", "context_tokens", "generated_tokens")):
        arrival_s = _number(where, "arrival_s", row[0], at_least=requests[-1].arrival_s if requests else 0)
        requests.append(
            Request(
                arrival_s, _whole(where, "context_tokens", row[1]), _whole(where, "generated_tokens", row[2])
            )
        )
    if not requests:
        raise TraceError(f"{path.name}: no rows, expected at least one request")
    return RequestTrace(tuple(requests), period_s=math.floor(requests[-1].arrival_s) + 1)


def read_steps(path: Path) -> StepTrace:
    """Read `elapsed,instances`; of several rows of one time (before and after a step) the last counts.

    Raises:
        OSError: the file cannot be read.
        TraceError: it is not such a file.
    """
    steps: dict[float, int] = {}
    latest = 0.0
    for where, row in _rows(path, ("elapsed", "instances")):
        latest = _number(where, "elapsed", row[0], at_least=latest)
        steps[latest] = _whole(where, "instances", row[1])
    if len(steps) < 2:
        raise TraceError(f"{path.name}: {len(steps)} times, expected at least two")
    return StepTrace(tuple(steps), tuple(steps.values()))


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    with gzip.open(path) as file:
        reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
        header = next(reader, [])
        if header != list(columns):
            raise TraceError(f"{path.name}, line 1: columns {header}, expected {list(columns)}")
        for row in reader:
            where = f"{path.name}, line {reader.line_num}"
            if len(row) != len(columns):
                raise TraceError(f"{where}: {len(row)} fields, expected {len(columns)}")
            yield where, row


def _number(where: str, field: str, text: str, *, at_least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= at_least):
        raise TraceError(f"{where}: {field} is {text!r}, expected a number of at least {at_least}")
    return value


def _whole(where: str, field: str, text: str) -> int:
    if not text.isdecimal():
        raise TraceError(f"{where}: {field} is {text!r}, expected a whole number of at least 0")
    return int(text)
