"""Door and probe before one real pipeline of two ranks: what passes, what is aborted, what is found out.

The tests share the pipeline; the last one leaves it unusable.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import httpx
import psutil
import pytest

from agents.door import Door
from agents.engine import Progress
from agents.kafka_probe import free_ports
from agents.probe import Probe
from agents.reference import ask, compare, deviation, load
from agents.revisions import revision_of
from agents.vllm import VllmNode, launch
from tests.agents.shapes import specs

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

START_S, HANG_S = 500.0, 120.0
SOON_S = 3.0
"""A client's disconnect reaches vLLM within 1 s; three times that fails."""
STALL_S = 8.0
"""Longer than the 5 s that a check of all ranks would naively be given."""


@dataclass(frozen=True)
class Pipeline:
    base_url: str
    stage_1: int
    """The worker's process."""


@pytest.fixture(scope="module")
def pipeline(
    cpu_node: VllmNode, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    logs = tmp_path_factory.mktemp("pipeline")
    http, master, kv = free_ports(3)
    with contextlib.ExitStack() as held:
        ranks = []
        for number, spec in enumerate(specs([1, 3], [("c1", (0,)), ("c1", (1,))])):
            command = launch(cpu_node, spec, tiny_model, http_port=http, master_port=master, kv_port=kv)
            ranks.append(
                subprocess.Popen(
                    command.argv,
                    env=os.environ | command.environment | {"VLLM_PROCESS_NAME_PREFIX": "VLLM"},
                    stdout=held.enter_context((logs / f"rank-{number}.log").open("wb")),
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
            held.callback(end, ranks[-1])
        began = time.monotonic()
        while not healthy(f"http://127.0.0.1:{http}/health"):
            assert time.monotonic() - began < START_S, f"not healthy; see {logs}"
            assert [rank.poll() for rank in ranks] == [None, None], f"ended; see {logs}"
            time.sleep(0.5)
        below = psutil.Process(ranks[1].pid).children(recursive=True)
        (worker,) = [each.pid for each in below if "Worker" in " ".join(each.cmdline())]
        yield Pipeline(f"http://127.0.0.1:{http}", worker)


def healthy(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, trust_env=False).status_code == httpx.codes.OK
    return False


def end(rank: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(rank.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    rank.kill()
    rank.wait()


@pytest.fixture
async def probe(pipeline: Pipeline) -> AsyncIterator[Probe]:
    async with Probe(pipeline.base_url) as one:
        yield one


@pytest.fixture
async def client(pipeline: Pipeline) -> AsyncIterator[aiohttp.ClientSession]:
    """A client before the door."""
    door = await Door.open("127.0.0.1", pipeline.base_url)
    timeout = aiohttp.ClientTimeout(total=HANG_S)
    async with aiohttp.ClientSession(f"http://{door.endpoint}", timeout=timeout) as session:
        yield session
    await door.close()


def asking(tokens: int, *, stream: bool = True) -> dict[str, object]:
    ask = {"model": "tiny", "prompt": "the tide", "max_tokens": tokens, "temperature": 0, "seed": 1}
    return {**ask, "ignore_eos": True, "stream": stream}


async def now_running(probe: Probe) -> int | None:
    metrics = await probe.metrics()
    return None if metrics is None else metrics.running + metrics.waiting


async def runs(probe: Probe, requests: int) -> float:
    """Wait until so many requests run: how long it took, in seconds."""
    began = time.monotonic()
    async with asyncio.timeout(HANG_S):
        while await now_running(probe) != requests:  # noqa: ASYNC110  vLLM tells nobody
            await asyncio.sleep(0.05)
    return time.monotonic() - began


async def test_it_is_admitted(probe: Probe, tiny_model: Path) -> None:
    """And its answers are the reference's; those of ranks that disagree are not (test_reference.py)."""
    told: list[Progress] = []
    reference = load(tiny_model, revision_of(tiny_model), "auto")

    async def verify(url: str) -> bool:
        answers = await ask(url, "tiny", reference.prompts, timeout_s=HANG_S)
        print(f"\nlog-probabilities {deviation(reference.answers, answers):.3g} off the reference")
        return compare(reference, answers) is None

    assert await asyncio.wait_for(probe.admit(told.append, verify), HANG_S)
    assert {step.phase for step in told} == {"verifying"}
    began = time.monotonic()
    assert await probe.check_ranks(HANG_S)
    print(f"\na check of both ranks took {1e3 * (time.monotonic() - began):.0f} ms")


async def test_only_v1_is_shown(client: aiohttp.ClientSession) -> None:
    async with client.get("/v1/models") as response:
        assert (await response.json())["data"][0]["id"] == "tiny"
    for path in ("/health", "/metrics"):
        async with client.get(path) as response:
            assert response.status == 200
    for path in ("/collective_rpc", "/pause", "/docs", "/tokenize"):
        async with client.post(path, json={"method": "check_health"}) as response:
            assert response.status == 404


async def test_a_stream_comes_token_by_token_and_is_what_vllm_says(
    client: aiohttp.ClientSession, pipeline: Pipeline
) -> None:
    async with client.post("/v1/completions", json=asking(64)) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks = [chunk async for chunk in response.content.iter_any()]
    assert chunks[-1].endswith(b"data: [DONE]\n\n")
    assert len(chunks) > 32  # not gathered on the way, but for a few that came at once
    async with (
        aiohttp.ClientSession(pipeline.base_url) as direct,
        direct.post("/v1/completions", json=asking(64)) as response,
    ):
        said = await response.read()
    assert text(b"".join(chunks)) == text(said)


def text(stream: bytes) -> tuple[str, str]:
    """What was said, and why it ended. A busy vLLM puts several tokens into an event: which ones differs."""
    said, ended = "", ""
    for event in stream.removesuffix(b"data: [DONE]\n\n").split(b"\n\n")[:-1]:
        (choice,) = json.loads(event.removeprefix(b"data: "))["choices"]
        said, ended = said + choice["text"], choice["finish_reason"] or ended
    return said, ended


@pytest.mark.parametrize("stream", [True, False])
async def test_a_clients_disconnect_aborts_its_request(
    client: aiohttp.ClientSession, probe: Probe, stream: bool
) -> None:
    async def ask() -> None:
        async with client.post("/v1/completions", json=asking(8000, stream=stream)) as response:
            await response.read()

    asked = asyncio.create_task(ask())
    await runs(probe, 1)
    asked.cancel()
    took_s = await runs(probe, 0)
    print(f"\nno request runs {took_s:.2f} s after its client left")
    assert took_s < SOON_S


async def test_a_rank_that_stands_still_for_a_while_is_not_harmed_by_being_watched(
    client: aiohttp.ClientSession, probe: Probe, pipeline: Pipeline
) -> None:
    """A check whose time is up before the ranks answer would leave its answers to the next step."""
    watching = asyncio.create_task(probe.stuck(60.0))
    os.kill(pipeline.stage_1, signal.SIGSTOP)
    try:
        await asyncio.sleep(STALL_S)
    finally:
        os.kill(pipeline.stage_1, signal.SIGCONT)
    for _ in range(2):
        async with client.post("/v1/completions", json=asking(8, stream=False)) as response:
            assert response.status == 200, await response.text()
    assert not watching.done()
    watching.cancel()


async def test_a_rank_that_stands_still_for_good_is_found(probe: Probe, pipeline: Pipeline) -> None:
    os.kill(pipeline.stage_1, signal.SIGSTOP)
    began = time.monotonic()
    reason = await asyncio.wait_for(probe.stuck(10.0), HANG_S)
    print(f"\n{reason}: found after {time.monotonic() - began:.1f} s")
    assert await probe.health() == "well"  # which is why it is not asked alone
