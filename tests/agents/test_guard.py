"""Guards over the double of vLLM: an instance starts, serves, drains; its agent may die in between."""

import asyncio
import os
import shutil
import signal

import httpx
import pytest

from agents import reference
from agents.engine import End
from agents.guard_keys import port_is_free
from agents.guarded import sweep
from agents.reference import Reference
from agents.revisions import revision_of
from tests.agents.guard_rig import HANG_S, Host, Running, Stream, nothing_left, until

PROMPTS = ((1, 2, 3, 4), (5, 6, 7))


async def ask(endpoint: str | None) -> str:
    async with httpx.AsyncClient(timeout=HANG_S, trust_env=False) as client:
        wish = {"model": "tiny", "prompt": "tell me", "max_tokens": 8}
        answer = (await client.post(f"http://{endpoint}/v1/completions", json=wish)).raise_for_status()
    text: str = answer.json()["choices"][0]["text"]
    return text


# --- starting and draining -----------------------------------------------------------------------------
async def test_one_stage_serves_and_ends_in_order(hosts: list[Host]) -> None:
    running = Running(hosts[:1])
    (up,) = await running.up()
    assert up.verified is False  # no reference, and the variant allows that
    assert up.start_s is not None
    assert up.start_s > 0
    assert up.pull_s is None
    assert await ask(up.endpoint)
    await running.engines[0].drain()
    assert await running.gone() == [None]
    nothing_left(hosts)


async def test_two_stages_answer_as_one(hosts: list[Host]) -> None:
    whole, split = Running(hosts[:1], "whole"), Running(hosts, "split", device=1)
    (one,), (two, other) = await asyncio.gather(whole.up(), split.up())
    assert other.endpoint is None
    assert await ask(one.endpoint) == await ask(two.endpoint)
    await whole.engines[0].stop()
    assert await whole.gone() == [None]
    for engine in split.engines:
        await engine.drain()
    assert await split.gone() == [None, None]
    nothing_left(hosts)


async def test_a_drain_finishes_streams_and_sends_latecomers_elsewhere(hosts: list[Host]) -> None:
    running = Running(hosts)
    head, other = await running.up()
    assert head.endpoint is not None
    stream = Stream(head.endpoint, 60)
    await stream.began()
    await until(lambda: running.engines[0].in_flight == 1)
    await running.engines[1].drain()  # alone it changes nothing: the head drains
    await running.engines[0].drain()
    await asyncio.sleep(0.5)
    async with httpx.AsyncClient(trust_env=False) as client:
        wish = {"model": "tiny", "prompt": "x"}
        late = await client.post(f"http://{head.endpoint}/v1/completions", json=wish)
    assert late.status_code == 503
    assert late.headers["x-coral-elsewhere"] == "1"
    assert await running.gone() == [None, None]
    await stream.reading
    assert stream.finished
    host, _, port = head.endpoint.rpartition(":")
    assert port_is_free(host, int(port))
    assert other.endpoint is None
    nothing_left(hosts)


async def test_a_drain_ends_at_its_deadline(hosts: list[Host]) -> None:
    running = Running(hosts[:1])
    running.instance = running.instance.model_copy(update={"drain_deadline_ms": 1_000})
    (up,) = await running.up()
    assert up.endpoint is not None
    stream = Stream(up.endpoint, 100_000)
    await stream.began()
    await running.engines[0].drain()
    assert await running.gone() == [None]
    await asyncio.wait_for(stream.reading, HANG_S)
    assert stream.failed
    nothing_left(hosts)


async def test_a_stop_cuts_with_an_error(hosts: list[Host]) -> None:
    running = Running(hosts[:1])
    (up,) = await running.up()
    assert up.endpoint is not None
    stream = Stream(up.endpoint, 100_000)
    await stream.began()
    await running.engines[0].stop()
    assert await running.gone() == [None]
    await asyncio.wait_for(stream.reading, HANG_S)
    assert stream.failed
    nothing_left(hosts)


async def test_a_cancelled_start_leaves_nothing(hosts: list[Host], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_DOUBLE_START_S", "600")
    running = Running(hosts)
    await running.start()
    await until(lambda: "starts vLLM" in str(running.engines[0].progress))
    await running.engines[0].drain()
    head, other = await running.gone()
    assert head is None
    assert other == "the head: stopped by its agent"
    nothing_left(hosts)


# --- the reference check -------------------------------------------------------------------------------
async def test_answers_are_checked_against_the_reference(hosts: list[Host]) -> None:
    running = Running(hosts[:1])
    (up,) = await running.up()
    answers = await reference.ask(f"http://{up.endpoint}", "tiny", PROMPTS, timeout_s=HANG_S)
    await running.engines[0].stop()
    await running.gone()
    kept = Reference(
        revision=revision_of(hosts[0].model, hosts[0].guards.weights.cache),
        precision="auto",
        engine="double",
        prompts=PROMPTS,
        answers=tuple(tuple(answer) for answer in answers),
        tolerance=0.01,
        calibration="none",
    )
    reference.file_of(hosts[0].model, "auto").write_text(kept.model_dump_json())
    right = Running(hosts[:1], "right")
    assert [each.verified for each in await right.up()] == [True]
    await right.engines[0].stop()
    await right.gone()
    wrong = tuple((answer[0] - 1.0, *answer[1:]) for answer in kept.answers)
    reference.file_of(hosts[0].model, "auto").write_text(
        kept.model_copy(update={"answers": wrong}).model_dump_json()
    )
    refused = Running(hosts[:1], "wrong")
    await refused.start()
    (reason,) = await refused.gone()
    assert reason is not None
    assert reason.startswith("log-probabilities are 1 off the reference")
    nothing_left(hosts)


# --- the agent -----------------------------------------------------------------------------------------
async def test_the_next_agent_adopts_and_no_stream_is_cut(hosts: list[Host]) -> None:
    running = Running(hosts)
    (head, _) = await running.up()
    assert head.endpoint is not None
    stream = Stream(head.endpoint, 100)
    await stream.began()
    guards = [running.guard(0), running.guard(1)]
    running.engines = [host.engine() for host in hosts]
    for stage, engine in enumerate(running.engines):
        assert await engine.adopt(running.key(stage))
    assert await asyncio.wait_for(running.engines[0].ready(), HANG_S) == head
    assert [running.guard(0), running.guard(1)] == guards
    await running.engines[0].drain()
    assert await running.gone() == [None, None]
    await stream.reading
    assert stream.finished
    nothing_left(hosts)


async def test_an_end_that_no_agent_saw_is_told_to_the_next(hosts: list[Host]) -> None:
    running = Running(hosts[:1])
    await running.up()
    os.kill(running.main(0), signal.SIGKILL)
    await running.gone()
    following = hosts[0].engine()
    assert await following.adopt(running.key(0))
    assert await asyncio.wait_for(following.gone(), HANG_S) == End("vLLM was killed by SIGKILL")


async def test_there_is_nothing_to_adopt_without_a_spec(hosts: list[Host]) -> None:
    assert not await hosts[0].engine().adopt(Running(hosts).key(0))


async def test_a_guard_of_another_spec_is_ended_and_not_adopted(hosts: list[Host]) -> None:
    running = Running(hosts[:1])
    await running.up()
    spec = running.folder(0).path / "spec.json"
    spec.write_text(spec.read_text() + " ")
    assert not await hosts[0].engine().adopt(running.key(0))
    nothing_left(hosts)


async def test_a_sweep_ends_all_but_what_is_kept(hosts: list[Host]) -> None:
    kept, stray = Running(hosts[:1], "kept"), Running(hosts[:1], "stray", device=1)
    await asyncio.gather(kept.up(), stray.up())
    await sweep(hosts[0].guards.folder, {kept.key(0)})
    assert {process.environ()["CORAL_RANK"] for process in hosts[0].living()} == {kept.folder(0).tag}
    (reason,) = await stray.gone()
    assert reason is not None
    assert reason.startswith("its guard died")
    await kept.engines[0].stop()
    await kept.gone()
    nothing_left(hosts)


async def test_a_guard_whose_folder_was_removed_ends(hosts: list[Host]) -> None:
    """No agent will ever order or adopt it; the next one would give its devices away."""
    running = Running(hosts)
    await running.up()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()  # no agent lives
    shutil.rmtree(running.folder(1).path)
    await until(lambda: not hosts[1].living())
    await until(lambda: not hosts[0].living())  # and the head ends with it, knowing why
    status = running.folder(0).read_status()
    assert status is not None
    assert status.reason == "stage 1: its folder was removed"
    nothing_left(hosts)
