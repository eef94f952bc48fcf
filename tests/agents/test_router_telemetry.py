"""From counts to samples, and what happens to samples while Kafka is away. No clock, no Kafka."""

import asyncio
from typing import Any

import pytest
from aiokafka.errors import KafkaError

from agents.router_stream import Usage
from agents.router_telemetry import KEPT_MS, LONGEST_MS, Counting, Outbox, next_second_s
from schemas.telemetry import TelemetrySample

CHAT = ("m", "chat")
BATCH = ("m", "batch")


def sample(at_ms: int) -> TelemetrySample:
    return TelemetrySample(source="r", model="m", slo_class="chat", at_ms=at_ms, offered=0)


class FakeBus:
    """Sends, or fails."""

    def __init__(self) -> None:
        self.sent: list[TelemetrySample] = []
        self.broken = False

    async def send(self, _topic: object, event: Any, *, key: str, event_id: str) -> None:
        await asyncio.sleep(0)
        if self.broken:
            raise KafkaError
        assert (key, event_id) == ("m", event.id)
        self.sent.append(event)


def test_a_second_is_told_and_begun_anew() -> None:
    counting = Counting("r", 400)
    tally = counting.of("acme", CHAT)
    tally.offered = 2
    tally.finish(Usage(10, 4, 6), 20.0, {"ttft_p95_100ms": True, "tpot_p95_10ms": False})
    _, samples = counting.close(1000, [CHAT, BATCH])
    assert [(s.tenant, s.slo_class, s.at_ms, s.interval_ms) for s in samples] == [
        ("acme", "chat", 400, 600),
        ("default", "batch", 400, 600),
    ]
    told = samples[0]
    assert (told.offered, told.finished, told.input_tokens) == (2, 1, 10)
    assert (told.cached_input_tokens, told.output_tokens, told.tpot_ms.count) == (4, 6, 1)
    assert [(a.objective, a.met, a.judged) for a in told.attained] == [
        ("tpot_p95_10ms", 0, 1),
        ("ttft_p95_100ms", 1, 1),
    ]
    _, again = counting.close(2000, [CHAT])
    assert [(s.tenant, s.at_ms, s.offered) for s in again] == [("default", 1000, 0)]


def test_a_clock_that_goes_back_tells_nothing_and_loses_nothing() -> None:
    counting = Counting("r", 5000)
    counting.of("default", CHAT).offered += 1
    assert counting.close(4000, [CHAT]) == ({}, [])
    assert counting.close(6000, [CHAT])[1][0].offered == 1


def test_after_a_long_stop_the_time_before_is_missing() -> None:
    counting = Counting("r", 0)
    (told,) = counting.close(60_000, [CHAT])[1]
    assert (told.at_ms, told.interval_ms) == (60_000 - LONGEST_MS, LONGEST_MS)


def test_seconds_end_on_whole_ones() -> None:
    assert next_second_s(10.25) == 0.75
    assert next_second_s(11.0) == 1.0


async def test_what_fails_is_sent_again_in_order() -> None:
    outbox, bus = Outbox(), FakeBus()
    outbox.put([sample(1000), sample(2000)], 2000)
    bus.broken = True
    with pytest.raises(KafkaError):
        await outbox.flush(bus)  # type: ignore[arg-type]
    outbox.put([sample(3000)], 3000)
    bus.broken = False
    await outbox.flush(bus)  # type: ignore[arg-type]
    assert [s.at_ms for s in bus.sent] == [1000, 2000, 3000]
    await asyncio.wait_for(outbox.emptied(), 1.0)


async def test_what_is_too_old_is_dropped_and_counted() -> None:
    outbox, bus = Outbox(), FakeBus()
    outbox.put([sample(1000), sample(2000)], 2000)
    outbox.put([sample(1500 + KEPT_MS)], 1500 + KEPT_MS)
    assert (outbox.dropped, len(outbox)) == (1, 2)
    await outbox.flush(bus)  # type: ignore[arg-type]
    assert [s.at_ms for s in bus.sent] == [2000, 1500 + KEPT_MS]
