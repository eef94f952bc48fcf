"""Node agents are replaced while their engines serve: `coral node` over guards and the double of vLLM."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from agents import processes
from agents.guard_files import TAG
from agents.vllm_double import write_command
from schemas.events import Heartbeat
from schemas.plans import Instance, Plan
from tests.agents.guard_rig import Stream
from tests.agents.making import POOL, instance, plan, rank, template
from tests.kafka.node_rig import HANG_S, World, opened

pytestmark = pytest.mark.kafka

TOKENS = 1_500
"""Of an answer that takes longer than two agents take to start."""
NODES = {"n1": "c1", "n2": "c2"}
"""Node -> its claim in the plans of `tests.agents.making`."""


class Fleet:
    """Two nodes on this machine, and one instance whose two stages lie on them."""

    def __init__(self, world: World, path: Path) -> None:
        self.world = world
        self.path = path
        self.agents: dict[str, asyncio.subprocess.Process] = {}
        self.first: dict[str, Heartbeat] = {}
        self.template = template(2).model_copy(update={"unverified": "allow"})
        (path / "model").mkdir()
        (path / "model" / "config.json").write_text("{}")
        self.command = write_command(path / "vllm")

    async def start(self, node: str) -> None:
        """An agent, the first or the next."""
        settings, pool = self.world.settings, POOL
        place = ("--cloud", pool.cloud, "--region", pool.region, "--configuration", "1xL4")
        self.agents[node] = await self.world.spawn(
            *(sys.executable, "-m", "streams.entry", "node", "--name", node, *place),
            CORAL_KAFKA__BOOTSTRAP_SERVERS=settings.kafka.bootstrap_servers,
            CORAL_TOPIC_PREFIX=settings.topic_prefix,
            CORAL_STATE_DIR=str(self.path),
            CORAL_NODE__ENGINE="vllm",
            CORAL_NODE__VLLM=str(self.command),
            CORAL_NODE__PLATFORM="cpu",
            CORAL_NODE__KV_CACHE_BYTES="1000000",
            CORAL_NODE__MODELS=json.dumps({"tiny": str(self.path / "model")}),
            VLLM_DOUBLE_TOKEN_S="0.02",
        )

    async def register(self) -> None:
        for node in NODES:
            await self.start(node)
            self.first[node] = await self.world.hear(lambda _: True, node)

    def plan(self, sequence: int, *instances: Instance) -> Plan:
        wish = plan(sequence, *instances, templates=(self.template,))
        claims = tuple(
            claim.model_copy(update={"contact": self.first[claim.node or ""].contact})
            for claim in wish.claims
        )
        return wish.model_copy(update={"claims": claims, "templates": (self.template,)})

    def instance(self) -> Instance:
        return instance("i1", rank("c1"), rank("c2"), of=self.template)

    async def serve(self) -> str:
        """Have the instance brought up; its door."""
        await self.register()
        await self.world.say(self.plan(1, self.instance()))
        await self.world.stage("ready", "n2")
        head = await self.world.stage("ready", "n1")
        assert head.endpoint is not None
        return head.endpoint

    def guards(self) -> list[psutil.Process]:
        found = processes.tagged(TAG, lambda tag: tag.startswith(f"{self.path.resolve()}/"))
        return [process for process in found if "agents.guard" in process.cmdline()]

    def end_all(self) -> None:
        assert processes.end(TAG, lambda tag: tag.startswith(f"{self.path.resolve()}/"))


@pytest.fixture
async def fleet(kafka: str, topic_prefix: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with opened(World(kafka, topic_prefix)) as world:
        made = Fleet(world, tmp_path)
        yield made
        await world.close()
        made.end_all()


async def replace_agents(fleet: Fleet, how: signal.Signals) -> None:
    for node in NODES:
        fleet.agents[node].send_signal(how)
    for node in NODES:
        await asyncio.wait_for(fleet.agents[node].wait(), HANG_S)
        await fleet.start(node)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_an_agents_restart_is_no_outage(fleet: Fleet, how: signal.Signals) -> None:
    """SIGKILL is a crash, SIGTERM an upgrade: either way no byte is lost and nothing is started again."""
    door = await fleet.serve()
    guards = {process.pid for process in fleet.guards()}
    assert len(guards) == 2
    stream = Stream(door, TOKENS)
    await stream.began()
    before, began_s = len(fleet.world.heard), time.monotonic()
    await replace_agents(fleet, how)
    for node in NODES:
        await fleet.world.hear(lambda beat: beat.plan is not None, node)
    print(f"{how.name}: both nodes reported again {time.monotonic() - began_s:.1f} s after their agents' end")
    assert not stream.reading.done(), "the stream was open all the time"
    since = fleet.world.heard[before:]
    assert not any(beat.leaving for beat in since)
    assert {(s.instance, s.attempt, s.state) for beat in since for s in beat.stages} == {("i1", 1, "ready")}
    assert {s.endpoint for beat in since for s in beat.stages if s.stage == 0} == {door}
    assert {beat.boot for beat in since} == {fleet.first["n1"].boot}
    assert {beat.contact for beat in since if beat.node == "n1"} == {fleet.first["n1"].contact}
    await asyncio.wait_for(stream.reading, HANG_S)
    assert stream.finished
    assert {process.pid for process in fleet.guards()} == guards
    if how is signal.SIGTERM:
        assert [agent.returncode for agent in fleet.world.processes[:2]] == [0, 0]

    await fleet.world.say(fleet.plan(2))
    for node in NODES:
        await fleet.world.hear(lambda beat: beat.plan == "1-1-2" and not beat.stages, node)
    assert fleet.guards() == []


async def test_what_the_plan_drops_meanwhile_is_drained_by_the_next_agent(fleet: Fleet) -> None:
    door = await fleet.serve()
    stream = Stream(door, TOKENS // 3)
    await stream.began()
    for agent in fleet.agents.values():
        agent.kill()
        await agent.wait()
    await fleet.world.say(fleet.plan(2))
    for node in NODES:
        await fleet.start(node)
    await asyncio.wait_for(stream.reading, HANG_S)
    assert stream.finished, "it was drained, not cut"
    for node in NODES:
        await fleet.world.hear(lambda beat: beat.plan == "1-1-2" and not beat.stages, node)
    assert fleet.guards() == []
