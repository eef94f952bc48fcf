"""Real vLLM under real node agents: a 1-stage and an uneven 2-stage instance, told plans, drained, killed.

Everything is played with the same two agents, and with as few starts of vLLM as can be: a start takes the
better part of a minute. The whole matrix of kills runs with CORAL_VLLM_MATRIX=1 (`make test-vllm`).
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import httpx
import psutil
import pytest
import pytest_asyncio

from agents.guard_keys import port_is_free
from agents.vllm import VllmNode
from schemas.plans import Instance
from schemas.settings import NodeSettings
from tests.agents.guard_rig import Stream
from tests.agents.shapes import shaped
from tests.vllm.rig import HANG_S, Fleet

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.kafka,
    pytest.mark.timeout(1800),
    pytest.mark.asyncio(loop_scope="module"),
]

MATRIX = os.environ.get("CORAL_VLLM_MATRIX") == "1"
PROMPTS = ("The tide comes in", "A stage holds", "nothing that was promised is")
LONG = 2000
"""Tokens of a stream that goes on for as long as a test needs it; a second gives about a hundred."""

WHOLE, WHOLE_TEMPLATE = shaped([4], [("c1", (0,))])
SPLIT, SPLIT_TEMPLATE = shaped([1, 3], [("c1", (1,)), ("c2", (0,))])


class Played:
    """The fleet, and the instances as the newest plan has them."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.whole = WHOLE.model_copy(update={"id": "whole"})
        self.split = SPLIT.model_copy(update={"id": "split"})

    def endpoint(self, instance: Instance) -> str:
        report = self.fleet.report(instance, 0)
        assert report is not None
        assert report.endpoint is not None
        return report.endpoint

    async def stream(self, instance: Instance, tokens: int = LONG) -> Stream:
        """One that has begun."""
        stream = Stream(self.endpoint(instance), tokens)
        await stream.began()
        assert not stream.reading.done()
        return stream


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(
    kafka: str, cpu_node: VllmNode, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Played]:
    """Both instances are up, and their answers checked against the reference."""
    state = tmp_path_factory.mktemp("nodes")
    node = NodeSettings(
        engine="vllm",
        platform="cpu",
        vllm=cpu_node.command,
        models={"tiny": tiny_model},
        kv_cache_bytes=cpu_node.kv_cache_bytes,
        stuck_after_s=cpu_node.stuck_after_s,
    )
    async with Fleet(kafka, f"vllm{os.getpid()}", state, node).opened() as fleet:
        made = Played(fleet)
        began = time.monotonic()
        await fleet.wish(made.whole, made.split, of=(WHOLE_TEMPLATE, SPLIT_TEMPLATE))
        heads = [await fleet.ready(instance) for instance in (made.whole, made.split)]
        print(f"\nboth are up after {time.monotonic() - began:.0f} s")
        assert [head.verified for head in heads] == [True, True]
        yield made


async def greedy(endpoint: str, prompt: str) -> str:
    wish = {"model": "tiny", "prompt": prompt, "max_tokens": 40, "temperature": 0}
    async with httpx.AsyncClient(timeout=HANG_S, trust_env=False) as client:
        answer = (await client.post(f"http://{endpoint}/v1/completions", json=wish)).raise_for_status()
    text: str = answer.json()["choices"][0]["text"]
    return text


async def test_one_stage_and_two_answer_alike(played: Played) -> None:
    for prompt in PROMPTS:
        whole = await greedy(played.endpoint(played.whole), prompt)
        assert whole == await greedy(played.endpoint(played.split), prompt)
        assert whole


async def test_the_death_of_an_agent_cuts_no_stream_and_the_next_one_adopts(played: Played) -> None:
    fleet = played.fleet
    guards = [process.pid for process in fleet.living()]
    stream, endpoint = await played.stream(played.split, 1000), played.endpoint(played.split)
    fleet.kill_agent("n1")
    await asyncio.sleep(2.0)
    fleet.start_agent("n1")
    took_s = await fleet.until(lambda: len(fleet.reports(played.split)) == 2)
    print(f"\nan agent is back and has adopted after {took_s:.1f} s")
    assert played.endpoint(played.split) == endpoint
    assert [report.state for report in fleet.reports(played.split)] == ["ready", "ready"]
    assert [process.pid for process in fleet.living()] == guards
    await asyncio.wait_for(stream.reading, HANG_S)
    assert stream.finished


async def test_a_plan_that_drains_finishes_what_is_in_flight(played: Played) -> None:
    fleet, before = played.fleet, played.whole
    stream, endpoint = await played.stream(before, 600), played.endpoint(before)
    draining = before.model_copy(update={"role": "draining"})
    await fleet.wish(draining)
    await fleet.until(lambda: fleet.status(before, 0).state == "draining")
    async with httpx.AsyncClient(trust_env=False) as client:
        late = await client.post(f"http://{endpoint}/v1/completions", json={"model": "tiny", "prompt": "x"})
    assert (late.status_code, late.headers["x-coral-elsewhere"]) == (503, "1")
    reports, took_s = await fleet.ended(before)
    print(f"\ndrained and gone after {took_s:.1f} s")
    assert [report.state for report in reports] == ["drained"]
    await asyncio.wait_for(stream.reading, HANG_S)
    assert stream.finished
    fleet.nothing_left(before)
    assert port_is_free("127.0.0.1", int(endpoint.rpartition(":")[2]))
    await fleet.forget(before)
    assert await greedy(played.endpoint(played.split), PROMPTS[0])


def _guard(played: Played, stage: int) -> int:
    return played.fleet.status(played.split, stage).guard.pid


def _main(played: Played, stage: int) -> int:
    return played.fleet.status(played.split, stage).pids[0]


def _watcher(played: Played, stage: int) -> int:
    return psutil.Process(_main(played, stage)).ppid()


def _titled(played: Played, stage: int, title: str) -> int:
    return played.fleet.titled(played.split, stage, title)


VICTIMS: Mapping[str, Callable[[Played], tuple[int, ...]]] = {
    "the other stage's worker": lambda played: (_titled(played, 1, "VLLM::Worker"),),
    "the other stage's main process": lambda played: (_main(played, 1),),
    "the other stage's guard": lambda played: (_guard(played, 1),),
    "the head's worker": lambda played: (_titled(played, 0, "VLLM::Worker"),),
    "the head's engine core": lambda played: (_titled(played, 0, "VLLM::EngineCore"),),
    "the head's main process": lambda played: (_main(played, 0),),
    "the head's watcher": lambda played: (_watcher(played, 0),),
    "the head's guard": lambda played: (_guard(played, 0),),
    "the head's guard and watcher": lambda played: (_guard(played, 0), _watcher(played, 0)),
}
ALWAYS = {("the other stage's worker", True), ("the head's guard", True)}
KILLS = [(victim, busy) for victim in VICTIMS for busy in (True, False) if MATRIX or (victim, busy) in ALWAYS]


@pytest.mark.parametrize(("victim", "busy"), KILLS)
async def test_a_kill_ends_the_instance_and_the_plan_brings_a_new_one(
    played: Played, victim: str, busy: bool
) -> None:
    fleet, before = played.fleet, played.split
    stream = await played.stream(before) if busy else None
    began = time.monotonic()
    if stream is not None:
        stream.reading.add_done_callback(
            lambda _: print(f"\nthe stream ended after {time.monotonic() - began:.1f} s")
        )
    for process in VICTIMS[victim](played):
        os.kill(process, signal.SIGKILL)
    reports, ended_s = await fleet.ended(before)
    assert [report.state for report in reports] == ["failed", "failed"]
    fleet.nothing_left(before)
    if stream is not None:
        await asyncio.wait_for(stream.reading, HANG_S)
        assert stream.failed
    played.split = before.model_copy(update={"attempt": before.attempt + 1})
    await fleet.wish(played.split)
    up = await fleet.ready(played.split)
    assert up.verified
    print(
        f"\nSIGKILL to {victim}, {'amid a stream' if busy else 'idle'}: all gone after {ended_s:.1f} s, "
        f"a new instance up {up.start_s:.0f} s after its start; {[report.reason for report in reports]}"
    )
