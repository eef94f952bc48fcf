"""On and off a topic: what comes back, what is refused and how it is said."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import codec, topics
from schemas.base import MAX_INT
from schemas.events import PriceOffered
from schemas.sketch import ACCURACY, Sketch
from schemas.telemetry import TelemetrySample

SAMPLE = TelemetrySample(
    source="r1", model="m", slo_class="chat", at_ms=5, offered=3, ttft_ms=Sketch.of([1.0, 2.5, 0.0])
)


def sent(event: TelemetrySample = SAMPLE) -> codec.Envelope:
    return codec.encode(event, key="m", event_id=event.id, source="test", time="2026-01-01T00:00:00Z")


def headers(**given: str | None) -> codec.Headers:
    named = codec.header_map(sent().headers) | given
    return [(name, value.encode()) for name, value in named.items() if value is not None]


def test_what_was_sent_comes_back() -> None:
    envelope = sent()
    assert envelope.key == b"m"
    assert codec.decode(topics.TELEMETRY, envelope.value, envelope.headers) == SAMPLE
    assert codec.header_map(envelope.headers)["ce_id"] == "r1/default/m/chat/5"


def test_unknown_fields_of_the_same_major_version_are_ignored() -> None:
    value = json.dumps({**json.loads(sent().value), "invented": 1}).encode()
    later = headers(ce_dataschema="urn:coral:TelemetrySample:1.7")
    assert codec.decode(topics.TELEMETRY, value, later) == SAMPLE


@pytest.mark.parametrize(
    ("value", "given", "said"),
    [
        (b"\xff\xfe", {}, "Invalid JSON"),
        (b"[]", {}, "Input should be an object"),
        (None, {}, "empty, expected a JSON object"),
        (b'{"rate": "abc"}', {}, "offered: Field required"),
        (sent().value, {"ce_type": "coral.Invented"}, "ce_type: 'coral.Invented'"),
        (sent().value, {"ce_type": None}, "ce_type: None"),
        (sent().value, {"ce_dataschema": None}, "ce_dataschema: ''"),
        (sent().value, {"ce_dataschema": "urn:coral:TelemetrySample:2.0"}, "major version 2"),
    ],
)
def test_what_cannot_be_read_is_named(value: bytes | None, given: dict[str, str | None], said: str) -> None:
    with pytest.raises(codec.MessageError, match=said):
        codec.decode(topics.TELEMETRY, value, headers(**given))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1", "1.5", '"3"', str(MAX_INT + 1), "9" * 400])
def test_a_count_is_a_whole_number_that_every_reader_keeps(number: str) -> None:
    value = sent().value.replace(b'"offered":3', f'"offered":{number}'.encode())
    with pytest.raises(codec.MessageError, match="TelemetrySample: "):
        codec.decode(topics.TELEMETRY, value, headers())


@pytest.mark.parametrize("usd", ["0", "-1", "NaN", "1e9"])
def test_a_price_is_possible(usd: str) -> None:
    pool = {"cloud": "gcp", "region": "r", "zone": "*", "market": "spot"}
    offer = {"pool": pool, "configuration": "1xL4", "source": "s"}
    value = json.dumps({"offer": offer, "usd_per_hour": 1.0, "at_ms": 1}).replace("1.0", usd).encode()
    named = headers(ce_type="coral.PriceOffered", ce_dataschema="urn:coral:PriceOffered:1.0")
    with pytest.raises(codec.MessageError, match="usd_per_hour"):
        codec.decode(topics.PRICES, value, named)
    assert "PriceOffered" in {t.__name__ for t in topics.PRICES.types} == {PriceOffered.__name__}


@given(st.lists(st.floats(1e-3, 1e7), min_size=1), st.lists(st.floats(1e-3, 1e7)), st.floats(0, 1))
def test_a_sketch_keeps_quantiles_within_its_accuracy_also_merged(
    some: list[float], more: list[float], q: float
) -> None:
    values = sorted(some + more)
    found = Sketch.of(some).merge(Sketch.of(more)).quantile(q)
    exact = values[int(q * (len(values) - 1))]
    assert found is not None
    assert abs(found - exact) <= ACCURACY * exact * 1.001


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_sketch_refuses_what_is_no_latency(bad: float) -> None:
    with pytest.raises(ValueError, match="expected a finite value"):
        Sketch.of([bad])
