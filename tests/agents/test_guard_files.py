"""What a guard and its agent say to each other by files, and what they make of logs and silence."""

import asyncio
import errno
from pathlib import Path

import pytest

from agents import guard_mirror
from agents.engine import EngineError
from agents.guard_alarms import StoppedError, unless
from agents.guard_engine import last_fault, refusal_of
from agents.guard_files import Folder, GuardSpec, Order, Status
from agents.guarded import BIRTH_S, KEPT_FOLDERS, SILENT_S, _Pulse, sweep
from agents.ledger import RankKey
from agents.processes import Started
from tests.agents.guard_rig import Host, Running

GUARD = Started(pid=1, since_boot_s=1.0)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder.of(tmp_path, RankKey("i1", 2, 1, 0))
    made.path.mkdir()
    return made


# --- files -----------------------------------------------------------------------------------------------
def test_a_rank_has_a_folder_of_its_own(folder: Folder, tmp_path: Path) -> None:
    assert folder.path == tmp_path / "i1.2.1.0"
    assert folder.tag == str(tmp_path / "i1.2.1.0")


def test_a_spec_survives_its_file_and_forgets_an_earlier_try(hosts: list[Host]) -> None:
    host, running = hosts[0], Running(hosts)
    folder = running.folder(0)
    spec = GuardSpec(
        engine=running.spec(0), node=host.guards.node, weights=host.guards.weights, keys=host.guards.keys
    )
    folder.path.mkdir(parents=True)
    folder.write_order(Order(stop=True))
    folder.write_spec(spec)
    assert folder.read_spec() == spec
    assert folder.read_order() == Order()
    assert folder.spec_digest() is not None


def test_nothing_is_said_before_it_is(folder: Folder) -> None:
    assert folder.read_status() is None
    assert folder.read_order() == Order()
    assert folder.spec_digest() is None
    assert folder.touched_ns() == 0


def test_words_of_a_newer_version_are_understood(folder: Folder) -> None:
    said = Status(guard=GUARD, spec="s", state="ready", endpoint="127.0.0.1:1")
    newer = said.model_dump_json().replace('"state"', '"mood":"good","state"')
    (folder.path / "status.json").write_text(newer)
    assert folder.read_status() == said
    (folder.path / "order.json").write_text('{"drain": true, "hurry": 1}')
    assert folder.read_order() == Order(drain=True)


def test_a_status_that_is_none_says_nothing(folder: Folder) -> None:
    (folder.path / "status.json").write_text("{")
    assert folder.read_status() is None


def test_a_lock_tells_surely_whether_a_guard_lives(folder: Folder) -> None:
    assert not folder.locked()
    with folder.held() as held:
        assert held
        assert folder.locked()
        with folder.held() as twice:
            assert not twice
        before = folder.touched_ns()
        folder.touch()
        assert folder.touched_ns() > before
    assert not folder.locked()


def test_a_sweep_keeps_the_newest_folders_of_the_ended(tmp_path: Path) -> None:
    kept = Folder.of(tmp_path, RankKey("kept", 1, 0, 0))
    for folder in [kept, *(Folder.of(tmp_path, RankKey("i", n, 0, 0)) for n in range(KEPT_FOLDERS + 5))]:
        folder.path.mkdir()
    asyncio.run(sweep(tmp_path, {RankKey("kept", 1, 0, 0)}))
    assert kept.path.exists()
    assert len(list(tmp_path.iterdir())) == KEPT_FOLDERS + 1


# --- pure parts ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("log", "fault"),
    [
        ("INFO started\n", None),
        ("x\nValueError: no kernels\nINFO bye\n", "ValueError: no kernels"),
        ("(Worker pid=1) ERROR torch.OutOfMemoryError: 80 GB\n", "torch.OutOfMemoryError: 80 GB"),
        ("KeyError: 'a'\nRuntimeError: the end.\n", "RuntimeError: the end."),
        ("ValueError: no\nRuntimeError: Engine core initialization failed. See\n", "ValueError: no"),
        (
            "RuntimeError: Engine core initialization failed.\n",
            "RuntimeError: Engine core initialization failed.",
        ),
        ("INFO if you see `OSError: too many files`, raise the limit: `OSError: x`\n", None),
        ("no error here, only ErrorLess words\n", None),
    ],
)
def test_the_last_fault_of_a_log(log: str, fault: str | None) -> None:
    assert last_fault(log) == fault


@pytest.mark.parametrize(
    ("fault", "refusal"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "memory"),
        ("ValueError: No available memory for the cache blocks. Try", "memory"),
        (
            "ValueError: ... KV cache is needed, which is larger than the available KV cache memory (1",
            "memory",
        ),
        ("ValueError: Free memory on device (1/2 GiB) is less than desired GPU memory utilization", "memory"),
        ("RuntimeError: NCCL error", None),
    ],
)
def test_an_engine_without_enough_memory_is_a_refusal(fault: str, refusal: str | None) -> None:
    assert refusal_of(fault) == refusal


def test_a_guard_is_silent_once_it_stops_touching_its_lock() -> None:
    pulse = _Pulse(0.0)
    assert not pulse.silent(0, BIRTH_S)  # it is being born
    assert pulse.silent(0, BIRTH_S + 1)
    assert not pulse.silent(7, 100.0)
    assert not pulse.silent(7, 100.0 + SILENT_S)
    assert pulse.silent(7, 101.0 + SILENT_S)
    assert not pulse.silent(8, 102.0 + SILENT_S)


async def test_a_guard_that_can_neither_read_nor_write_is_not_silent(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(status: Status) -> None:
        raise OSError(errno.ENOSPC, f"no space for {status.state}")

    with folder.held():
        monkeypatch.setattr(guard_mirror, "MIRROR_S", 0.01)
        monkeypatch.setattr(guard_mirror, "TOUCH_S", 0.0)
        monkeypatch.setattr(folder, "write_status", full)
        (folder.path / "order.json").write_text("{garbage")
        mirror = guard_mirror.Mirror(folder)
        running = asyncio.create_task(mirror.run(dict))
        touched_ns = {folder.touched_ns()}
        while len(touched_ns) < 5:
            await asyncio.sleep(0.01)
            touched_ns.add(folder.touched_ns())
        assert len(caplog.messages) == 2, "each trouble is told once"
        (folder.path / "order.json").write_text(Order(drain=True).model_dump_json())
        await mirror.drain.wait()
        running.cancel()


# --- alarms ----------------------------------------------------------------------------------------------
async def _say(reason: str | None) -> str | None:
    return reason


async def _never() -> str:
    await asyncio.Event().wait()
    raise AssertionError


async def _fail() -> None:
    raise EngineError("the work knows more", "memory")


async def test_work_is_done_unless_an_alarm_comes() -> None:
    assert await unless(_say("done"), [_never()]) == "done"
    with pytest.raises(EngineError, match="a process died"):
        await unless(_never(), [_never(), _say("a process died")])
    with pytest.raises(StoppedError):
        await unless(_never(), [_say(None)])


async def test_of_work_and_alarm_at_once_the_work_knows_more() -> None:
    with pytest.raises(EngineError, match="the work knows more") as caught:
        await unless(_fail(), [_say("broken")])
    assert caught.value.refusal == "memory"
