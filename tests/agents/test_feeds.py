"""Feeds say what is due in a second, always the same; the clock is somebody else's."""

import gzip
import json
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agents.bus import Bus
from agents.feeds import (
    Availability,
    AvailabilityFeed,
    Feed,
    FeedPlan,
    Message,
    PriceMove,
    Prices,
    Supply,
    Traffic,
    TrafficFeed,
    make_feeds,
    run_feeds,
)
from agents.traces import (
    SHIPPED_TRACES,
    Request,
    RequestTrace,
    StepTrace,
    TraceError,
    read_requests,
    read_steps,
)
from agents.traces import share as times_played
from schemas.base import Frozen
from schemas.catalog import load_catalog
from schemas.events import AvailabilityOffered, PriceOffered
from schemas.problems import Pool
from schemas.telemetry import TelemetrySample
from schemas.topics import Topic

CATALOG = load_catalog()
SPOT = Pool(cloud="gcp", region="us-central1", market="spot")
CONV = Traffic(source="azure-conv", trace="azure_2023_conv", model="qwen3-32b", slo_class="interactive")
CODE = Traffic(source="azure-code", trace="azure_2023_code", model="gpt-oss-20b", slo_class="interactive")
BEGIN_MS = 1_700_000_000_000


def samples(feed: Feed, seconds: int) -> list[TelemetrySample]:
    return [cast("TelemetrySample", m.event) for second in range(seconds) for m in feed.due(second)]


def write_trace(folder: Path, text: str) -> Path:
    path = folder / "trace.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    return path


# --- traffic ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("spec", "rate"), [(CONV, 5.53), (CODE, 2.57)])
@pytest.mark.parametrize("speedup", [1.0, 7.5, 30.0])
def test_a_speed_up_compresses_the_shape_and_keeps_the_rate(
    spec: Traffic, rate: float, speedup: float
) -> None:
    (feed,) = make_feeds(FeedPlan(speedup=speedup, traffic=(spec,)), CATALOG, BEGIN_MS)
    period_s = cast("TrafficFeed", feed).trace.period_s
    played = samples(feed, int(period_s / speedup))
    assert sum(s.offered for s in played) / len(played) == pytest.approx(rate, rel=0.03)
    # Lengths stay those of the trace: 1155 and 211 tokens a request, or 2048 and 28.
    mean = sum(s.output_tokens for s in played) / sum(s.finished for s in played)
    assert mean == pytest.approx(211 if spec is CONV else 27.9, rel=0.1)


def test_every_second_is_said_even_an_empty_one() -> None:
    trace = RequestTrace((Request(0.5, 10, 1), Request(2.5, 20, 2)), period_s=4)
    feed = TrafficFeed(CONV, trace, speedup=1.0, begin_ms=BEGIN_MS)
    played = samples(feed, 8)
    assert [s.offered for s in played] == [1, 0, 1, 0, 1, 0, 1, 0]
    assert [s.at_ms - BEGIN_MS for s in played] == list(range(0, 8000, 1000))
    assert [s.input_tokens for s in played[:4]] == [10, 0, 20, 0]


def test_nothing_is_measured_so_no_latency_is_said() -> None:
    (feed,) = make_feeds(FeedPlan(speedup=30.0, traffic=(CONV,)), CATALOG, BEGIN_MS)
    for sample in samples(feed, 20):
        assert sample.ttft_ms.count == sample.tpot_ms.count == sample.refused == 0
        assert sample.finished == sample.offered


def test_the_same_second_is_the_same_message() -> None:
    (feed,) = make_feeds(FeedPlan(speedup=30.0, traffic=(CONV,)), CATALOG, BEGIN_MS)
    assert list(feed.due(17)) == list(feed.due(17))
    (message,) = feed.due(17)
    assert message.key == "qwen3-32b"
    assert message.id == f"azure-conv/default/qwen3-32b/interactive/{BEGIN_MS + 17_000}"


@given(
    gaps=st.lists(st.floats(0, 3), min_size=1, max_size=40),
    speedup=st.floats(1, 50),
    scale=st.floats(0.1, 4),
    seconds=st.integers(1, 60),
)
def test_a_share_of_the_requests_is_played_whatever_the_cut(
    gaps: list[float], speedup: float, scale: float, seconds: int
) -> None:
    """Over any stretch the number played is the trace's times scale over speed-up, to within one."""
    arrivals = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    trace = RequestTrace(tuple(Request(a, 1, 1) for a in arrivals), period_s=int(arrivals[-1]) + 1)
    feed = TrafficFeed(CONV.model_copy(update={"scale": scale}), trace, speedup, BEGIN_MS)
    recorded = sum(1 for _ in trace.between(0, seconds * speedup))
    played = sum(s.offered for s in samples(feed, seconds))
    assert abs(played - recorded * scale / speedup) < 1 + 1e-6


@given(st.floats(0.001, 5), st.integers(0, 1000), st.integers(0, 1000))
def test_the_carry_makes_shares_even(quota: float, start: int, n: int) -> None:
    played = sum(times_played(i, quota) for i in range(start, start + n))
    assert abs(played - n * quota) < 1 + 1e-6


# --- prices ----------------------------------------------------------------------------------------
def prices(feed: Feed, second: int) -> dict[str, float]:
    events = [cast("PriceOffered", m.event) for m in feed.due(second)]
    return {event.offer.key: event.usd_per_hour for event in events}


def test_list_prices_are_said_at_the_start_and_again() -> None:
    (feed,) = make_feeds(FeedPlan(prices=Prices(every_s=10)), CATALOG, BEGIN_MS)
    assert len(prices(feed, 0)) == len(CATALOG.prices)
    assert prices(feed, 0) == prices(feed, 10)
    assert prices(feed, 1) == {}
    assert all(key.endswith("|list") for key in prices(feed, 0))


def test_a_scripted_move_is_said_at_once_and_stays() -> None:
    moves = (
        PriceMove(at_s=4, pool=SPOT, configuration="1xL4", factor=1.5),
        PriceMove(at_s=7, pool=SPOT, configuration="1xL4", factor=0.5),
    )
    (feed,) = make_feeds(FeedPlan(prices=Prices(every_s=10, moves=moves)), CATALOG, BEGIN_MS)
    key = f"{SPOT.key}|1xL4|list"
    listed = prices(feed, 0)[key]
    assert prices(feed, 4) == {key: pytest.approx(1.5 * listed)}
    assert prices(feed, 7) == {key: pytest.approx(0.5 * listed)}
    assert prices(feed, 10)[key] == pytest.approx(0.5 * listed)


def test_a_price_of_zero_is_refused_by_name() -> None:
    """skypilot-org/skypilot#9156: H100 at 0."""
    with pytest.raises(ValidationError, match="factor"):
        PriceMove(at_s=1, pool=SPOT, configuration="1xH100", factor=0.0)
    plain = CATALOG.model_dump(mode="json")
    plain["prices"][0]["usd_per_hour"] = 0
    with pytest.raises(ValidationError, match=r"prices\.0\.usd_per_hour"):
        type(CATALOG).model_validate_json(json.dumps(plain))
    offer = {"pool": SPOT, "configuration": "1xH100", "source": "list"}
    with pytest.raises(ValidationError, match="usd_per_hour"):
        PriceOffered.model_validate({"offer": offer, "usd_per_hour": 0.0, "at_ms": 1})


# --- availability ----------------------------------------------------------------------------------
def test_levels_follow_the_recorded_cluster() -> None:
    """Eight of twelve go at once early on, as they did."""
    supply = Supply(pool=SPOT, configuration="1xL4", nodes=12)
    plan = FeedPlan(speedup=30.0, availability=Availability(supplies=(supply,)))
    (feed,) = make_feeds(plan, CATALOG, BEGIN_MS)
    said = [
        (second, cast("AvailabilityOffered", m.event).obtainable)
        for second in range(121)
        for m in feed.due(second)
    ]
    changes = [pair for i, pair in enumerate(said) if i == 0 or pair[1] != said[i - 1][1]]
    assert changes[:8] == [(0, 0), (1, 4), (2, 12), (5, 5), (8, 12), (12, 10), (18, 12), (69, 8)]
    assert changes[-3:] == [(100, 2), (115, 12), (120, 2)]
    assert {second for second, _ in said} >= set(range(0, 121, 5))


def test_a_small_supply_is_rounded_down() -> None:
    feed = AvailabilityFeed(
        Availability(supplies=(Supply(pool=SPOT, configuration="1xL4", nodes=4, offset_s=0),)),
        StepTrace((0.0, 1.0, 2.0), (12, 5, 0)),
        1.0,
        BEGIN_MS,
    )
    levels = [cast("AvailabilityOffered", m.event).obtainable for s in range(4) for m in feed.due(s)]
    assert levels == [4, 1, 4, 1]  # the trace ends at its last time and starts again


def test_an_offset_outside_the_trace_is_refused() -> None:
    trace = read_steps(SHIPPED_TRACES / "bamboo_2020_g4dn.csv.gz")
    with pytest.raises(ValueError, match="offset_s: 90000 is outside the trace"):
        trace.at(0, 90_000)


# --- what is wrong is named ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        (FeedPlan(traffic=(CONV.model_copy(update={"model": "gpt-9"}),)), "the catalog has no gpt-9/inter"),
        (
            FeedPlan(prices=Prices(moves=(PriceMove(at_s=1, pool=SPOT, configuration="9xL4", factor=2.0),))),
            "no list price for 9xL4",
        ),
        (
            FeedPlan(availability=Availability(supplies=(Supply(pool=SPOT, configuration="9xL4", nodes=1),))),
            "configuration '9xL4' is unknown",
        ),
    ],
)
def test_a_plan_of_feeds_names_what_there_is(plan: FeedPlan, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_feeds(plan, CATALOG, BEGIN_MS)


@pytest.mark.parametrize("speedup", [0.5, 0.0, float("nan")])
def test_a_speed_up_below_one_is_refused(speedup: float) -> None:
    with pytest.raises(ValidationError, match="speedup"):
        FeedPlan(speedup=speedup)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,b\n", r"line 1: columns \['a', 'b'\]"),
        ("arrival_s,context_tokens,generated_tokens\n", "no rows"),
        ("arrival_s,context_tokens,generated_tokens\n1.0,2\n", "line 2: 2 fields, expected 3"),
        ("arrival_s,context_tokens,generated_tokens\nnan,2,3\n", "arrival_s is 'nan'"),
        ("arrival_s,context_tokens,generated_tokens\n1,2,3\n0.5,2,3\n", "line 3: arrival_s is '0.5'"),
        ("arrival_s,context_tokens,generated_tokens\n1,-2,3\n", "context_tokens is '-2'"),
    ],
)
def test_a_broken_trace_is_named_by_line_and_field(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint):
        read_requests(write_trace(tmp_path, text))


# --- the clock -------------------------------------------------------------------------------------
class Recorder:
    """Stands for the bus: keeps what was sent, and when."""

    def __init__(self, clock: "Clock") -> None:
        self.sent: list[tuple[float, Message]] = []
        self._clock = clock

    async def send(self, topic: Topic, event: Frozen, *, key: str, event_id: str) -> None:
        self.sent.append((self._clock.now_s, Message(topic, key, event, event_id)))


class Clock:
    """Time passes by sleeping, and once by a pause of 5 s."""

    def __init__(self) -> None:
        self.now_s = 1000.4
        self._paused = False

    def now(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s >= 1003 and not self._paused:
            self._paused, self.now_s = True, self.now_s + 5


async def test_after_a_pause_the_missed_seconds_are_said_in_order() -> None:
    clock = Clock()
    recorder = Recorder(clock)
    plan = FeedPlan(traffic=(CONV,))
    await run_feeds(cast("Bus", recorder), plan, CATALOG, seconds=9, now=clock.now, sleep=clock.sleep)
    at = [cast("TelemetrySample", m.event).at_ms for _, m in recorder.sent]
    assert at == [1_000_000 + 1000 * n for n in range(9)]
    sent_s = [when for when, _ in recorder.sent]
    assert sent_s == pytest.approx([1001, 1002, 1008, 1008, 1008, 1008, 1008, 1008, 1009])
