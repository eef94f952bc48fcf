"""Routers as processes on a real Kafka, before simulated node agents; the test is the controller."""

import asyncio
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp

from agents.bus import reading
from schemas import codec, topics
from schemas.events import Heartbeat
from schemas.plans import Instance, Plan, Role
from schemas.problems import LatencyTable
from schemas.telemetry import TelemetrySample
from tests.agents.making import instance, plan, rank, template
from tests.kafka.node_rig import HANG_S, World
from tests.kafka.stream_clients import Ended

NODE = """
import sys
from pathlib import Path
from agents.identity import NodeIdentity
from agents.node import Pace, run
from agents.simulated import SimulatedEngine
from schemas.problems import Pool
from schemas.settings import KafkaSettings

servers, prefix, state, name = sys.argv[1:]
pool = Pool(cloud="local", region="here", market="on-demand")
identity = NodeIdentity(name, pool, "4xL4", devices=64, memory_gb=6400.0)
run(KafkaSettings(bootstrap_servers=servers), prefix, identity, Path(state), SimulatedEngine, Pace())
"""
ROUTER = """
import logging, sys
from pathlib import Path
from agents.router import run
from schemas.settings import KafkaSettings, RouterSettings

logging.basicConfig(level=logging.INFO)
servers, prefix, state = sys.argv[1:]
run(KafkaSettings(bootstrap_servers=servers), prefix, Path(state), RouterSettings(port=0), "r1")
"""
TRANSIT_S = 1.0
"""How long a request may take from a client's start to the choice of its instance, on a busy machine."""
CLIENTS = Path(__file__).with_name("stream_clients.py")


def pace(tokens_s: float, batch: int) -> LatencyTable:
    """The timing of an instance that gives each of its streams so many tokens a second."""
    step_ms = 1000.0 / tokens_s
    return LatencyTable(
        batch=(1, batch), step_ms=(step_ms, step_ms), prefill_ms_per_token=0.01, startup_s=0.2
    )


class Routed(World):
    """A world with nodes `n1` and `n2`, and routers."""

    def __init__(self, servers: str, prefix: str, folder: Path, latency: LatencyTable) -> None:
        super().__init__(servers, prefix)
        self.folder = folder
        self.template = template(latency=latency)
        self.endpoints: dict[str, str] = {}
        """Instance -> its door, once it is ready."""
        self.said: list[tuple[float, Plan]] = []
        """Every plan, and when it was said on the monotonic clock."""
        self._sequence = 0
        self._devices = 0

    async def start_node(self, name: str) -> None:
        state = self.folder / name
        await self.spawn(sys.executable, "-c", NODE, *self._where(state), name)

    async def start_router(self, state: str = "router") -> tuple[asyncio.subprocess.Process, str]:
        """A router that serves, and its URL."""
        folder = self.folder / state
        endpoint = folder / "endpoint"
        endpoint.unlink(missing_ok=True)
        process = await self.spawn(sys.executable, "-c", ROUTER, *self._where(folder))
        async with asyncio.timeout(HANG_S):
            while not endpoint.exists():
                assert process.returncode is None, "the router ended"
                await asyncio.sleep(0.05)
        return process, f"http://{endpoint.read_text()}"

    def _where(self, state: Path) -> tuple[str, str, str]:
        return self.settings.kafka.bootstrap_servers, self.settings.topic_prefix, str(state)

    # --- plans -------------------------------------------------------------------------------------
    def make(self, name: str, weight: float, role: Role = "starting") -> Instance:
        """An instance on a device of its own, on one of the nodes."""
        self._devices += 1
        on = rank(claim=("c1", "c2")[self._devices % 2], device=self._devices // 2)
        made = instance(name, on, role=role, of=self.template)
        rated = made.rating.model_copy(update={"throughput": weight})
        return made.model_copy(update={"rating": rated})

    async def publish(self, instances: Sequence[Instance]) -> Plan:
        """Say a plan; those that are ready have their endpoint in it, as the core would."""
        self._sequence += 1
        known = [i.model_copy(update={"endpoint": self.endpoints.get(i.id)}) for i in instances]
        wish = plan(self._sequence, *known, templates=())
        wish = wish.model_copy(update={"templates": (self.template,)})
        self.said.append((time.monotonic(), wish))
        await self.say(wish)
        return wish

    async def ready(self, *names: str) -> None:
        """Hear nodes until these instances are ready."""

        def all_ready(_: Heartbeat) -> bool:
            for beat in self.heard:
                for stage in beat.stages:
                    if stage.endpoint is not None and stage.state == "ready":
                        self.endpoints[stage.instance] = stage.endpoint
            self.heard.clear()
            return set(names) <= self.endpoints.keys()

        await self.hear(all_ready)

    # --- what a router does ------------------------------------------------------------------------
    async def follows(self, url: str, wish: Plan) -> None:
        """Wait until a router has this plan."""
        async with aiohttp.ClientSession() as session, asyncio.timeout(HANG_S):
            while f'id="{wish.id}"' not in await self.metrics(session, url):  # noqa: ASYNC110  not in here
                await asyncio.sleep(0.05)

    async def metrics(self, session: aiohttp.ClientSession, url: str) -> str:
        async with session.get(f"{url}/metrics") as answer:
            return await answer.text()

    async def retries(self, url: str) -> list[str]:
        """What made the router ask another instance, and how often."""
        async with aiohttp.ClientSession() as session:
            lines = (await self.metrics(session, url)).splitlines()
        return [line for line in lines if line.startswith("coral_router_retries_total")]

    async def told(self, enough: Callable[[list[TelemetrySample]], bool]) -> list[TelemetrySample]:
        """The samples on Kafka, from the first on, once there are enough."""
        found: list[TelemetrySample] = []
        async with reading(self.settings.kafka, self.bus.name(topics.TELEMETRY)) as consumer:
            async with asyncio.timeout(HANG_S):
                async for record in consumer:
                    event = codec.decode(topics.TELEMETRY, record.value, record.headers)
                    assert isinstance(event, TelemetrySample)
                    found.append(event)
                    if enough(found):
                        return found
        raise AssertionError("the consumer ended")

    # --- clients -----------------------------------------------------------------------------------
    async def crowd(
        self, url: str, prompts: str, *, streams: int, at_once: int, ramp_s: float, tokens: int
    ) -> asyncio.subprocess.Process:
        """Clients in a process of their own, whose output `ended` reads."""
        numbers = map(str, (streams, at_once, ramp_s, tokens))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(CLIENTS), url, prompts, *numbers), stdout=asyncio.subprocess.PIPE
        )
        self.processes.append(process)
        return process


async def ended(crowd: asyncio.subprocess.Process) -> list[Ended]:
    """What became of each stream, once all have ended."""
    out, _ = await crowd.communicate()
    return [Ended(**json.loads(line)) for line in out.splitlines()]


def shares(said: Sequence[tuple[float, Plan]], streams: Sequence[Ended]) -> list[tuple[float, float, float]]:
    """(weight, streams that instances of this weight got, streams due to them by the plans in force).

    Streams that reached the router when nodes may have heard a newer plan than it had are left out: what
    drained by that could not take its share.
    """
    weights = {i.id: i.rating.throughput for _, plan in said for i in plan.instances}
    in_force = {p.id: [i.id for i in p.instances if i.role == "serving" and i.endpoint] for _, p in said}
    over_s = {
        plan.id: next((s for s, later in said[n + 1 :] if in_force[later.id] != in_force[plan.id]), math.inf)
        for n, (_, plan) in enumerate(said)
    }
    got: Counter[float] = Counter()
    due: dict[float, float] = {}
    for stream in streams:
        if stream.began_s + TRANSIT_S < over_s[stream.plan]:
            got[weights[stream.instance.split("/")[0]]] += 1
            then = [weights[name] for name in in_force[stream.plan]]
            for weight in then:
                due[weight] = due.get(weight, 0.0) + weight / sum(then)
    return [(weight, got[weight], due[weight]) for weight in sorted(due)]
