"""The monitor of docs/monitor.py, run as whoever finds it there would run it."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agents.admin import create_topics
from agents.bus import Bus
from schemas import codec, topics
from schemas.settings import KafkaSettings, Settings
from tests.agents.making import instance, plan
from tests.e2e.rig import HANG_S, REPO, until, write_raw

pytestmark = pytest.mark.kafka

MONITOR = REPO / "docs" / "monitor.py"
MOST_LINES = 20


def test_it_is_short_and_knows_nothing_of_coral() -> None:
    lines = [line.strip() for line in MONITOR.read_text().splitlines()]
    code = [line for line in lines if line and not line.startswith(("#", '"""'))]
    assert len(code) <= MOST_LINES
    imported = {line.split()[1] for line in code if line.startswith(("import ", "from "))}
    assert imported == {"asyncio", "json", "sys", "aiokafka"}


async def test_it_follows_the_newest_plan(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    settings = Settings(topic_prefix=topic_prefix, kafka=KafkaSettings(bootstrap_servers=kafka))
    await create_topics(settings)
    name = settings.topic(topics.PLANS)
    headers = codec.encode(
        plan(1), key=None, event_id="x", source="test", time="2026-01-01T00:00:00Z"
    ).headers
    later_major = [(k, b"urn:coral:Plan:2.0" if k == "ce_dataschema" else v) for k, v in headers]
    async with Bus(settings.kafka, topic_prefix, "test/plans") as bus:
        await bus.send(topics.PLANS, plan(1))
        await bus.send(topics.PLANS, plan(3, instance("i1", role="starting")))
        with monitor(kafka, name, tmp_path) as told:
            await asyncio.to_thread(until, lambda: len(told()) >= 2, "the retained plans")
            await bus.send(topics.PLANS, plan(2))  # older than the one it has
            for value, of in ((b"no json", headers), (b"{}", headers), (None, headers), (b"{}", [])):
                await write_raw(settings, name, value, of, b"k")
            await write_raw(settings, name, plan(9).model_dump_json().encode(), later_major)
            await bus.send(topics.PLANS, plan(3, instance("i1", role="starting")))  # said again
            await bus.send(topics.PLANS, plan(4, instance("i1")))
            await bus.send(topics.PLANS, plan(1, epoch=2))  # the next leader begins at 1
            await asyncio.to_thread(until, lambda: len(told()) >= 4, "the plans sent since")
            assert told() == [
                "1 1 1 test",
                "1 1 3 test starting",
                "1 1 4 test serving",
                "1 2 1 test",
            ]
    assert (tmp_path / "stderr").read_text().count("is no plan") == 4


@contextmanager
def monitor(servers: str, topic: str, folder: Path) -> Iterator[Callable[[], list[str]]]:
    """The monitor as a process; gives a function that returns the lines it has printed."""
    with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, str(MONITOR), servers, topic],
            stdout=out,
            stderr=err,
            cwd=folder,  # nothing of the checkout on its path
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            start_new_session=True,
        )
    try:
        yield lambda: (folder / "stdout").read_text().splitlines()
        assert process.poll() is None, (folder / "stderr").read_text()
    finally:
        process.kill()
        process.wait(HANG_S)
