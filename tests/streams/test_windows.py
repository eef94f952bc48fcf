"""Windows of one telemetry partition: exact, once, by event time."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.events import DemandClosed
from schemas.settings import FoldSettings
from schemas.sketch import Sketch
from schemas.telemetry import TelemetrySample
from streams.core import windows as windows_module
from streams.core.windows import MAX_BUCKET, MAX_LAG_MS, Refused, Watermark, Windows

T0 = 1_700_000_000_000
RULES = FoldSettings(window_ms=10_000, lateness_ms=2_000, source_idle_ms=10_000, future_ms=5_000)


def sample(at_s: float, source: str = "r1", **given: Any) -> TelemetrySample:
    """A sample at `at_s` seconds after T0; one request unless said otherwise."""
    said = {"source": source, "model": "m", "slo_class": "chat", "offered": 1}
    return TelemetrySample.model_validate(said | {"at_ms": T0 + round(at_s * 1000)} | given)


def feed(windows: Windows, *samples: TelemetrySample) -> list[DemandClosed]:
    """Add samples that reach the broker at their event time."""
    return [closed for s in samples for closed in windows.add(s, s.at_ms).closed]


def every_second(begin_s: int, end_s: int, source: str = "r1", **given: Any) -> list[TelemetrySample]:
    return [sample(s, source, **given) for s in range(begin_s, end_s)]


def span(closed: DemandClosed) -> tuple[int, int]:
    return (closed.start_ms - T0) // 1000, (closed.end_ms - T0) // 1000


def test_a_window_closes_once_the_watermark_passes_its_end() -> None:
    windows = Windows(3, RULES)
    assert feed(windows, *every_second(0, 12)) == []
    (closed,) = feed(windows, sample(12))
    assert (span(closed), closed.offered, closed.sources, closed.partition) == ((0, 10), 10, 1, 3)
    assert windows.closed_ms == T0 + 10_000


def test_sums_tokens_refusals_and_sketches() -> None:
    windows = Windows(0, RULES)
    one: dict[str, Any] = {"offered": 4, "refused": 1, "finished": 2}
    one |= {"input_tokens": 30, "cached_input_tokens": 10}
    first = sample(0, **one, output_tokens=7, ttft_ms=Sketch.of([5.0, 0]), tpot_ms=Sketch.of([1.0]))
    second = sample(1, "r2", **one, output_tokens=8, ttft_ms=Sketch.of([5.0, 900.0]))
    closed, *_ = feed(windows, first, second, *every_second(2, 30), *every_second(28, 30, "r2"))
    assert (closed.refused, closed.finished, closed.sources) == (2, 4, 2)
    assert (closed.input_tokens, closed.cached_input_tokens, closed.output_tokens) == (60, 20, 15)
    assert closed.ttft_ms == Sketch.of([5.0, 0, 5.0, 900.0])
    assert closed.tpot_ms == Sketch.of([1.0])


def test_keys_of_a_window_are_closed_apart_and_in_order() -> None:
    windows = Windows(0, RULES)
    batch = every_second(0, 1, slo_class="batch", offered=5)
    closed = feed(windows, *every_second(0, 1), *batch, *every_second(1, 13))
    assert [(c.slo_class, c.offered) for c in closed] == [("batch", 5), ("chat", 10)]


def test_an_explicit_zero_is_a_window_and_silence_is_none() -> None:
    """kedacore/keda#3065, ai-dynamo/dynamo#6985: zero is said, missing is not zero."""
    windows = Windows(0, RULES)
    zeros = feed(windows, *every_second(0, 10), *every_second(10, 20, offered=0), *every_second(40, 53))
    assert [(span(c), c.offered) for c in zeros] == [((0, 10), 10), ((10, 20), 0), ((40, 50), 10)]


def test_a_sample_sent_twice_counts_once() -> None:
    """faust-streaming/faust#502, #323."""
    windows = Windows(0, RULES)
    (closed,) = feed(windows, *(s for s in every_second(0, 13) for _ in range(3)))
    assert closed.offered == 10


def test_same_time_of_other_source_or_tenant_is_no_duplicate() -> None:
    windows = Windows(0, RULES)
    closed, *_ = feed(windows, sample(0), sample(0, "r2"), sample(0, tenant="t2"), *every_second(1, 40))
    assert closed.offered == 12


def test_late_samples_are_counted_in_the_next_record_and_change_no_closed_window() -> None:
    """robinhood's and faust-streaming/faust#118: 5 s after its window closed."""
    windows = Windows(0, RULES)
    first = feed(windows, *every_second(0, 17))
    late = windows.add(sample(9.5, offered=7), T0 + 17_000)
    assert (late.closed, late.due_ms) == ((), 0)
    windows.add(sample(9.5, offered=7), T0 + 17_000)
    (second,) = feed(windows, *every_second(17, 23))
    (third,) = feed(windows, *every_second(23, 33))
    assert [c.offered for c in (*first, second, third)] == [10, 10, 10]
    assert [(c.late_samples, c.late_offered) for c in (*first, second, third)] == [(0, 0), (2, 14), (0, 0)]


def test_late_figures_of_keys_without_windows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_module, "MAX_LATE_KEYS", 3)
    windows = Windows(0, RULES)
    feed(windows, *every_second(0, 20))
    for n in range(9):
        windows.add(sample(1, model=f"m{n}"), T0 + 20_000)
    assert len(windows._late) == 3


def test_a_sample_from_the_future_is_refused_and_moves_nothing() -> None:
    windows = Windows(0, RULES)
    feed(windows, *every_second(0, 12))
    with pytest.raises(Refused, match=r"at_ms: .* is 5001 ms ahead .*, expected at most 5000 ms"):
        windows.add(sample(20.001), T0 + 15_000)
    assert windows.closed_ms < T0 + 10_000


def test_a_sample_that_covers_more_than_a_window_is_refused() -> None:
    with pytest.raises(Refused, match=r"interval_ms: 60000, expected at most \d+"):
        Windows(0, RULES).add(sample(0, interval_ms=60_000), T0)


@pytest.mark.parametrize("field", ["ttft_ms", "tpot_ms"])
def test_impossible_latencies_are_refused(field: str) -> None:
    wild: dict[str, Any] = {field: Sketch(buckets={MAX_BUCKET + 1: 1})}
    with pytest.raises(Refused, match=rf"{field}: bucket \+-{MAX_BUCKET + 1}, expected"):
        Windows(0, RULES).add(sample(0, **wild), T0)


def test_the_slowest_live_source_holds_the_watermark() -> None:
    windows = Windows(0, RULES)
    both = [s for pair in zip(every_second(0, 11), every_second(0, 11, "r2"), strict=True) for s in pair]
    assert feed(windows, *both) == []
    # r2 is live but 6 s behind: its samples of the first window are still to come.
    for s in range(11, 16):
        assert windows.add(sample(s), T0 + s * 1000).closed == ()
        assert windows.add(sample(s - 6.5, "r2"), T0 + s * 1000).closed == ()
    (closed,) = feed(windows, *every_second(16, 19), sample(12, "r2"))
    assert (closed.offered, closed.late_samples) == (25, 0)


def test_an_idle_source_no_longer_holds_the_watermark() -> None:
    windows = Windows(0, RULES)
    assert feed(windows, *every_second(0, 5, "r2"), *every_second(0, 15)) == []
    (closed,) = feed(windows, sample(15))  # 11 s of broker time after r2's last
    assert (span(closed), closed.sources, closed.offered) == ((0, 10), 2, 15)


def test_an_outage_of_the_broker_makes_no_source_idle() -> None:
    """A minute without the broker: the sources come back one by one with what they kept."""
    windows = Windows(0, RULES)
    before = [s for pair in zip(every_second(0, 15), every_second(0, 15, "r2"), strict=True) for s in pair]
    feed(windows, *before)
    back = T0 + 75_000
    closed = [c for s in every_second(15, 75) for c in windows.add(s, back).closed]
    closed += [c for s in every_second(15, 75, "r2") for c in windows.add(s, back + 3000).closed]
    assert [(span(c)[0], c.offered) for c in closed] == [(s, 20) for s in range(10, 70, 10)]


def test_a_reader_that_begins_waits_until_it_knows_the_live_sources() -> None:
    """Read again after a crash: a source 9 s behind comes first with its second-last sample."""
    windows = Windows(0, RULES)
    assert feed(windows, *every_second(0, 10)) == []
    assert windows.closed_ms == 0
    slow = [windows.add(sample(s - 9, "r2"), T0 + s * 1000).closed for s in range(9, 16)]
    assert slow == [()] * 7


def test_a_source_with_a_slow_clock_holds_nothing_back_for_long() -> None:
    windows = Windows(0, RULES)
    hour_ago = sample(-3600, "skewed")
    for s in range(30):
        windows.add(sample(s), T0 + s * 1000)
        windows.add(hour_ago.model_copy(update={"at_ms": hour_ago.at_ms + s}), T0 + s * 1000)
    assert windows.closed_ms >= T0 + 20_000


def test_a_lone_source_with_a_slow_clock_still_closes_windows() -> None:
    windows = Windows(0, RULES)
    closed = [c for s in every_second(0, 30) for c in windows.add(s, s.at_ms + 10 * MAX_LAG_MS).closed]
    assert [span(c) for c in closed] == [(0, 10), (10, 20)]


def test_too_many_open_samples_close_the_oldest_window_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_module, "MAX_OPEN_SAMPLES", 50)
    windows = Windows(0, RULES)
    closed = feed(windows, *(sample(0, f"r{n}") for n in range(51)))
    assert [c.offered for c in closed] == [51]
    assert windows.add(sample(1), T0).due_ms == 0, "what comes after is late"


def test_the_watermark_never_goes_back() -> None:
    mark = Watermark(2_000, 10_000)
    for s in range(12):
        mark.hear("r1", s * 1000, s * 1000)
    assert mark.value == 9_000
    mark.hear("r2", 0, 12_000)
    assert mark.value == 9_000


# --- any arrival order within the lateness gives the exact sums, once ------------------------------
@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[int, TelemetrySample]]:
    """Samples of up to three sources, each delayed by up to the lateness, some sent again."""
    chance = Random(draw(st.integers(0, 2**32)))
    arriving = []
    for n in range(draw(st.integers(1, 3))):
        for s in range(45):
            for tenant in ("a", "b")[: chance.randint(1, 2)]:
                one = sample(s, f"r{n}", tenant=tenant, offered=chance.randint(0, 9))
                copies = chance.choice((1, 1, 1, 2))
                arriving += [(one.at_ms + chance.randint(0, RULES.lateness_ms), one) for _ in range(copies)]
    return sorted(arriving, key=lambda pair: pair[0])


@settings(max_examples=60, deadline=None)
@given(arrivals())
def test_any_interleaving_gives_exact_sums_once(arriving: list[tuple[int, TelemetrySample]]) -> None:
    windows = Windows(0, RULES)
    closed = [c for broker_ms, s in arriving for c in windows.add(s, broker_ms).closed]
    starts = [c.start_ms for c in closed]
    assert starts == sorted(set(starts)), "each window once, in order"
    assert len(starts) >= 3
    distinct = {s.id: s for _, s in arriving}.values()
    for window in closed:
        inside = [s.offered for s in distinct if window.start_ms <= s.at_ms < window.end_ms]
        assert (window.offered, window.late_samples) == (sum(inside), 0)


@settings(max_examples=60, deadline=None)
@given(arrivals(), st.data())
def test_reading_again_from_what_is_acknowledged_gives_the_same_windows(
    arriving: list[tuple[int, TelemetrySample]], data: st.DataObject
) -> None:
    """Crash anywhere: the first record of each window, over both readers, is exact."""
    crash = data.draw(st.integers(1, len(arriving)))
    first = Windows(0, RULES)
    due = []
    closed: list[DemandClosed] = []
    for broker_ms, s in arriving[:crash]:
        added = first.add(s, broker_ms)
        due.append(added.due_ms)
        closed += added.closed
    begin = next((n for n, due_ms in enumerate(due) if due_ms > first.closed_ms), crash)
    second = Windows(0, RULES)
    closed += [c for broker_ms, s in arriving[begin:] for c in second.add(s, broker_ms).closed]
    counted: dict[int, int] = {}
    for window in closed:
        counted.setdefault(window.start_ms, window.offered)
    distinct = {s.id: s for _, s in arriving}.values()
    for start_ms, offered in counted.items():
        inside = [s.offered for s in distinct if start_ms <= s.at_ms < start_ms + RULES.window_ms]
        assert offered == sum(inside)
    assert sorted(counted) == list(range(min(counted), max(counted) + 1, RULES.window_ms))
