"""The Docker way, for real: `make test-docker` brings a daemon and an image where there is none."""

import os

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from docker.client import DockerClient

from agents.broker import DEFAULT_IMAGE, start_broker
from agents.kafka_probe import answers, is_free

pytestmark = pytest.mark.docker

IMAGE = os.environ.get("CORAL_KAFKA_IMAGE", DEFAULT_IMAGE)


async def round_trip(bootstrap: str, topic: str, value: bytes) -> bytes | None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()
    limit = 4 * 1024 * 1024
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, max_request_size=limit
    ) as producer:
        await producer.send_and_wait(topic, value)
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=limit
    ) as consumer:
        record: bytes | None = (await consumer.getone()).value
        return record


async def test_a_container_serves_and_is_gone(topic_prefix: str) -> None:
    said: list[str] = []
    # Larger than Kafka's default limit: the settings reached the container.
    value = os.urandom(2 * 1024 * 1024)
    with start_broker(image=IMAGE, say=said.append) as broker:
        assert broker.kind == "docker", said
        assert await round_trip(broker.bootstrap, topic_prefix, value) == value
    assert said == []
    assert not answers(broker.bootstrap)
    assert is_free(int(broker.bootstrap.rpartition(":")[2]))
    assert broker.log_path is not None
    assert "Kafka Server started" in broker.log_path.read_text()


def test_no_container_is_left() -> None:
    client = DockerClient.from_env()
    try:
        assert client.containers.list(all=True, filters={"ancestor": IMAGE}) == []
    finally:
        client.close()


def test_an_image_that_cannot_be_had_is_said_and_passed_over() -> None:
    said: list[str] = []
    with start_broker(image="coral-kafka:no-such-image", say=said.append) as broker:
        assert broker.kind == "local"
    assert len(said) == 1
    assert "image coral-kafka:no-such-image cannot be pulled" in said[0]
