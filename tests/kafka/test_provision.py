"""The provisioner on real Kafka with real processes: a plan's claims become nodes, and end again."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from agents import local_process
from agents.admin import create_topics
from agents.bus import Bus, read_to_end
from agents.provision_local import LocalCloud, LocalProvisioner, LocalStock
from schemas import codec, topics
from schemas.base import Frozen
from schemas.events import (
    AvailabilityOffered,
    ClaimGranted,
    ClaimRefused,
    ClaimReleased,
    DeadLetter,
    NodeGone,
    Offer,
)
from schemas.plans import Claim, Plan, Target
from schemas.problems import Pool
from schemas.settings import Settings, load_settings
from schemas.topics import Topic

pytestmark = pytest.mark.kafka

POOL = Pool(cloud="gcp", region="us-central1", market="spot")
SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")

PROVISIONER = """
import asyncio, sys
from pathlib import Path
from agents.bus import Bus
from agents.provision_local import LocalCloud, LocalProvisioner
from agents.provision_desk import Pace
from agents.provision_run import run_provisioner
from schemas.settings import load_settings

async def main(bootstrap, prefix, root, cloud, *command):
    settings = load_settings(topic_prefix=prefix, kafka={"bootstrap_servers": bootstrap})
    local = LocalProvisioner(
        LocalCloud.model_validate_json(cloud), command, Path(root) / "cloud", Path(root) / "nodes", "t"
    )
    async with Bus(settings.kafka, prefix, "provision/test") as bus:
        await run_provisioner(bus, [local], pace=Pace(offer_every_ms=1_000))

asyncio.run(main(*sys.argv[1:]))
"""


def cloud(nodes: int) -> LocalCloud:
    stock = LocalStock(pool=POOL, configuration="1xL4", nodes=nodes)
    return LocalCloud(stock=(stock,), levels_from="bamboo", startup_ms=200, notice_ms=300)


@pytest.fixture
async def settings(kafka: str, topic_prefix: str) -> Settings:
    # One partition each, so that a test reads a topic in order.
    one = {"availability": 1}
    made = load_settings(topic_prefix=topic_prefix, kafka={"bootstrap_servers": kafka, "partitions": one})
    await create_topics(made)
    return made


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The folder of the local cloud; whatever it started is ended with the test."""
    yield tmp_path
    assert LocalProvisioner(cloud(0), SLEEPER, tmp_path / "cloud", tmp_path / "nodes", "t").destroy_all()
    assert nodes_of(tmp_path) == {}


@asynccontextmanager
async def provisioning(settings: Settings, root: Path, nodes: int) -> AsyncIterator[None]:
    """A provisioner process, ended by SIGKILL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROVISIONER, settings.kafka.bootstrap_servers, settings.topic_prefix),
        *(str(root), cloud(nodes).model_dump_json(), *SLEEPER),
        start_new_session=True,
    )
    try:
        yield
        assert process.returncode is None, "the provisioner ended by itself"
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def nodes_of(root: Path) -> dict[str, int]:
    """Claim -> process of every node that runs here."""
    found = {}
    for process in psutil.process_iter():
        try:
            tag = process.environ().get(local_process.TAG, "")
            if tag.startswith(str(root)) and os.getsid(process.pid) == process.pid:
                found[tag.rpartition("/")[2]] = process.pid
        except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
            continue
    return found


def plan(sequence: int, *claims: str) -> Plan:
    target = Target(
        id="t1",
        reason="demand",
        cause_offset=1,
        problem="p1",
        inputs="0" * 16,
        method="test",
        usd_per_hour=0.7,
        bound_usd_per_hour=0.7,
        gap=0.0,
    )
    return Plan(
        fleet="t",
        lineage=1,
        epoch=1,
        sequence=sequence,
        at_ms=1,
        target=target,
        claims=tuple(Claim(id=name, configuration="1xL4", pool=POOL, usd_per_hour=0.3) for name in claims),
    )


async def events(bus: Bus, topic: Topic) -> list[Frozen]:
    records = await read_to_end(bus.kafka, bus.name(topic))
    broken = b"coral._Broken"
    return [codec.decode(topic, r.value, r.headers) for r in records if dict(r.headers)["ce_type"] != broken]


async def said(bus: Bus, *kinds: type[Frozen]) -> list[str]:
    """What the log has of these kinds, as `claim` or `claim:reason`, sorted."""
    return sorted(
        f"{event.claim}:{event.reason}" if isinstance(event, NodeGone) else f"{event.claim}"
        for event in await events(bus, topics.CONTROL)
        if isinstance(event, kinds)
        and isinstance(event, ClaimGranted | ClaimRefused | ClaimReleased | NodeGone)
    )


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Others get there; a minute is the guard against a hang."""
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110  nothing here could set an event for it
            await asyncio.sleep(0.2)


async def offered(bus: Bus, source: str) -> list[int]:
    return [
        event.obtainable
        for event in await events(bus, topics.AVAILABILITY)
        if isinstance(event, AvailabilityOffered) and event.offer.source == source
    ]


async def test_claims_become_nodes_and_end_again(settings: Settings, root: Path) -> None:
    async with Bus(settings.kafka, settings.topic_prefix, "test") as bus:

        async def logged(kind: type[Frozen], *expected: str) -> None:
            async def there() -> bool:
                return await said(bus, kind) == sorted(expected)

            await until(there)

        # Four are wanted, three there are: the fourth is refused and leaves no process.
        await bus.send(topics.PLANS, plan(1, "c1", "c2", "c3", "c4"))
        async with provisioning(settings, root, nodes=3):
            await logged(ClaimGranted, "c1", "c2", "c3")
            await logged(ClaimRefused, "c4")
            before = nodes_of(root)
            assert sorted(before) == ["c1", "c2", "c3"]
        # Killed. Its nodes live on.
        assert nodes_of(root) == before

        # The next one adopts them and says so again; the refused claim, too, gets its answer again.
        async with provisioning(settings, root, nodes=3):
            await logged(ClaimGranted, *("c1", "c2", "c3") * 2)
            await logged(ClaimRefused, "c4", "c4")
            assert nodes_of(root) == before

            # Something unreadable goes aside and the listener goes on: the level falls to one, and the two
            # youngest are told, then taken away. It is said until then, as every source repeats itself.
            level = AvailabilityOffered(
                offer=Offer(pool=POOL, configuration="1xL4", source="bamboo"), obtainable=1, at_ms=1
            )

            async def preempted() -> bool:
                await bus.send(topics.AVAILABILITY, _Broken(), key=level.offer.key)
                await bus.send(topics.AVAILABILITY, level, key=level.offer.key)
                return await said(bus, NodeGone) == ["c2:preempted", "c3:preempted"]

            await until(preempted)
            assert nodes_of(root) == {"c1": before["c1"]}
            assert int((root / "nodes" / "local-c3" / "notice").read_text()) > 0
            letters = [e for e in await events(bus, topics.DEADLETTER) if isinstance(e, DeadLetter)]
            assert {letter.reader for letter in letters} == {"provision"}
            assert all("ce_type: 'coral._Broken'" in letter.reason for letter in letters)

            # An older plan changes nothing; a newer one without claims ends all that is left.
            await bus.send(topics.PLANS, plan(1, "c9"))
            await bus.send(topics.PLANS, plan(2))
            await logged(ClaimReleased, "c1")
            assert nodes_of(root) == {}
            assert "c9" not in await said(bus, ClaimGranted, ClaimRefused)

            # What it offers is the level less what it holds: never more, never less than nothing.
            async def offers_one_more() -> bool:
                return (await offered(bus, "local"))[-1] == 1

            await until(offers_one_more)
            assert set(await offered(bus, "local")) <= {0, 1, 2, 3}


async def test_a_node_that_no_plan_claims_is_reaped_after_three_plans(settings: Settings, root: Path) -> None:
    async with Bus(settings.kafka, settings.topic_prefix, "test") as bus:

        async def logged(kind: type[Frozen], *expected: str) -> None:
            async def there() -> bool:
                return await said(bus, kind) == sorted(expected)

            await until(there)

        await bus.send(topics.PLANS, plan(1, "c1"))
        async with provisioning(settings, root, nodes=2):
            await logged(ClaimGranted, "c1")
        # Nobody saw the plan that had it no more. Whoever starts now finds its node, and cannot know.
        for number in (2, 3):
            await bus.send(topics.PLANS, plan(number, "c2"))
        async with provisioning(settings, root, nodes=2):
            await logged(ClaimGranted, "c1", "c2")
            await bus.send(topics.PLANS, plan(4, "c2", "c3"))
            await logged(ClaimRefused, "c3")
            assert sorted(nodes_of(root)) == ["c1", "c2"]
            await bus.send(topics.PLANS, plan(5, "c2"))
            await logged(ClaimReleased, "c1")
            assert sorted(nodes_of(root)) == ["c2"]


class _Broken(Frozen):
    """Nothing that belongs on any topic."""
