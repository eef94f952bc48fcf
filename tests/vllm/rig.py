"""Two real node agents on this machine, told plans by the test in the controller's place."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import Popen

import psutil
from aiokafka import AIOKafkaConsumer

from agents import processes, watcher
from agents.admin import create_topics
from agents.bus import Bus
from agents.guard_files import TAG, Folder, Status
from agents.guarded import sweep
from agents.ledger import RankKey
from schemas import codec, topics
from schemas.events import Heartbeat, StageReport, StageState
from schemas.plans import Contact, Instance, Plan
from schemas.problems import Template
from schemas.settings import KafkaSettings, NodeSettings, Settings
from tests.agents.making import plan

HANG_S = 600.0
"""No assertion about time: how long a test waits before it calls something hung."""
NODES: Mapping[str, str] = {"c1": "n1", "c2": "n2"}
"""Claim -> node."""
ENDS: tuple[StageState, ...] = ("drained", "failed", "refused")


class Fleet:
    """The agents, what they last said, and the plan that they follow."""

    def __init__(self, servers: str, prefix: str, state_dir: Path, node: NodeSettings) -> None:
        kafka = KafkaSettings(bootstrap_servers=servers)
        self.settings = Settings(topic_prefix=prefix, kafka=kafka, state_dir=state_dir, node=node)
        self.agents: dict[str, Popen[bytes]] = {}
        self.segments: set[str] = set()
        """Files of shared memory that engines were seen to use."""
        self._bus = Bus(kafka, prefix, "test/plans")
        self._said: dict[str, Heartbeat] = {}
        self._contacts: dict[str, Contact] = {}
        self._instances: dict[str, Instance] = {}
        self._templates: dict[str, Template] = {}
        self._sequence = 0

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Fleet"]:
        """Both agents, registered; all gone at the end."""
        await create_topics(self.settings)
        async with self._bus:
            listening = asyncio.create_task(self._listen())
            try:
                for node in NODES.values():
                    self.start_agent(node)
                await self.until(lambda: set(self._said) >= set(NODES.values()))
                contacts = {claim: self._said[node].contact for claim, node in NODES.items()}
                self._contacts = {claim: contact for claim, contact in contacts.items() if contact}
                yield self
            finally:
                listening.cancel()
                for agent in self.agents.values():
                    agent.kill()
                    agent.wait()
                for node in NODES.values():
                    await sweep(self._guards(node), ())

    # --- agents --------------------------------------------------------------------------------------
    def start_agent(self, node: str) -> None:
        """Run the agent of a node: `coral node`."""
        given = self.settings
        environment = {
            "CORAL_TOPIC_PREFIX": given.topic_prefix,
            "CORAL_KAFKA__BOOTSTRAP_SERVERS": given.kafka.bootstrap_servers,
            "CORAL_STATE_DIR": str(given.state_dir),
            "CORAL_NODE": given.node.model_dump_json(exclude_unset=True),
        }
        place = ["--cloud", "local", "--region", "here", "--configuration", "4xL4"]
        with (given.state_dir / f"{node}.log").open("ab") as log:
            self.agents[node] = Popen(
                [sys.executable, "-m", "streams.cli", "node", "--name", node, *place],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
            )

    def kill_agent(self, node: str) -> None:
        """SIGKILL; what it said last is forgotten."""
        self.agents[node].kill()
        self.agents[node].wait()
        self._said.pop(node, None)

    # --- plans and reports ---------------------------------------------------------------------------
    async def wish(self, *instances: Instance, of: tuple[Template, ...] = ()) -> None:
        """Say the next plan: these instances, and those of earlier plans that are not among them."""
        self._templates |= {template.id: template for template in of}
        self._instances |= {instance.id: instance for instance in instances}
        await self._say()

    async def forget(self, instance: Instance) -> None:
        """Say the next plan: without it."""
        del self._instances[instance.id]
        await self._say()

    def report(self, instance: Instance, stage: int) -> StageReport | None:
        """What a stage's agent last said of it."""
        beat = self._said.get(NODES[instance.stages[stage].ranks[0].claim])
        wanted = (instance.id, instance.attempt, stage)
        stages = () if beat is None else beat.stages
        return next((r for r in stages if (r.instance, r.attempt, r.stage) == wanted), None)

    def reports(self, instance: Instance) -> list[StageReport]:
        found = (self.report(instance, stage.index) for stage in instance.stages)
        return [report for report in found if report is not None]

    async def ready(self, instance: Instance) -> StageReport:
        """Wait until all stages are: the head's report. Fails as soon as one has ended."""

        def up() -> bool:
            reports = self.reports(instance)
            ended = [report for report in reports if report.state in ENDS]
            assert not ended, f"{ended}; {self._logs(instance)}"
            return [report.state for report in reports] == ["ready"] * len(instance.stages)

        await self.until(up)
        self.segments |= watcher.segments(process.pid for process in self.living())
        return self.reports(instance)[0]

    async def ended(self, instance: Instance) -> tuple[list[StageReport], float]:
        """Wait until all stages have ended: what is said of them, and the seconds it took."""

        def over() -> bool:
            return [report.state in ENDS for report in self.reports(instance)] == [True] * len(
                instance.stages
            )

        took_s = await self.until(over)
        return self.reports(instance), took_s

    async def until(self, so: Callable[[], bool]) -> float:
        began = time.monotonic()
        while not so():
            assert time.monotonic() - began < HANG_S
            for node, agent in self.agents.items():
                assert agent.poll() in (None, -9), f"agent {node} ended; see {self.settings.state_dir}"
            await asyncio.sleep(0.1)
        return time.monotonic() - began

    async def _say(self) -> None:
        self._sequence += 1
        bare = plan(self._sequence, *self._instances.values(), templates=tuple(self._templates.values()))
        claims = tuple(
            claim.model_copy(update={"contact": self._contacts[claim.id]}) for claim in bare.claims
        )
        wish: Plan = bare.model_copy(update={"claims": claims})
        await self._bus.send(topics.PLANS, wish, event_id=wish.id)

    async def _listen(self) -> None:
        consumer = AIOKafkaConsumer(
            self._bus.name(topics.FLEET),
            bootstrap_servers=self.settings.kafka.bootstrap_servers,
            auto_offset_reset="earliest",
        )
        async with consumer:
            async for record in consumer:
                beat = codec.decode(topics.FLEET, record.value, record.headers)
                assert isinstance(beat, Heartbeat)
                self._said[beat.node] = beat

    # --- processes -----------------------------------------------------------------------------------
    def living(self, instance: Instance | None = None) -> list[psutil.Process]:
        """Guards, engines and all that they forked; of one instance's attempt, or of all."""
        if instance is None:
            return processes.tagged(TAG, self._ours)
        tags = {self.folder(instance, stage.index).tag for stage in instance.stages}
        return processes.tagged(TAG, tags.__contains__)

    def folder(self, instance: Instance, stage: int) -> Folder:
        node = NODES[instance.stages[stage].ranks[0].claim]
        return Folder.of(self._guards(node), RankKey(instance.id, instance.attempt, stage, 0))

    def status(self, instance: Instance, stage: int) -> Status:
        status = self.folder(instance, stage).read_status()
        assert status is not None
        return status

    def titled(self, instance: Instance, stage: int, title: str) -> int:
        """The process of a stage whose title begins so."""
        tag = self.folder(instance, stage).tag
        for process in processes.tagged(TAG, {tag}.__contains__):
            if " ".join(process.cmdline()).startswith(title):
                return process.pid
        raise LookupError(title)

    def nothing_left(self, instance: Instance) -> None:
        """No process of this attempt lives, and no shared memory that was seen while it was up."""
        assert self.living(instance) == []
        used = watcher.segments(process.pid for process in self.living())
        assert [path for path in self.segments - used if Path(path).exists()] == []

    def _guards(self, node: str) -> Path:
        return self.settings.state_dir / "nodes" / node / "guards"

    def _ours(self, tag: str) -> bool:
        return tag.startswith(f"{self.settings.state_dir.resolve()}/")

    def _logs(self, instance: Instance) -> str:
        return ", ".join(str(self.folder(instance, stage.index).engine_log) for stage in instance.stages)
