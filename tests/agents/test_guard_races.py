"""Guards that stand still, together and alone, and orders that cross deaths: every end is told."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.agents.guard_rig import HANG_S, PACE, Host, Running, Stream, nothing_left, until


@contextmanager
def standing_still(*pids: int) -> Iterator[None]:
    """Under SIGSTOP, as in a machine that is starved, paused or moved."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def streaming(running: Running, tokens: int = 100_000) -> Stream:
    head, *_ = await running.up()
    assert head.endpoint is not None
    stream = Stream(head.endpoint, tokens)
    await stream.began()
    return stream


def launched(running: Running, stage: int) -> bool:
    status = running.folder(stage).read_status()
    return status is not None and len(status.pids) > 0


@pytest.mark.parametrize(("stage", "reason"), [(1, "stage 1 was silent"), (0, "the head was silent")])
async def test_a_guard_that_stands_still_ends_the_instance(
    hosts: list[Host], stage: int, reason: str
) -> None:
    """The others do not wait for it, and it ends, too, once it goes on."""
    running = Running(hosts)
    stream = await streaming(running)
    other = running.engines[1 - stage]
    with standing_still(running.guard(stage)):
        end = await asyncio.wait_for(other.gone(), HANG_S)
        assert reason in str(end.reason)
    await running.gone()
    await asyncio.wait_for(stream.reading, HANG_S)
    assert stream.failed
    nothing_left(hosts)


async def test_a_short_stop_of_one_guard_harms_nobody(hosts: list[Host]) -> None:
    running = Running(hosts)
    stream = await streaming(running, 200)
    for stage in (0, 1):
        with standing_still(running.guard(stage)):
            await asyncio.sleep(PACE.silent_after_s / 3)
    await asyncio.wait_for(stream.reading, HANG_S)
    assert stream.finished


async def test_a_long_stop_of_all_guards_harms_nobody(hosts: list[Host]) -> None:
    """Nobody takes for the silence of others the time in which he did not listen himself."""
    running = Running(hosts)
    stream = await streaming(running, 600)
    with standing_still(running.guard(0), running.guard(1)):
        await asyncio.sleep(1.5 * PACE.silent_after_s)
    await asyncio.wait_for(stream.reading, HANG_S)
    assert stream.finished


async def test_a_short_stop_of_a_rank_harms_nobody(hosts: list[Host]) -> None:
    """An idle engine is asked how it is, and its ranks answer late."""
    running = Running(hosts)
    head, _ = await running.up()
    assert head.endpoint is not None
    await asyncio.sleep(1.0)
    with standing_still(running.process(1, "VLLM::Worker")):
        await asyncio.sleep(hosts[0].guards.node.stuck_after_s / 2)
    stream = Stream(head.endpoint, 20)
    await asyncio.wait_for(stream.reading, HANG_S)
    assert stream.finished


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_rank_that_dies_in_a_drain_ends_it_with_an_error(hosts: list[Host], victim: int) -> None:
    running = Running(hosts)
    stream = await streaming(running)
    for engine in running.engines:
        await engine.drain()
    await until(lambda: running.engines[0].in_flight == 1)
    os.kill(running.process(victim, "VLLM::Worker"), signal.SIGKILL)
    reasons = await running.gone()
    assert None not in reasons
    await asyncio.wait_for(stream.reading, HANG_S)
    assert stream.failed
    nothing_left(hosts)


async def test_a_stop_overtakes_a_drain(hosts: list[Host]) -> None:
    running = Running(hosts)
    stream = await streaming(running)
    for engine in running.engines:
        await engine.drain()
    for engine in running.engines:
        await engine.stop()
    await running.gone()
    await asyncio.wait_for(stream.reading, HANG_S)
    assert stream.failed
    nothing_left(hosts)


async def test_a_stop_while_the_other_rank_never_came(hosts: list[Host]) -> None:
    running = Running(hosts)
    head = hosts[0].engine()
    await head.start(running.spec(0))
    await until(lambda: head.progress is not None and "other ranks" in head.progress.text)
    await head.stop()
    assert (await asyncio.wait_for(head.gone(), HANG_S)).reason is None
    nothing_left(hosts)


async def test_a_rank_that_ends_while_all_start_ends_all(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_DOUBLE_START_S", "30")
    running = Running(hosts)
    await running.start()
    await until(lambda: all(launched(running, stage) for stage in (0, 1)))
    os.kill(running.main(1), signal.SIGKILL)
    reasons = await running.gone()
    assert all(reason is not None and "SIGKILL" in reason for reason in reasons)
    nothing_left(hosts)
