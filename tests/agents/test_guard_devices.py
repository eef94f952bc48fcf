"""Whose is the device? A guard in this process, told by the test who holds it."""

import asyncio

import pytest

from agents import guard as guard_module
from agents.engine import EngineSpec
from agents.guard import Guard
from agents.guard_files import GuardSpec, Order, Status
from tests.agents.guard_rig import HANG_S, Host, Running, nothing_left, until


class Device:
    """One that is asked about, and held by whom the test says."""

    def __init__(self) -> None:
        self.holder: str | None = None
        self.asked = 0

    def __call__(self, spec: EngineSpec) -> str | None:  # noqa: ARG002  the guard's signature
        self.asked += 1
        return self.holder


def begin(host: Host, running: Running, device: Device) -> asyncio.Task[None]:
    """A guard of the rank, with everything that is its own but a process."""
    folder = running.folder(0)
    spec = GuardSpec(
        engine=running.spec(0), node=host.guards.node, weights=host.guards.weights, keys=host.guards.keys
    )
    folder.write_spec(spec)
    (folder.path / "lock").touch()
    return asyncio.create_task(Guard(folder, spec, device).live())


def status(running: Running) -> Status:
    found = running.folder(0).read_status()
    assert found is not None
    return found


async def test_a_strangers_device_is_refused(hosts: list[Host], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "BUSY_S", 0.1)
    running, device = Running(hosts[:1]), Device()
    device.holder = "device 0 (L4) is held by process 7"
    await asyncio.wait_for(begin(hosts[0], running, device), HANG_S)
    assert (status(running).state, status(running).refusal) == ("ended", "device_busy")
    assert status(running).reason == device.holder
    nothing_left(hosts)


async def test_an_end_is_told_once_the_device_is_free(hosts: list[Host]) -> None:
    running, device = Running(hosts[:1]), Device()
    living = begin(hosts[0], running, device)
    await until(lambda: running.folder(0).read_status() is not None and status(running).state == "ready")
    device.holder, device.asked = "the driver, still", 0
    running.folder(0).write_order(Order(stop=True))
    await until(lambda: device.asked >= 2)
    assert hosts[0].living() == []
    assert status(running).state != "ended"
    device.holder = None
    await asyncio.wait_for(living, HANG_S)
    assert (status(running).state, status(running).reason) == ("ended", None)
