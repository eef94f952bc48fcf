"""`coral status` and `coral drain` on real Kafka: what they read, what they write, what they refuse."""

import asyncio
import json
from pathlib import Path

import pytest

from agents.admin import create_topics
from agents.bus import Bus
from schemas import topics
from schemas.events import Heartbeat, Leading, NodeReported, OperatorRequested
from schemas.policy import CorePolicy
from schemas.problems import Pool
from schemas.settings import KafkaSettings, Settings
from streams import log
from tests.e2e.rig import ask

pytestmark = pytest.mark.kafka

NODE = "aws-l4-1"


@pytest.fixture
def settings(kafka: str, topic_prefix: str, tmp_path: Path) -> Settings:
    """A fleet of one leader and one node, by its log alone."""
    given = Settings(
        topic_prefix=topic_prefix, state_dir=tmp_path, kafka=KafkaSettings(bootstrap_servers=kafka)
    )
    asyncio.run(_begin(given))
    return given


async def _begin(settings: Settings) -> None:
    await create_topics(settings)
    leading = Leading(
        token="t",
        fleet="here",
        policy=CorePolicy(served=()),
        library="l",
        version="0",
        history="",
        history_offset=-1,
    )
    report = Heartbeat(
        node=NODE,
        boot="b",
        at_ms=1,
        pool=Pool(cloud="aws", region="us-east-1", market="on-demand"),
        configuration="1xL4",
        devices=1,
        memory_gb=24.0,
    )
    async with Bus(settings.kafka, settings.topic_prefix, "test") as bus:
        await bus.send(topics.CONTROL, leading)
        await bus.send(topics.CONTROL, NodeReported(partition=0, report=report))


def say(settings: Settings, *arguments: str) -> tuple[int, str, str]:
    env = {
        "CORAL_KAFKA__BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers,
        "CORAL_TOPIC_PREFIX": settings.topic_prefix,
    }
    ended = ask(*arguments, env=env)
    return ended.returncode, ended.stdout, ended.stderr


def requests(settings: Settings) -> list[OperatorRequested]:
    async def read() -> list[OperatorRequested]:
        entries = log.read(settings.kafka, settings.topic(topics.CONTROL))
        events = [entry.record().event async for entry in entries]
        return [event for event in events if isinstance(event, OperatorRequested)]

    return asyncio.run(read())


def test_a_drain_is_asked_for_and_taken_back(settings: Settings) -> None:
    code, out, err = say(settings, "drain", NODE)
    assert code == 0, err
    assert out == f"{NODE}: to be emptied\nruns now: nothing\n"
    code, out, err = say(settings, "status", "--json")
    assert code == 0, err
    (node,) = json.loads(out)["nodes"]
    (asked,) = requests(settings)
    assert (asked.kind, asked.node) == ("drain", NODE)
    assert asked.by
    assert (node["condition"], node["drained_by"]) == ("drained", asked.by)

    assert say(settings, "drain", NODE, "--undo")[0] == 0
    assert [request.kind for request in requests(settings)] == ["drain", "undrain"]
    code, out, err = say(settings, "status")
    assert code == 0, err
    assert "fleet here" in out
    assert "no plan yet" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nosuch",), f"NODE: 'nosuch' is no node of this fleet, expected one of {NODE}"),
        ((NODE, "--undo"), f"--undo: nobody drains '{NODE}', expected a node that is drained"),
    ],
)
def test_a_request_that_means_nothing_is_refused(
    settings: Settings, arguments: tuple[str, ...], said: str
) -> None:
    code, _, err = say(settings, "drain", *arguments)
    assert (code, err) == (2, f"coral: {said}\n")
    assert requests(settings) == []
