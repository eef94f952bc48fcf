"""What a node cannot do is refused by name, before an engine is started; what fails says why."""

import asyncio
import shutil
import socket
from pathlib import Path

import pytest

from agents.engine import End, EngineError, Progress
from agents.guard_files import Weights
from agents.guard_start import check_devices
from agents.revisions import revision_of
from tests.agents.guard_rig import HANG_S, Host, Running, nothing_left, until

QUEUED_S = 1.0


async def end_of(running: Running) -> End:
    await running.start()
    return await asyncio.wait_for(running.engines[0].gone(), HANG_S)


async def test_no_vllm(hosts: list[Host]) -> None:
    hosts[0].guards.node.command.unlink()
    end = await end_of(Running(hosts[:1]))
    assert end.refusal == "engine_missing"
    assert end.reason is not None
    assert "does not exist" in end.reason
    nothing_left(hosts)


async def test_another_version(hosts: list[Host]) -> None:
    running = Running(hosts[:1])
    running.instance = running.instance.model_copy(update={"engine": "vllm-0.31.0"})
    end = await end_of(running)
    assert end.refusal == "engine_version"
    assert end.reason is not None
    assert "the instance has vllm-0.31.0" in end.reason


async def test_a_model_that_is_nowhere(hosts: list[Host], tmp_path: Path) -> None:
    hosts[0].guards = hosts[0].guards.model_copy(update={"weights": Weights(cache=tmp_path / "cache")})
    end = await end_of(Running(hosts[:1]))
    assert end.refusal == "unknown_model"


async def test_no_reference_where_one_is_needed(hosts: list[Host]) -> None:
    running = Running(hosts[:1])
    running.of = running.of.model_copy(update={"unverified": "refuse"})
    end = await end_of(running)
    assert end.refusal == "no_reference"


async def test_a_stranger_on_the_guards_port(hosts: list[Host]) -> None:
    port = hosts[0].contact.guard_port
    with socket.create_server((hosts[0].contact.address, port)):
        end = await end_of(Running(hosts))
    assert end.refusal == "port_taken"
    assert end.reason is not None
    assert str(port) in end.reason


async def test_ranks_of_different_versions(hosts: list[Host]) -> None:
    for script in hosts[1].guards.node.command.parent.iterdir():
        script.write_text(script.read_text().replace("0.32.0+double", "0.33.0"))
    node = hosts[1].guards.node.model_copy(update={"version": "vllm-0.33.0"})
    hosts[1].guards = hosts[1].guards.model_copy(update={"node": node})
    running = Running(hosts)
    end = await end_of(running)
    assert end.refusal == "engine_version"
    assert (await asyncio.wait_for(running.engines[1].gone(), HANG_S)).refusal == "engine_version"


async def test_weights_wait_for_a_pull_slot(hosts: list[Host], tmp_path: Path) -> None:
    revision = revision_of(hosts[0].model)
    shutil.copytree(hosts[0].model, tmp_path / "store" / revision)
    weights = Weights(store=tmp_path / "store", cache=tmp_path / "cache")
    hosts[0].guards = hosts[0].guards.model_copy(update={"weights": weights})
    running = Running(hosts[:1])
    running.of_revision(revision)
    await running.start()
    (engine,) = running.engines
    await until(lambda: engine.progress == Progress("queued", "waits for a pull slot"))
    await asyncio.sleep(QUEUED_S)
    await engine.may_pull()
    up = await asyncio.wait_for(engine.ready(), HANG_S)
    assert (tmp_path / "cache" / revision / "config.json").exists()
    assert up.pull_s is not None
    assert up.start_s is not None
    assert up.pull_s < up.start_s  # and the queue is no part of either
    await engine.stop()
    assert await running.gone() == [None]


async def test_an_engine_that_fails_says_its_last_word(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_DOUBLE_FAIL", "ValueError: no kernels for this device")
    end = await end_of(Running(hosts[:1]))
    assert end == End("vLLM ended with status 1: ValueError: no kernels for this device")
    nothing_left(hosts)


async def test_a_busy_device_is_waited_for_and_then_named(hosts: list[Host]) -> None:
    spec = Running(hosts[:1]).spec(0)
    answers = iter(["process 7 holds it", None])
    await check_devices(lambda _: next(answers), spec, within_s=HANG_S)
    with pytest.raises(EngineError, match="process 7 holds it") as caught:
        await check_devices(lambda _: "process 7 holds it", spec, within_s=0.0)
    assert caught.value.refusal == "device_busy"
