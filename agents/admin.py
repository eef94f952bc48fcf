"""Make the topics, once, and start the log's lineage.

A re-created control log starts again at offset 0, so its records, epochs and plans would look old.
Record 0 of every log therefore names its lineage, one above the greatest seen on the topics that
outlived the log (house.md, law 1).
"""

import asyncio

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code

from agents.bus import Bus, read_to_end, reading
from agents.kafka_client import client_args, reaching
from schemas import codec, topics
from schemas.events import LineageStarted, SnapshotManifest
from schemas.plans import Plan
from schemas.settings import Settings

LEADER_TIMEOUT_S = 30.0


async def create_topics(settings: Settings) -> dict[str, bool]:
    """Create what is missing, wait for leaders, start the lineage of an empty log.

    Returns:
        Topic name -> whether it was created now.

    Raises:
        TimeoutError: a partition has no leader after 30 s.
        aiokafka.errors.KafkaError: the broker refused.
    """
    admin = AIOKafkaAdminClient(**client_args(settings.kafka))
    try:
        async with reaching(settings.kafka):
            await admin.start()
        there = set(await admin.list_topics())
        names = {topic: settings.topic(topic) for topic in topics.TOPICS}
        await _create(admin, settings, [t for t in topics.TOPICS if names[t] not in there])
        await asyncio.wait_for(_leaders(admin, list(names.values())), LEADER_TIMEOUT_S)
    finally:
        await admin.close()
    async with Bus(settings.kafka, settings.topic_prefix, "admin") as bus:
        if await _is_empty(bus):
            await bus.send(topics.CONTROL, LineageStarted(lineage=1 + await _greatest_lineage(bus)))
    return {name: name not in there for name in names.values()}


async def missing_topics(settings: Settings) -> list[str]:
    """Topics of the table that the broker does not have.

    Raises:
        aiokafka.errors.KafkaError: no broker answers, or it refuses.
    """
    admin = AIOKafkaAdminClient(**client_args(settings.kafka))
    try:
        async with reaching(settings.kafka):
            await admin.start()
        there = set(await admin.list_topics())
    finally:
        await admin.close()
    return [name for topic in topics.TOPICS if (name := settings.topic(topic)) not in there]


async def _create(admin: AIOKafkaAdminClient, settings: Settings, missing: list[topics.Topic]) -> None:
    wanted = [
        NewTopic(
            settings.topic(topic),
            settings.partitions(topic),
            settings.kafka.replication_factor,
            topic_configs=_config(settings, topic),
        )
        for topic in missing
    ]
    if not wanted:
        return
    response = await admin.create_topics(wanted)
    for name, code, *_ in response.topic_errors:
        error = for_code(code)
        # Somebody else made it at the same time, from the same table.
        if code and error is not TopicAlreadyExistsError:
            raise error(name)


def _config(settings: Settings, topic: topics.Topic) -> dict[str, str]:
    config = topic.settings()
    if topic.retention_ms == topics.AUDIT_MS:
        config["retention.ms"] = str(settings.audit_ms)
    return config


async def _leaders(admin: AIOKafkaAdminClient, names: list[str]) -> None:
    while True:
        described = await admin.describe_topics(names)
        if all(
            topic["error_code"] == 0 and all(p["leader"] >= 0 for p in topic["partitions"])
            for topic in described
        ):
            return
        await asyncio.sleep(0.1)


async def _is_empty(bus: Bus) -> bool:
    name = bus.name(topics.CONTROL)
    async with reading(bus.kafka, name) as consumer:
        here = TopicPartition(name, 0)
        return bool((await consumer.end_offsets([here]))[here] == 0)


async def _greatest_lineage(bus: Bus) -> int:
    greatest = 0
    for topic in (topics.PLANS, topics.SNAPSHOTS):
        for record in await read_to_end(bus.kafka, bus.name(topic)):
            try:
                event = codec.decode(topic, record.value, record.headers)
            except codec.MessageError:
                continue  # Its reader dead-letters it; here it names no lineage.
            if isinstance(event, Plan | SnapshotManifest):
                greatest = max(greatest, event.lineage)
    return greatest
