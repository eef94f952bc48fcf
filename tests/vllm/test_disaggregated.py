"""Prefill and decode apart, on real vLLM with NIXL, under real node agents and through the router.

Both instances have one node: NIXL hands nothing over between pipelines. A decode instance that is asked
directly computes the prompt itself, which is the answer that the two together must come to.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from agents.proxy import new_runner
from agents.router_door import RouterDoor
from agents.vllm import VllmNode
from agents.vllm_metrics import Differences, Reading, read
from schemas.plans import Instance
from schemas.problems import Template
from schemas.settings import NodeSettings, RouterSettings
from tests.agents.making import plan
from tests.agents.shapes import shaped
from tests.vllm.rig import HANG_S, Fleet

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.kafka,
    pytest.mark.timeout(1800),
    pytest.mark.asyncio(loop_scope="module"),
]

PREFILL, PREFILL_TEMPLATE = shaped([4], [("c1", (0,))], phase="prefill")
DECODE, DECODE_TEMPLATE = shaped([4], [("c2", (0,))], phase="decode")
TEXT = "The tide comes in, and what was promised is nothing but a line of foam. " * 4
"""Several of vLLM's blocks: less than one is not handed over."""
RUNNING = "vllm:num_requests_running"
SOON_S = 3.0
"""Three times the second in which a disconnect is to reach the engine."""


class Apart:
    """The router at `url`, and the doors of both instances."""

    def __init__(self, url: str, prefill: str, decode: str) -> None:
        self.url, self.prefill, self.decode = url, prefill, decode
        self.client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HANG_S))

    async def complete(self, base: str, **fields: Any) -> dict[str, Any]:
        ask = {"model": "tiny", "prompt": TEXT, "max_tokens": 24, "temperature": 0, "logprobs": 1, **fields}
        async with self.client.post(f"{base}/v1/completions", json=ask) as answer:
            assert answer.status == 200, await answer.text()
            told: dict[str, Any] = await answer.json()
            return told

    async def reading(self, base: str) -> Reading:
        async with self.client.get(f"{base}/metrics") as answer:
            return read(await answer.text())["tiny"]

    async def counted(self, base: str, name: str) -> float:
        """A counter of one of the engines."""
        async with self.client.get(f"{base}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def apart(
    kafka: str, cpu_node: VllmNode, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Apart]:
    node = NodeSettings(
        engine="vllm",
        platform="cpu",
        vllm=cpu_node.command,
        models={"tiny": tiny_model},
        kv_cache_bytes=cpu_node.kv_cache_bytes,
        stuck_after_s=cpu_node.stuck_after_s,
    )
    instances = [PREFILL.model_copy(update={"id": "prefill"}), DECODE.model_copy(update={"id": "decode"})]
    templates = (PREFILL_TEMPLATE, DECODE_TEMPLATE)
    state = tmp_path_factory.mktemp("apart")
    async with Fleet(kafka, f"apart{os.getpid()}", state, node).opened() as fleet:
        began = time.monotonic()
        await fleet.wish(*instances, of=templates)
        heads = [await fleet.ready(instance) for instance in instances]
        print(f"\nboth are up after {time.monotonic() - began:.0f} s")
        doors = [head.endpoint for head in heads]
        serving = [
            instance.model_copy(update={"role": "serving", "endpoint": door})
            for instance, door in zip(instances, doors, strict=True)
        ]
        runner, url = await routed(serving, templates)
        made = Apart(url, f"http://{doors[0]}", f"http://{doors[1]}")
        yield made
        await made.client.close()
        await runner.cleanup()


async def routed(instances: list[Instance], templates: tuple[Template, ...]) -> tuple[web.AppRunner, str]:
    """A router that has these in its plan."""
    door = RouterDoor(RouterSettings(), "r1")
    door.take(plan(1, *instances, templates=templates))
    runner = new_runner(door.app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def test_the_two_answer_as_one_does_and_the_prompt_is_computed_once(apart: Apart) -> None:
    before = await apart.counted(apart.prefill, "vllm:prompt_tokens_total")
    told = await apart.complete(apart.url)
    prompted = await apart.counted(apart.prefill, "vllm:prompt_tokens_total") - before
    assert prompted == told["usage"]["prompt_tokens"], "the prompt went to the prefill instance"
    handed = await apart.counted(apart.decode, "vllm:external_prefix_cache_hits_total")
    assert handed > 0, "and its KV cache from there to the decode instance"
    whole = await apart.complete(apart.decode, prompt=TEXT)
    assert told["choices"][0]["text"] == whole["choices"][0]["text"]
    assert told["choices"][0]["logprobs"]["tokens"] == whole["choices"][0]["logprobs"]["tokens"]
    assert told["usage"]["completion_tokens"] == 24
    print(f"\n{prompted:.0f} prompt tokens computed once, {handed:.0f} of them handed over")


async def test_streams_and_chats_go_the_same_way(apart: Apart) -> None:
    ask = {
        "model": "tiny",
        "messages": [{"role": "user", "content": TEXT}],
        "max_tokens": 16,
        "temperature": 0,
        "stream": True,
    }
    said = []
    for base in (apart.url, apart.decode):
        async with apart.client.post(f"{base}/v1/chat/completions", json=ask) as answer:
            assert answer.status == 200, await answer.text()
            body = await answer.read()
        assert body.endswith(b"data: [DONE]\n\n")
        said.append(_joined(body))
    assert said[0] == said[1]
    assert len(said[0][0]) > 8
    assert said[0][1] == "length"


def _joined(body: bytes) -> tuple[str, str]:
    """A chat's text and why it ended: how many tokens come in one event is a matter of time."""
    events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if b'"choices"' in event]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, choices[-1]["finish_reason"]


async def test_a_client_that_goes_away_ends_its_request_at_the_engine(apart: Apart) -> None:
    """Through the router and the door of the instance."""
    ask = {"model": "tiny", "prompt": TEXT, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    async with apart.client.post(f"{apart.url}/v1/completions", json=ask) as answer:
        await answer.content.readany()
        assert await apart.counted(apart.decode, RUNNING) == 1
    left = time.monotonic()
    async with asyncio.timeout(HANG_S):
        while await apart.counted(apart.decode, RUNNING):  # noqa: ASYNC110  vLLM tells nobody
            await asyncio.sleep(0.05)
    took_s = time.monotonic() - left
    print(f"\nno request runs {took_s:.2f} s after its client left")
    assert took_s < SOON_S


async def test_metrics_tell_a_scraper_what_happened(apart: Apart) -> None:
    between = Differences()
    between.to(await apart.reading(apart.decode))
    told = await apart.complete(apart.decode, prompt=f"anew: {TEXT}")
    await asyncio.sleep(1.0)  # vLLM counts a request a moment after its answer
    seen = between.to(await apart.reading(apart.decode))
    assert seen is not None
    assert (seen["offered"], seen["finished"]) == (1, 1)
    assert seen["input_tokens"] == told["usage"]["prompt_tokens"]
    assert seen["output_tokens"] == told["usage"]["completion_tokens"]
    assert seen["ttft_ms"].count == seen["tpot_ms"].count == 1
