"""What this machine has: GPUs by NVML, who holds them, and whether that is what its configuration says.

A node for development has none, and pretends to have the devices of its configuration.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
import pynvml  # type: ignore[import-untyped]

from agents.identity import NodeIdentity
from schemas.base import Count, Frozen
from schemas.catalog import Catalog
from schemas.plans import Contact
from schemas.problems import Pool

TOLERANCE = 0.1
"""Vendors' "80 GB" is anything from 80 x 10^9 bytes to 80 GiB (7% more), less what the driver keeps."""
IDLE_GB = 2.0
"""What the driver and its helpers may hold on a device that nobody uses."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Ours = Callable[[int], bool]
"""Whether a process id is one of this node's own engines."""


class Device(Frozen):
    """One GPU as it is now; memory in 10^9 bytes. `index` is NVML's: the order of the PCI bus."""

    index: Count
    name: str
    memory_gb: float
    used_gb: float = 0.0
    pids: tuple[Count, ...] = ()
    """Processes that compute on it."""


class Inventory(Frozen):
    """All GPUs; none on a machine without a driver."""

    devices: tuple[Device, ...] = ()
    driver: str | None = None
    faults: tuple[str, ...] = ()
    """Devices that the driver lists and cannot reach."""


class Machine(Protocol):
    """Where an inventory comes from."""

    def look(self) -> Inventory:
        """What is there right now; blocks for milliseconds.

        Raises:
            OSError: there is a driver, and it does not answer.
        """


@dataclass(frozen=True)
class FixedMachine:
    """The double: a machine on which nothing changes."""

    inventory: Inventory

    def look(self) -> Inventory:
        return self.inventory


class Nvml:
    """This machine, by the driver's management library.

    Args:
        api: the module `pynvml`, or what stands for it.
    """

    def __init__(self, api: Any = pynvml) -> None:
        self._api = api

    def look(self) -> Inventory:
        api = self._api
        try:
            api.nvmlInit()
        except (api.NVMLError_LibraryNotFound, api.NVMLError_DriverNotLoaded):
            return Inventory()
        except api.NVMLError as error:
            raise OSError(f"NVML: {error}; is the driver of this machine whole?") from error
        try:
            return self._all()
        except api.NVMLError as error:
            raise OSError(f"NVML: {error}") from error
        finally:
            api.nvmlShutdown()

    def _all(self) -> Inventory:
        devices, faults = [], []
        for index in range(self._api.nvmlDeviceGetCount()):
            try:
                devices.append(self._device(index))
            except self._api.NVMLError as error:
                faults.append(f"device {index}: {error}")
        return Inventory(
            devices=tuple(devices), driver=self._api.nvmlSystemGetDriverVersion(), faults=tuple(faults)
        )

    def _device(self, index: int) -> Device:
        handle = self._api.nvmlDeviceGetHandleByIndex(index)
        memory = self._api.nvmlDeviceGetMemoryInfo(handle)
        running = self._api.nvmlDeviceGetComputeRunningProcesses(handle)
        return Device(
            index=index,
            name=self._api.nvmlDeviceGetName(handle),
            memory_gb=memory.total / 1e9,
            used_gb=memory.used / 1e9,
            pids=tuple(sorted(process.pid for process in running)),
        )


def survey(machine: Machine | None = None) -> Inventory:
    """What this machine has.

    Raises:
        OSError: as `Machine.look`.
    """
    return (machine or Nvml()).look()


def identity(
    catalog: Catalog,
    inventory: Inventory | None,
    *,
    name: str,
    pool: Pool,
    configuration: str,
    address: str,
    engine: str,
    contact: Contact | None = None,
    claim: str | None = None,
) -> NodeIdentity:
    """What a node registers as.

    Args:
        inventory: None pretends to have what the catalog says of the configuration.
        engine: version of what runs on it, such as `vllm-0.32.0` or `simulated-1`.
        contact: None where engines need no guards.

    Raises:
        ValueError: the catalog does not know the configuration, or the machine is not what it says.
        pydantic.ValidationError: a field is impossible.
    """
    if configuration not in {c.name for c in catalog.configurations}:
        raise ValueError(f"--configuration: {configuration!r} is not in the catalog")
    kind = catalog.configuration(configuration)
    memory_gb = catalog.gpu(kind.gpu).memory_gb
    if inventory is not None:
        _check(inventory, configuration, kind.gpus, memory_gb)
        memory_gb = min(device.memory_gb for device in inventory.devices)
    return NodeIdentity(
        name=name,
        pool=pool,
        configuration=configuration,
        devices=kind.gpus,
        memory_gb=kind.gpus * memory_gb,
        address=address,
        claim=claim,
        engine=engine,
        contact=contact,
        gpu=None if inventory is None else inventory.devices[0].name,
        driver=None if inventory is None else inventory.driver,
    )


def _check(inventory: Inventory, configuration: str, count: int, memory_gb: float) -> None:
    devices = inventory.devices
    wrong: Sequence[str] = [
        f"device {device.index} ({device.name}) has {device.memory_gb:.1f} GB, expected {memory_gb:g}"
        for device in devices
        if abs(device.memory_gb / memory_gb - 1) > TOLERANCE
    ]
    if len(devices) != count:
        names = ", ".join(device.name for device in devices) or "none"
        wrong = [f"{len(devices)} devices ({names}), expected {count}", *wrong]
    if wrong := (*wrong, *inventory.faults):
        raise ValueError(f"--configuration: {configuration!r} is not this machine: {'; '.join(wrong)}")


def busy(devices: Collection[int], ours: Ours, machine: Machine | None = None) -> str | None:
    """Who else holds one of `devices` (NVML's indices), in words; None if nobody, or if there are no GPUs.

    Processes of other containers are often not shown; their memory is.

    Raises:
        OSError: as `Machine.look`.
    """
    for device in survey(machine).devices:
        if device.index not in devices:
            continue
        if strangers := [pid for pid in device.pids if not ours(pid)]:
            who = ", ".join(f"process {pid}{_called(pid)}" for pid in strangers)
            return f"device {device.index} ({device.name}) is held by {who}"
        if not device.pids and device.used_gb > IDLE_GB:
            taken = f"{device.used_gb:.1f} of {device.memory_gb:.1f} GB"
            return f"device {device.index} ({device.name}): {taken} are taken by a process that is not shown"
    return None


def _called(pid: int) -> str:
    with suppress(psutil.Error):
        return f" ({psutil.Process(pid).name()})"
    return ""


def machine_boot() -> str:
    """Names this boot of the machine."""
    with suppress(OSError):  # no Linux
        return BOOT_ID.read_text().strip()
    return f"boot-{psutil.boot_time():.0f}"
