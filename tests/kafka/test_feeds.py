"""All feeds on real Kafka: what they say can be read, at the pace of the clock."""

import time
from collections import Counter

import pytest

from agents.admin import create_topics
from agents.bus import Bus, read_to_end
from agents.feeds import Availability, FeedPlan, Prices, Supply, Traffic, run_feeds
from schemas import codec, topics
from schemas.catalog import load_catalog
from schemas.events import AvailabilityOffered, PriceOffered
from schemas.problems import Pool
from schemas.settings import load_settings
from schemas.telemetry import TelemetrySample

pytestmark = pytest.mark.kafka

SECONDS = 3


async def test_three_seconds_of_everything(kafka: str, topic_prefix: str) -> None:
    # One partition each, so that the test reads a topic in order.
    one = {"telemetry": 1, "prices": 1, "availability": 1}
    settings = load_settings(topic_prefix=topic_prefix, kafka={"bootstrap_servers": kafka, "partitions": one})
    await create_topics(settings)
    catalog = load_catalog()
    spot = Pool(cloud="gcp", region="us-central1", market="spot")
    plan = FeedPlan(
        speedup=30.0,
        traffic=(
            Traffic(source="azure-conv", trace="azure_2023_conv", model="qwen3-32b", slo_class="interactive"),
            Traffic(
                source="azure-code", trace="azure_2023_code", model="gpt-oss-20b", slo_class="interactive"
            ),
        ),
        prices=Prices(),
        availability=Availability(supplies=(Supply(pool=spot, configuration="1xL4", nodes=4),)),
    )
    begin_ms = 1000 * int(time.time())
    async with Bus(settings.kafka, topic_prefix, "feed") as bus:
        await run_feeds(bus, plan, catalog, seconds=SECONDS)
        telemetry, prices, availability = [
            [
                (record.key.decode(), codec.decode(topic, record.value, record.headers))
                for record in await read_to_end(bus.kafka, bus.name(topic))
            ]
            for topic in (topics.TELEMETRY, topics.PRICES, topics.AVAILABILITY)
        ]

    samples = [event for _, event in telemetry if isinstance(event, TelemetrySample)]
    assert Counter(key for key, _ in telemetry) == {"qwen3-32b": SECONDS, "gpt-oss-20b": SECONDS}
    for model in ("qwen3-32b", "gpt-oss-20b"):
        at = [sample.at_ms for sample in samples if sample.model == model]
        assert at == [at[0] + 1000 * n for n in range(SECONDS)]
        assert at[0] >= begin_ms
    assert len({sample.id for sample in samples}) == 2 * SECONDS

    offers = [event for _, event in prices if isinstance(event, PriceOffered)]
    assert [key for key, _ in prices] == [offer.offer.key for offer in offers]
    assert sorted(offer.usd_per_hour for offer in offers) == sorted(p.usd_per_hour for p in catalog.prices)

    levels = [event.obtainable for _, event in availability if isinstance(event, AvailabilityOffered)]
    assert levels == [0, 1, 4]
