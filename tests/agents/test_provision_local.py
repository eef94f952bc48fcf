"""The local cloud with real processes: what it starts outlives it, is found again and ends whole."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from agents import guard_files, local_process, watcher
from agents.processes import Started, tagged
from agents.provision import Gone, Place, Refused
from agents.provision_local import LocalCloud, LocalNode, LocalProvisioner, LocalStock, victims
from schemas.events import AvailabilityOffered, Offer
from schemas.plans import Claim
from schemas.problems import Pool

POOL = Pool(cloud="gcp", region="us-central1", market="spot")
PLACE: Place = (POOL, "1xL4")
SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")
_PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""
PARENT = (sys.executable, "-c", _PARENT)
"""A node whose guard has a session of its own."""

Make = Callable[..., LocalProvisioner]


class Now:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def make(tmp_path: Path, now: Now) -> Iterator[Make]:
    """A provisioner on the test's folder; another one on the same folder is the first one restarted."""

    def make(
        nodes: int = 2, command: tuple[str, ...] = SLEEPER, startup_ms: int = 0, fleet: str = "t"
    ) -> LocalProvisioner:
        cloud = LocalCloud(
            stock=(LocalStock(pool=POOL, configuration="1xL4", nodes=nodes),),
            levels_from="bamboo",
            startup_ms=startup_ms,
            notice_ms=3_000,
        )
        return LocalProvisioner(cloud, command, tmp_path / "cloud", tmp_path / "nodes", fleet, now_ms=now)

    yield make
    assert make().destroy_all()
    assert processes(tmp_path) == []


def processes(tmp_path: Path) -> list[int]:
    """The process of every session that runs with a tag of this test's folder (not a start-up's `sleep`)."""
    found = []
    for process in psutil.process_iter():
        try:
            tag = process.environ().get(local_process.TAG, "")
            counts = os.getsid(process.pid) == process.pid and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
            continue
        if counts and tag.startswith(str(tmp_path)):
            found.append(process.pid)
    return found


async def until(condition: Callable[[], bool]) -> None:
    """Another process gets there; pytest's time-out is the guard."""
    while not condition():  # noqa: ASYNC110  nothing here could set an event for it
        await asyncio.sleep(0.02)


def claim(name: str) -> Claim:
    return Claim(id=name, configuration="1xL4", pool=POOL, usd_per_hour=0.3)


def level(nodes: int, source: str = "bamboo") -> AvailabilityOffered:
    return AvailabilityOffered(
        offer=Offer(pool=POOL, configuration="1xL4", source=source), obtainable=nodes, at_ms=1
    )


async def test_a_node_is_a_process_that_knows_who_it_is(make: Make, tmp_path: Path) -> None:
    local = make()
    assert await local.create(claim("c1")) == "local-c1"
    (pid,) = processes(tmp_path)
    place = "--cloud gcp --region us-central1 --zone * --market spot --configuration 1xL4"
    identity = f"--name local-c1 {place} --claim c1"
    assert psutil.Process(pid).cmdline()[-14:] == identity.split()
    assert os.getsid(pid) == pid
    assert await local.create(claim("c1")) == "local-c1"
    assert processes(tmp_path) == [pid]


async def test_out_of_stock_is_refused_and_leaves_no_process(make: Make, tmp_path: Path) -> None:
    local = make(nodes=1)
    await local.create(claim("c1"))
    with pytest.raises(Refused, match="out of stock: 1 of 1 1xL4") as no:
        await local.create(claim("c2"))
    assert not no.value.terminal
    assert len(processes(tmp_path)) == 1
    assert await local.held() == {"c1": "local-c1"}
    assert await local.stock() == {PLACE: 0}


async def test_a_command_that_cannot_run_is_a_node_that_is_gone(make: Make, tmp_path: Path) -> None:
    local = make(command=("/nowhere/coral",))
    await local.create(claim("c1"))
    await until(lambda: not processes(tmp_path))
    assert await local.gone() == [Gone("c1", "local-c1", "terminated")]


async def test_a_node_is_adopted_even_while_it_starts_up(make: Make, tmp_path: Path) -> None:
    await make(startup_ms=60_000).create(claim("c1"))
    before = processes(tmp_path)
    again = make()
    assert await again.held() == {"c1": "local-c1"}
    assert await again.gone() == []
    assert await again.create(claim("c1")) == "local-c1"
    assert processes(tmp_path) == before


async def test_a_process_that_was_started_and_not_noted_down_is_found(make: Make, tmp_path: Path) -> None:
    await make().create(claim("c1"))
    path = tmp_path / "cloud" / "nodes" / "t" / "c1.json"
    record = LocalNode.model_validate_json(path.read_text())
    path.write_text(record.model_copy(update={"started": None}).model_dump_json())
    again = make()
    assert await again.gone() == []
    assert len(processes(tmp_path)) == 1


async def test_a_record_without_any_process_is_a_node_that_is_gone(make: Make, tmp_path: Path) -> None:
    """The id is another process's by now: this test's own, which must survive it."""
    await make().create(claim("c1"))
    path = tmp_path / "cloud" / "nodes" / "t" / "c1.json"
    record = LocalNode.model_validate_json(path.read_text())
    assert local_process.end({f"{(tmp_path / 'cloud').resolve()}/t/c1"})
    stranger = Started(pid=os.getpid(), since_boot_s=1.0)
    path.write_text(record.model_copy(update={"started": stranger}).model_dump_json())
    assert await make().gone() == [Gone("c1", "local-c1", "terminated")]


async def test_release_ends_every_process_of_the_node(make: Make, tmp_path: Path) -> None:
    local = make(command=PARENT)
    await local.create(claim("c1"))
    await until(lambda: (tmp_path / "cloud" / "logs" / "local-c1.log").read_text().startswith("up"))
    assert len(processes(tmp_path)) == 2
    assert await local.release("c1", "local-c1")
    assert processes(tmp_path) == []
    assert await local.gone() == []  # released, not lost
    await local.forget("c1")
    assert await local.held() == {}
    assert await local.stock() == {PLACE: 2}


_AGENT = """
import asyncio, sys
from pathlib import Path
from tests.agents.guard_rig import Host, Running

async def main():
    await Running([Host(Path(sys.argv[1]), "c1")]).up()
    print("up", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def ranks(host: Path) -> list[int]:
    """The processes of all engines and guards of a host."""
    return [process.pid for process in tagged(guard_files.TAG, lambda tag: tag.startswith(str(host)))]


def left(files: set[str]) -> list[str]:
    return [file for file in files if Path(file).exists()]


async def test_release_ends_engines_under_guards_and_leaves_nothing(
    make: Make, tmp_path: Path, temp: Path
) -> None:
    """A guard outlives its agent on purpose, in a session of its own; it does not outlive the machine."""
    host = tmp_path / "host"
    local = make(command=(sys.executable, "-c", _AGENT, str(host)))
    await local.create(claim("c1"))
    await until(lambda: "up" in (tmp_path / "cloud" / "logs" / "local-c1.log").read_text())
    segments = watcher.segments(ranks(host))
    assert len(ranks(host)) >= 2
    assert segments
    assert await local.release("c1", "local-c1")
    assert ranks(host) == []
    assert left(segments) == []
    assert os.listdir(temp) == []  # noqa: PTH208  pathlib would block, says the linter


async def test_a_crash_between_release_and_its_record_repeats_the_release(make: Make) -> None:
    local = make()
    await local.create(claim("c1"))
    await local.release("c1", "local-c1")
    again = make()
    assert await again.gone() == []
    assert await again.held() == {"c1": "local-c1"}
    assert await again.release("c1", "local-c1")


async def test_a_node_that_dies_is_terminated_with_all_it_left(make: Make, tmp_path: Path) -> None:
    local = make(command=PARENT)
    await local.create(claim("c1"))
    await until(lambda: (tmp_path / "cloud" / "logs" / "local-c1.log").read_text().startswith("up"))
    leader = next(pid for pid in processes(tmp_path) if psutil.Process(pid).cmdline()[-1] == "c1")
    psutil.Process(leader).kill()
    await until(lambda: len(processes(tmp_path)) == 1)
    assert await local.gone() == [Gone("c1", "local-c1", "terminated")]
    assert processes(tmp_path) == []


def test_the_youngest_have_to_go() -> None:
    nodes = [
        LocalNode(claim=f"c{n}", node=f"n{n}", pool=POOL, configuration="1xL4", number=n) for n in (3, 1, 2)
    ]
    assert [node.number for node in victims(nodes, 1)] == [2, 3]
    assert victims(nodes, 3) == []
    assert len(victims(nodes, 0)) == 3


async def test_a_falling_level_preempts_after_a_notice(make: Make, now: Now, tmp_path: Path) -> None:
    local = make(nodes=3)
    for name in ("c1", "c2", "c3"):
        await local.create(claim(name))
    local.hear(level(1))
    assert await local.gone() == []  # told, not yet taken
    assert (tmp_path / "nodes" / "local-c3" / "notice").read_text() == f"{now.ms + 3_000}\n"
    assert not (tmp_path / "nodes" / "local-c1").exists()
    assert await local.stock() == {PLACE: 0}

    now.ms += 3_000
    again = make(nodes=3)  # a restart in between changes nothing
    assert {loss.claim: loss.reason for loss in await again.gone()} == {"c2": "preempted", "c3": "preempted"}
    assert len(processes(tmp_path)) == 1


async def test_a_notice_is_final_but_room_is_room(make: Make, now: Now) -> None:
    local = make(nodes=2)
    for name in ("c1", "c2"):
        await local.create(claim(name))
    local.hear(level(1))
    local.hear(level(2))
    assert await local.stock() == {PLACE: 1}
    assert await local.create(claim("c3")) == "local-c3"
    now.ms += 3_000
    assert [loss.claim for loss in await local.gone()] == ["c2"]


async def test_only_its_own_source_sets_the_level(make: Make) -> None:
    local = make(nodes=2)
    local.hear(level(0, source="local"))
    assert await local.stock() == {PLACE: 2}
    local.hear(level(0))
    assert await local.stock() == {PLACE: 0}


_STARTER = """
import asyncio, sys, time
from pathlib import Path
from agents.provision_local import Claim, LocalCloud, LocalProvisioner, LocalStock, Pool
root, pool = Path(sys.argv[1]), Pool(cloud="gcp", region="us-central1", market="spot")
cloud = LocalCloud(stock=(LocalStock(pool=pool, configuration="1xL4", nodes=1),), startup_ms=0)
local = LocalProvisioner(cloud, sys.argv[2:], root / "cloud", root / "nodes", "t")
claim = Claim(id="c1", configuration="1xL4", pool=pool, usd_per_hour=0.3)
print(asyncio.run(local.create(claim)), flush=True)
time.sleep(600)
"""


async def test_what_it_started_outlives_it(make: Make, tmp_path: Path) -> None:
    """The starter is killed with all of its process group; its node stays."""
    starter = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _STARTER, str(tmp_path), *SLEEPER),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert starter.stdout is not None
    assert await starter.stdout.readline() == b"local-c1\n"
    os.killpg(starter.pid, signal.SIGKILL)
    await starter.wait()
    again = make()
    assert await again.gone() == []
    assert await again.held() == {"c1": "local-c1"}
    assert await again.release("c1", "local-c1")
    assert processes(tmp_path) == []


async def test_fleets_that_share_an_account_do_not_see_each_other(make: Make, tmp_path: Path) -> None:
    """Their claims may have the same ids: each fleet's log numbers them from its own beginning."""
    ours, theirs = make(), make(fleet="other")
    await ours.create(claim("c1"))
    await theirs.create(claim("c1"))
    await theirs.create(claim("c2"))
    assert sorted(await make().held()) == ["c1"]
    assert await ours.release("c1", "local-c1")
    await ours.forget("c1")
    assert make().destroy_all()
    again = make(fleet="other")
    assert sorted(await again.held()) == ["c1", "c2"]
    assert await again.gone() == []
    assert len(processes(tmp_path)) == 2
    assert again.destroy_all()
