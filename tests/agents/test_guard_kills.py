"""Whatever is killed, however: requests get an end, every rank ends and says why, and nothing stays behind.

The double of vLLM hangs where vLLM hangs. Each test prints what it measured.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping

import psutil
import pytest

from agents import guarded
from tests.agents.guard_rig import HANG_S, Host, Running, Stream, nothing_left, until


def watcher(running: Running, stage: int) -> int:
    return psutil.Process(running.main(stage)).ppid()


# The rest of the matrix is played on real vLLM (tests/vllm/test_instances.py).
VICTIMS: Mapping[str, Callable[[Running], int]] = {
    "the head's guard": lambda running: running.guard(0),
    "the other guard": lambda running: running.guard(1),
    "the head's main process": lambda running: running.main(0),
    "the head's engine core": lambda running: running.process(0, "VLLM::EngineCore"),
    "the other worker": lambda running: running.process(1, "VLLM::Worker"),
    "the other watcher": lambda running: watcher(running, 1),
}
IDLE = ("the head's main process", "the other worker")


async def _ends(running: Running, victim: str, number: signal.Signals) -> list[str]:
    """Send a signal, wait for the end of every rank and of all that it had: the reasons."""
    began = time.monotonic()
    os.kill(VICTIMS[victim](running), number)
    reasons = await running.gone()
    print(f"\n{number.name} to {victim}: all gone after {time.monotonic() - began:.1f} s: {reasons}")
    nothing_left(running.hosts)
    assert None not in reasons
    return [reason for reason in reasons if reason is not None]


@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_kill_amid_a_stream_ends_the_stream_and_the_instance(hosts: list[Host], victim: str) -> None:
    running = Running(hosts)
    head, _ = await running.up()
    assert head.endpoint is not None
    stream = Stream(head.endpoint, 100_000)
    await stream.began()
    began = time.monotonic()
    stream.reading.add_done_callback(
        lambda _: print(f"\nthe stream ended after {time.monotonic() - began:.1f} s")
    )
    await _ends(running, victim, signal.SIGKILL)
    await asyncio.wait_for(stream.reading, HANG_S)
    assert stream.failed


@pytest.mark.parametrize("victim", IDLE)
async def test_a_kill_while_idle_ends_the_instance(hosts: list[Host], victim: str) -> None:
    running = Running(hosts)
    await running.up()
    await _ends(running, victim, signal.SIGKILL)


async def test_a_stuck_worker_is_found_by_the_figures_that_stand_still(hosts: list[Host]) -> None:
    running = Running(hosts)
    head, _ = await running.up()
    assert head.endpoint is not None
    stream = Stream(head.endpoint, 100_000)
    await stream.began()
    await _ends(running, "the other worker", signal.SIGSTOP)
    await asyncio.wait_for(stream.reading, HANG_S)
    assert stream.failed


async def test_a_guard_that_stands_still_is_dead(hosts: list[Host], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "SILENT_S", 2.0)
    running = Running(hosts[:1])
    await running.up()
    os.kill(running.guard(0), signal.SIGSTOP)
    assert await running.gone() == ["its guard was silent for 2 s"]
    nothing_left(hosts)


async def test_a_guard_and_its_watcher_killed_at_once_leave_orphans_to_the_agent(hosts: list[Host]) -> None:
    running = Running(hosts[:1])
    await running.up()
    for victim in (running.guard(0), watcher(running, 0)):
        os.kill(victim, signal.SIGKILL)
    (reason,) = await running.gone()
    assert reason == "its guard died"
    nothing_left(hosts)


async def test_what_a_rank_leaves_that_was_killed_whole_is_found_by_its_tag(hosts: list[Host]) -> None:
    running = Running(hosts[:1])
    await running.up()
    folder = running.folder(0)
    await until(lambda: bool((status := folder.read_status()) and status.segments))
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()  # nobody follows the guard any more
    victims = [running.guard(0), watcher(running, 0), *(process.pid for process in hosts[0].living())]
    for victim in dict.fromkeys(victims):
        os.kill(victim, signal.SIGKILL)
    await until(lambda: not hosts[0].living())
    assert hosts[0].temps()
    assert hosts[0].memory()
    assert guarded.end_ranks({folder.tag}.__contains__, ())
    nothing_left(hosts)


async def test_a_killed_guard_takes_its_engine_along_while_no_agent_lives(hosts: list[Host]) -> None:
    running = Running(hosts[:1])
    await running.up()
    key, guard, main = running.key(0), running.guard(0), psutil.Process(running.main(0))
    family = [main, *main.children(recursive=True)]
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()  # nobody follows the guard any more
    os.kill(guard, signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=HANG_S)
    assert alive == []
    following = hosts[0].engine()
    assert await following.adopt(key)
    end = await asyncio.wait_for(following.gone(), HANG_S)
    assert end.reason == "its guard died"
    nothing_left(hosts)
