"""What a machine has, by a driver that a test plays."""

import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from agents.inventory import Device, FixedMachine, Inventory, Nvml, busy, identity, machine_boot, survey
from schemas.catalog import Catalog, load_catalog
from schemas.plans import Contact
from tests.agents.making import POOL

L4 = Device(index=0, name="NVIDIA L4", memory_gb=24.15, used_gb=0.5)


class FakeError(Exception):
    """NVML's errors are classes of one module."""


class NoLibraryError(FakeError):
    pass


class NoDriverError(FakeError):
    pass


@dataclass
class FakeNvml:
    """The part of `pynvml` that is used: `gpus` of (name, total bytes, used bytes, pids)."""

    gpus: list[tuple[str, int, int, list[int]]] = field(default_factory=list)
    failing: dict[str, FakeError] = field(default_factory=dict)
    open: int = 0
    NVMLError = FakeError
    NVMLError_LibraryNotFound = NoLibraryError
    NVMLError_DriverNotLoaded = NoDriverError

    def _may_fail(self, call: str) -> None:
        if call in self.failing:
            raise self.failing[call]

    def nvmlInit(self) -> None:  # noqa: N802  NVML's names
        self._may_fail("init")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._may_fail("count")
        return len(self.gpus)

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.1"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        self._may_fail(f"device {index}")
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return self.gpus[handle][0]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=self.gpus[handle][1], used=self.gpus[handle][2])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.gpus[handle][3]]


def machine(*devices: Device) -> FixedMachine:
    return FixedMachine(Inventory(devices=devices, driver="570.1"))


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


# --- by NVML -----------------------------------------------------------------------------------------
def test_devices_are_read_and_the_library_is_closed() -> None:
    api = FakeNvml([("NVIDIA L4", 24_152_000_000, 500_000_000, [7, 3]), ("NVIDIA L4", 24_152_000_000, 0, [])])
    found = Nvml(api).look()
    assert found.driver == "570.1"
    assert found.devices[0] == Device(index=0, name="NVIDIA L4", memory_gb=24.152, used_gb=0.5, pids=(3, 7))
    assert [device.index for device in found.devices] == [0, 1]
    assert api.open == 0


@pytest.mark.parametrize("error", [NoLibraryError(), NoDriverError()])
def test_no_driver_is_no_gpus(error: FakeError) -> None:
    assert survey(Nvml(FakeNvml(failing={"init": error}))) == Inventory()


def test_a_driver_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(OSError, match="NVML: version mismatch; is the driver"):
        survey(Nvml(FakeNvml(failing={"init": FakeError("version mismatch")})))
    api = FakeNvml(failing={"count": FakeError("unknown")})
    with pytest.raises(OSError, match="NVML: unknown"):
        survey(Nvml(api))
    assert api.open == 0


def test_a_gpu_that_is_lost_is_named_and_the_others_are_read() -> None:
    gpus = [("NVIDIA L4", 24_000_000_000, 0, list[int]())] * 2
    found = survey(Nvml(FakeNvml(gpus, failing={"device 0": FakeError("GPU is lost")})))
    assert found.faults == ("device 0: GPU is lost",)
    assert [device.index for device in found.devices] == [1]


def test_this_machine_can_be_surveyed() -> None:
    """With a GPU or without, the real library is asked."""
    assert all(device.memory_gb > 0 for device in survey().devices)


# --- what it registers as ----------------------------------------------------------------------------
def registered(catalog: Catalog, inventory: Inventory | None, configuration: str = "2xL4") -> Any:
    return identity(
        catalog,
        inventory,
        name="n1",
        pool=POOL,
        configuration=configuration,
        address="10.0.0.7",
        engine="vllm-0.32.0",
        contact=Contact(address="10.0.0.7", guard_port=20_000, public_key="k" * 40),
    )


def test_a_node_without_gpus_pretends_to_have_its_configurations(catalog: Catalog) -> None:
    me = registered(catalog, None)
    assert (me.devices, me.memory_gb, me.gpu, me.driver) == (2, 48.0, None, None)
    assert (me.engine, me.contact.guard_port) == ("vllm-0.32.0", 20_000)


def test_a_node_with_gpus_says_what_they_are(catalog: Catalog) -> None:
    second = L4.model_copy(update={"index": 1, "memory_gb": 24.0})
    me = registered(catalog, machine(L4, second).look())
    assert (me.devices, me.gpu, me.driver) == (2, "NVIDIA L4", "570.1")
    assert me.memory_gb == 48.0, "they are alike: the least of them counts"


@pytest.mark.parametrize(
    ("inventory", "expected"),
    [
        (Inventory(), r"'2xL4' is not this machine: 0 devices \(none\), expected 2"),
        (Inventory(devices=(L4,)), r"1 devices \(NVIDIA L4\), expected 2"),
        (
            Inventory(
                devices=(L4, Device(index=1, name="NVIDIA T4", memory_gb=16.1)),
            ),
            r"device 1 \(NVIDIA T4\) has 16.1 GB, expected 24$",
        ),
        (
            Inventory(devices=(L4,), faults=("device 1: GPU is lost",)),
            r"1 devices \(NVIDIA L4\), expected 2; device 1: GPU is lost",
        ),
    ],
)
def test_a_machine_that_is_another_configuration_says_so(
    catalog: Catalog, inventory: Inventory, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        registered(catalog, inventory)


def test_an_unknown_configuration_is_named(catalog: Catalog) -> None:
    with pytest.raises(ValueError, match="--configuration: '9xL4' is not in the catalog"):
        registered(catalog, None, "9xL4")


# --- who holds a device ------------------------------------------------------------------------------
def nobody(pid: int) -> bool:
    return False


def test_an_idle_device_is_held_by_nobody() -> None:
    assert busy((0,), nobody, machine(L4)) is None
    assert busy((0,), nobody, FixedMachine(Inventory())) is None


def test_a_strangers_process_is_named() -> None:
    mine = L4.model_copy(update={"pids": (os.getpid(), 4_194_305)})
    why = busy((0,), nobody, machine(mine))
    assert why is not None
    assert why.startswith(f"device 0 (NVIDIA L4) is held by process {os.getpid()} (")
    assert why.endswith("process 4194305"), "its name is not shown to everybody"
    assert busy((0,), mine.pids.__contains__, machine(mine)) is None
    assert busy((1,), nobody, machine(mine)) is None, "not a device that was asked about"


def test_memory_tells_of_a_process_that_is_not_shown() -> None:
    hidden = L4.model_copy(update={"used_gb": 20.0})
    assert busy((0,), nobody, machine(hidden)) == (
        "device 0 (NVIDIA L4): 20.0 of 24.1 GB are taken by a process that is not shown"
    )


def test_a_boot_has_one_name() -> None:
    assert machine_boot() == machine_boot() != ""
