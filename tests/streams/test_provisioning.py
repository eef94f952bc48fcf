"""The provisioner process outlives Kafka's absence."""

import asyncio
from typing import Self

import pytest
from aiokafka.errors import KafkaTimeoutError

from agents.bus import Bus
from schemas.settings import Settings
from streams import provisioning


class Silent(Bus):
    """A bus that needs no broker."""

    async def __aenter__(self) -> Self:
        return self


async def test_it_begins_anew_when_kafka_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks fail in groups; only being told to end ends it."""
    failures: list[BaseException] = [
        KafkaTimeoutError(),
        ExceptionGroup("tasks", [KafkaTimeoutError()]),
        asyncio.CancelledError(),
    ]

    async def run(bus: Bus, provisioners: object) -> None:
        raise failures.pop(0)

    monkeypatch.setattr(provisioning, "run_provisioner", run)
    monkeypatch.setattr(provisioning, "Bus", Silent)
    monkeypatch.setattr(provisioning, "RETRY_S", 0.0)
    with pytest.raises(asyncio.CancelledError):
        await provisioning._serve(Settings(), [])
    assert failures == []
