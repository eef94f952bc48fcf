"""Event-time windows of one telemetry partition (house.md, law 7).

Pure and deterministic: the same samples with the same broker timestamps in the same order close the same
windows, so that whoever reads a partition again after a crash comes to the same sums. Its laws:

1. A window of a (model, SLO class) is closed once the watermark has passed its end, and never changes after.
2. The watermark is the least over the live sources of (greatest event time - lateness), and never goes back.
3. A sample counts once in an open window, however often it comes. One that comes too late is counted in the
   late figures of its key's next record.
4. No sample, no record: a window without samples is missing, not zero.

What is kept grows with the open windows only: a skewed clock cannot hold them open for long (`MAX_LAG_MS`),
and above `MAX_OPEN_SAMPLES` the oldest window is closed early, which makes its remaining samples late.
"""

from dataclasses import dataclass, field

from schemas.events import DemandClosed
from schemas.settings import FoldSettings
from schemas.sketch import Sketch
from schemas.telemetry import TelemetrySample

MAX_LAG_MS = 180_000
"""Longer than a producer keeps what it cannot deliver (120 s): a source whose samples reach the broker later
than this has a wrong clock, and holds the watermark back only if all the others are as late."""
MAX_OPEN_SAMPLES = 200_000
"""Samples in the open windows of one partition; some 50 MB."""
MAX_BUCKET = 2_000
"""Greatest sketch bucket either way: 10^35 ms is no latency, and would only fill memory."""
MAX_LATE_KEYS = 10_000
"""Keys that late figures are kept for; beyond that the longest kept are forgotten."""

Key = tuple[str, str]
"""Model and SLO class."""


class Refused(ValueError):
    """A well-formed event that must not count; the text names the field, its value and what was expected."""


@dataclass(frozen=True)
class Added:
    """What one sample brought about."""

    due_ms: int
    """The sample may be acknowledged once everything up to this event time is closed on the log."""
    closed: tuple[DemandClosed, ...] = ()
    """Windows that are now closed, oldest first."""


class Windows:
    """The open windows of one partition."""

    def __init__(self, partition: int, rules: FoldSettings) -> None:
        self.partition = partition
        self.rules = rules
        self.closed_ms = 0
        """Every window that ends here or before is closed."""
        self._watermark = Watermark(rules.lateness_ms, rules.source_idle_ms)
        self._open: dict[int, dict[Key, _Sums]] = {}
        self._late: dict[Key, tuple[int, int]] = {}
        self._samples = 0

    def add(self, sample: TelemetrySample, broker_ms: int) -> Added:
        """Count a sample that the broker stamped `broker_ms`.

        Raises:
            Refused: it is too far in the future, covers more than a window, or its latencies are impossible.
        """
        refuse_future(sample.at_ms, broker_ms, self.rules.future_ms)
        if (
            sample.interval_ms > self.rules.window_ms
        ):  # whichever window it were put in, the rate would be wrong
            raise Refused(f"interval_ms: {sample.interval_ms}, expected at most {self.rules.window_ms}")
        _refuse_wild("ttft_ms", sample.ttft_ms)
        _refuse_wild("tpot_ms", sample.tpot_ms)
        self._watermark.hear(sample.source, sample.at_ms, broker_ms)
        start_ms = sample.at_ms - sample.at_ms % self.rules.window_ms
        end_ms = start_ms + self.rules.window_ms
        key = (sample.model, sample.slo_class)
        if end_ms <= self.closed_ms:
            self._count_late(key, sample)
            end_ms = 0
        else:
            window = self._open.setdefault(start_ms, {})
            self._samples += window.setdefault(key, _Sums()).add(sample)
        return Added(end_ms, self._close())

    def _count_late(self, key: Key, sample: TelemetrySample) -> None:
        samples, offered = self._late.pop(key, (0, 0))
        self._late[key] = (samples + 1, offered + sample.offered)
        if len(self._late) > MAX_LATE_KEYS:
            del self._late[next(iter(self._late))]

    def _close(self) -> tuple[DemandClosed, ...]:
        closed: list[DemandClosed] = []
        while self._open:
            start_ms = min(self._open)
            end_ms = start_ms + self.rules.window_ms
            if end_ms > self._watermark.value and self._samples <= MAX_OPEN_SAMPLES:
                break
            closed += self._close_window(start_ms, end_ms)
        self.closed_ms = max(self.closed_ms, self._watermark.value)
        return tuple(closed)

    def _close_window(self, start_ms: int, end_ms: int) -> list[DemandClosed]:
        window = self._open.pop(start_ms)
        self._samples -= sum(len(sums.seen) for sums in window.values())
        self.closed_ms = max(self.closed_ms, end_ms)
        return [self._record(key, sums, start_ms, end_ms) for key, sums in sorted(window.items())]

    def _record(self, key: Key, sums: "_Sums", start_ms: int, end_ms: int) -> DemandClosed:
        model, slo_class = key
        late_samples, late_offered = self._late.pop(key, (0, 0))
        return DemandClosed(
            model=model,
            slo_class=slo_class,
            start_ms=start_ms,
            end_ms=end_ms,
            partition=self.partition,
            sources=len({source for source, _, _ in sums.seen}),
            offered=sums.offered,
            refused=sums.refused,
            finished=sums.finished,
            input_tokens=sums.input_tokens,
            cached_input_tokens=sums.cached_input_tokens,
            output_tokens=sums.output_tokens,
            ttft_ms=sums.ttft_ms.total,
            tpot_ms=sums.tpot_ms.total,
            late_samples=late_samples,
            late_offered=late_offered,
        )


class Watermark:
    """How far event time has surely come, over the sources that are live.

    A source is idle, and no longer waited for, once the partition was listened to for `idle_ms` without it.
    The time listened is broker time between records, one gap counting for at most half of `idle_ms`: after
    an outage of the broker the sources come back one by one, and none of them was idle. For the same reason a
    reader that has just begun waits for `idle_ms` before it believes that it knows all live sources.
    """

    def __init__(self, lateness_ms: int, idle_ms: int) -> None:
        self.value = 0
        """Milliseconds since the epoch; 0 until the live sources are known."""
        self._lateness_ms = lateness_ms
        self._idle_ms = idle_ms
        self._listened_ms = 0
        self._broker_ms: int | None = None
        self._sources: dict[str, _Source] = {}  # the one heard longest ago first

    def hear(self, source: str, at_ms: int, broker_ms: int) -> None:
        """Take note of a sample of `source` with event time `at_ms`."""
        self._listen(broker_ms)
        known = self._sources.pop(source, None)
        greatest_ms = at_ms if known is None else max(at_ms, known.greatest_ms)
        lags = broker_ms - greatest_ms > MAX_LAG_MS
        self._sources[source] = _Source(greatest_ms, self._listened_ms, lags)
        if self._listened_ms >= self._idle_ms:
            self._drop_idle()
            self.value = max(self.value, self._least_ms() - self._lateness_ms)

    def _listen(self, broker_ms: int) -> None:
        if self._broker_ms is None:
            self._broker_ms = broker_ms
        self._listened_ms += min(max(broker_ms - self._broker_ms, 0), self._idle_ms // 2)
        self._broker_ms = max(broker_ms, self._broker_ms)

    def _drop_idle(self) -> None:
        idle = []
        for name, source in self._sources.items():
            if source.heard_ms >= self._listened_ms - self._idle_ms:
                break
            idle.append(name)
        for name in idle:
            del self._sources[name]

    def _least_ms(self) -> int:
        punctual = [source.greatest_ms for source in self._sources.values() if not source.lags]
        return min(punctual or (source.greatest_ms for source in self._sources.values()))


@dataclass(frozen=True, slots=True)
class _Source:
    greatest_ms: int
    heard_ms: int
    """On the clock of time listened."""
    lags: bool


@dataclass(slots=True)
class _Sketches:
    """The sum of many sketches."""

    buckets: dict[int, int] = field(default_factory=dict)
    zeros: int = 0

    def add(self, sketch: Sketch) -> None:
        self.zeros += sketch.zeros
        for index, count in sketch.buckets.items():
            self.buckets[index] = self.buckets.get(index, 0) + count

    @property
    def total(self) -> Sketch:
        return Sketch(buckets=dict(sorted(self.buckets.items())), zeros=self.zeros)


@dataclass(slots=True)
class _Sums:
    """What the samples of one key in one window come to."""

    seen: set[tuple[str, str, int]] = field(default_factory=set)
    offered: int = 0
    refused: int = 0
    finished: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    ttft_ms: _Sketches = field(default_factory=_Sketches)
    tpot_ms: _Sketches = field(default_factory=_Sketches)

    def add(self, sample: TelemetrySample) -> bool:
        """Count it; False if it has been counted before."""
        # Within one key and window this says what TelemetrySample.id says.
        identity = (sample.source, sample.tenant, sample.at_ms)
        if identity in self.seen:
            return False
        self.seen.add(identity)
        self.offered += sample.offered
        self.refused += sample.refused
        self.finished += sample.finished
        self.input_tokens += sample.input_tokens
        self.cached_input_tokens += sample.cached_input_tokens
        self.output_tokens += sample.output_tokens
        self.ttft_ms.add(sample.ttft_ms)
        self.tpot_ms.add(sample.tpot_ms)
        return True


def refuse_future(at_ms: int, broker_ms: int, future_ms: int) -> None:
    """Raise Refused for an event time more than `future_ms` after the broker's timestamp."""
    ahead_ms = at_ms - broker_ms
    if ahead_ms > future_ms:
        raise Refused(
            f"at_ms: {at_ms} is {ahead_ms} ms ahead of its broker timestamp {broker_ms}, "
            f"expected at most {future_ms} ms"
        )


def _refuse_wild(name: str, sketch: Sketch) -> None:
    widest = max(map(abs, sketch.buckets), default=0)
    if widest > MAX_BUCKET:
        raise Refused(f"{name}: bucket +-{widest}, expected -{MAX_BUCKET} to {MAX_BUCKET}")
