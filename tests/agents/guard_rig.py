"""Hosts for the tests of guards: a state folder, keys, ports and the double of vLLM, all on this machine."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import psutil

from agents import guard_temp, processes, watcher
from agents.engine import EngineSpec, Up
from agents.guard_files import TAG, Folder, Pace, Weights
from agents.guard_keys import KEYS, guard_port, keys
from agents.guarded import GuardedEngine, Guards, end_ranks
from agents.ledger import RankKey
from agents.vllm import VllmNode
from agents.vllm_double import VERSION, write_command
from schemas.plans import Contact, Instance
from schemas.problems import Template
from tests.agents.making import instance, rank, template

HANG_S = 60.0
ADDRESS = "127.0.0.1"
PACE = Pace(quiet_s=0.3)


class Host:
    """What one node has for its guards; `claim` is its name in plans."""

    def __init__(self, path: Path, claim: str, pace: Pace = PACE) -> None:
        self.claim = claim
        self.segments: set[str] = set()
        """Files of shared memory that its engines were seen to use."""
        self.model = path / "model"
        self.model.mkdir(parents=True)
        (self.model / "config.json").write_text("{}")
        pair = keys(path)
        self.contact = Contact(
            address=ADDRESS, guard_port=guard_port(path, 2, ADDRESS), public_key=pair.public
        )
        self.guards = Guards(
            folder=path / "guards",
            node=VllmNode(
                command=write_command(path / "vllm"),
                version=f"vllm-{VERSION}",
                platform="cpu",
                device_memory_gb=24.0,
                stuck_after_s=3.0,
            ),
            weights=Weights(models={"tiny": self.model}, cache=path / "cache"),
            keys=path / KEYS,
            pace=pace,
        )

    def engine(self) -> GuardedEngine:
        """Not started; the next agent's, if called again."""
        return GuardedEngine(self.guards)

    def folder(self, key: RankKey) -> Folder:
        return Folder.of(self.guards.folder, key)

    def living(self) -> list[psutil.Process]:
        """All processes of all ranks here, guards included."""
        return processes.tagged(TAG, self._ours)

    def memory(self) -> list[str]:
        """Files of its engines' shared memory that still are there."""
        return [path for path in self.segments if Path(path).exists()]

    def temps(self) -> list[Path]:
        """Temporary folders of its engines that still are there."""
        return list(guard_temp.left_by(self._ours))

    def end_all(self) -> None:
        """For teardown: whatever a test left behind."""
        assert end_ranks(self._ours, self.segments)

    def _ours(self, tag: str) -> bool:
        return tag.startswith(f"{self.guards.folder.resolve()}/")


class Running:
    """One attempt of an instance, a stage a host."""

    def __init__(self, hosts: Sequence[Host], name: str = "i1", *, device: int = 0) -> None:
        self.hosts = hosts
        self.of: Template = template(len(hosts)).model_copy(update={"unverified": "allow"})
        ranks = (rank(claim=host.claim, device=device) for host in hosts)
        self.instance: Instance = instance(name, *ranks, of=self.of)
        self.engines: list[GuardedEngine] = []

    def of_revision(self, revision: str) -> None:
        """Change to a template of these very weights."""
        old = self.of
        shape = (old.model, old.variant, old.vllm_args, old.phase, old.runtime, old.nodes, old.stages)
        name = Template.identity(*shape, revision)
        self.of = old.model_copy(update={"id": name, "revision": revision})
        self.instance = self.instance.model_copy(update={"template_id": name})

    def key(self, stage: int) -> RankKey:
        return RankKey(self.instance.id, self.instance.attempt, stage, 0)

    def folder(self, stage: int) -> Folder:
        return self.hosts[stage].folder(self.key(stage))

    def spec(self, stage: int) -> EngineSpec:
        return EngineSpec(
            instance=self.instance,
            template=self.of,
            key=self.key(stage),
            address=ADDRESS,
            contacts={host.claim: host.contact for host in self.hosts},
        )

    async def start(self) -> None:
        for stage, host in enumerate(self.hosts):
            engine = host.engine()
            await engine.start(self.spec(stage))
            self.engines.append(engine)

    async def up(self) -> list[Up]:
        """Started, and ready everywhere; the head's first."""
        await self.start()
        ups = list(await asyncio.wait_for(asyncio.gather(*(e.ready() for e in self.engines)), HANG_S))
        for host in self.hosts:
            host.segments |= watcher.segments(process.pid for process in host.living())
        return ups

    async def gone(self) -> list[str | None]:
        """Why each rank ended, once all have."""
        ends = await asyncio.wait_for(asyncio.gather(*(e.gone() for e in self.engines)), HANG_S)
        return [end.reason for end in ends]

    def process(self, stage: int, title: str) -> int:
        """The process of a rank whose title begins so."""
        for process in self.hosts[stage].living():
            if " ".join(process.cmdline()).startswith(title):
                return process.pid
        raise LookupError(title)

    def main(self, stage: int) -> int:
        status = self.folder(stage).read_status()
        assert status is not None
        return status.pids[0]

    def guard(self, stage: int) -> int:
        status = self.folder(stage).read_status()
        assert status is not None
        return status.guard.pid


async def until(what: Callable[[], bool], within_s: float = HANG_S) -> float:
    """Wait for it: how long it took, in seconds."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < within_s
        await asyncio.sleep(0.02)
    return time.monotonic() - began


class Stream:
    """A streamed completion that is read in the background."""

    def __init__(self, endpoint: str, max_tokens: int) -> None:
        self.lines: list[str] = []
        self.broken: httpx.HTTPError | None = None
        self._ask = {"model": "tiny", "prompt": "a b c", "max_tokens": max_tokens, "stream": True}
        self._url = f"http://{endpoint}/v1/completions"
        self.reading = asyncio.create_task(self._read())

    @property
    def tokens(self) -> int:
        return sum('"text"' in line for line in self.lines)

    @property
    def finished(self) -> bool:
        """Whether it came to its end: no error, and the end said. (vLLM may put two tokens in one event.)"""
        if self.failed or self.lines[-1:] != ["data: [DONE]"]:
            return False
        last = json.loads(self.lines[-2].removeprefix("data: "))
        return bool(last["choices"][0]["finish_reason"] == "length")

    @property
    def failed(self) -> bool:
        """Whether it was told, or shows, that there is no more to come."""
        return self.broken is not None or any('"error"' in line for line in self.lines)

    async def began(self) -> None:
        await until(lambda: self.tokens > 2 or self.reading.done())

    async def _read(self) -> None:
        try:
            async with (
                httpx.AsyncClient(timeout=HANG_S, trust_env=False) as client,
                client.stream("POST", self._url, json=self._ask) as response,
            ):
                async for line in response.aiter_lines():
                    if line:
                        self.lines.append(line)
        except httpx.HTTPError as error:
            self.broken = error


def nothing_left(hosts: Sequence[Host]) -> None:
    """No process, no shared memory of one that was killed, and no temporary folder."""
    for host in hosts:
        assert host.living() == []
        assert host.memory() == []
        assert host.temps() == []
