"""What the way through a router costs, beside a direct connection and beside vllm-router, in one run.

Each part is a process of its own: an engine of four ports that costs next to nothing, clients that cost
little more, and between them nothing, our router, our router and the doors of the instances' heads, or
vllm-router. Latencies of streams are one-way, from the engine's write of an event to the client's read of it.
"""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import pytest

from agents.sync import WorkerApi
from schemas.problems import LatencyTable
from tests.agents.making import instance, plan, rank, template

pytestmark = pytest.mark.bench

REPO = Path(__file__).resolve().parents[2]
LOAD = Path(__file__).with_name("router_load.py")
VLLM_ROUTER = "vllm-router==0.1.17"
STREAMS, TOKENS_S, SECONDS = 300, 20, 10
AT_ONCE = 32
PORTS = 4
ROUTER = """
import sys
from pathlib import Path
from agents.router import run
from schemas.settings import KafkaSettings, RouterSettings

nobody = KafkaSettings(bootstrap_servers="127.0.0.1:1")  # it goes by the plan on its disk
run(nobody, "bench", Path(sys.argv[1]), RouterSettings(port=int(sys.argv[2])), "b")
"""
DOOR = """
import asyncio, sys
import uvloop
from agents.door import Door

async def main():
    door = await Door.open("127.0.0.1", sys.argv[1])
    print(door.endpoint, flush=True)
    await asyncio.Event().wait()

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""


@dataclass
class Way:
    """Something between clients and engines."""

    name: str
    address: str
    processes: Sequence[psutil.Process]

    def cpu_s(self) -> float:
        return sum(p.cpu_times().user + p.cpu_times().system for p in self.processes)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def listening(address: str) -> None:
    host, _, port = address.partition(":")
    end = time.monotonic() + 60
    while True:
        try:
            socket.create_connection((host, int(port))).close()
        except ConnectionRefusedError:
            assert time.monotonic() < end, f"nobody listens at {address}"
            time.sleep(0.1)
        else:
            return


# --- what is measured --------------------------------------------------------------------------------
@contextmanager
def routed(name: str, endpoints: Sequence[str], folder: Path, *more: psutil.Process) -> Iterator[Way]:
    """Our router before these endpoints."""
    roomy = template(
        latency=LatencyTable(batch=(256,), step_ms=(50.0,), prefill_ms_per_token=1.0, startup_s=1)
    )
    instances = [
        instance(f"i{n}", rank(device=n), of=roomy).model_copy(update={"endpoint": endpoint})
        for n, endpoint in enumerate(endpoints)
    ]
    wish = plan(1, *instances).model_copy(update={"templates": (roomy,)})
    folder.mkdir()
    (folder / "plan.json").write_text(wish.model_dump_json())
    port = free_port()
    with running(sys.executable, "-c", ROUTER, str(folder), str(port)) as process:
        listening(f"127.0.0.1:{port}")
        yield Way(name, f"127.0.0.1:{port}", [psutil.Process(process.pid), *more])


@contextmanager
def doors(endpoints: Sequence[str]) -> Iterator[tuple[list[str], list[psutil.Process]]]:
    """A door before each engine, each a process, as at the heads of instances."""
    with ExitStack() as stack:
        fronts, processes = [], []
        for endpoint in endpoints:
            process = stack.enter_context(running(sys.executable, "-c", DOOR, f"http://{endpoint}"))
            assert process.stdout is not None
            fronts.append(process.stdout.readline().strip())
            processes.append(psutil.Process(process.pid))
        yield fronts, processes


@contextmanager
def vllm_router(endpoints: Sequence[str]) -> Iterator[Way | None]:
    """vllm-router in an environment of its own; None where it cannot be had."""
    home = REPO / ".cache" / "vllm-router"
    command = home / "bin" / "vllm-router"
    if not command.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pip = [str(home / "bin" / "pip"), "install", "--quiet", VLLM_ROUTER]
        if subprocess.run(pip, check=False).returncode:
            print(f"\n{VLLM_ROUTER} cannot be had here; going on without it")
            yield None
            return
    port, metrics = free_port(), free_port()
    workers = [f"http://{endpoint}" for endpoint in endpoints]
    own = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
    with running(
        str(command), "--worker-urls", *workers, *own, "--policy", "round_robin", "--log-level", "error"
    ) as p:
        listening(f"127.0.0.1:{port}")
        yield Way("vllm-router", f"127.0.0.1:{port}", [psutil.Process(p.pid)])


async def test_a_real_vllm_router_is_kept_in_step() -> None:
    """What tests/agents/test_sync.py plays with a fake one."""
    ports = [free_port() for _ in range(2)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        process = stack.enter_context(
            running(sys.executable, str(LOAD), "engine", ",".join(map(str, ports)), "1")
        )
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        way = stack.enter_context(vllm_router([f"127.0.0.1:{ports[0]}"]))
        if way is None:
            pytest.skip(f"{VLLM_ROUTER} cannot be had here")
        async with aiohttp.ClientSession() as session:
            balancer = WorkerApi(session, f"http://{way.address}")
            for wanted in ([urls[0]], urls, [urls[1]]):
                await balancer.show(frozenset(wanted))
                async with asyncio.timeout(60):
                    while await balancer.listed() != frozenset(wanted):  # noqa: ASYNC110  it tells nobody
                        await asyncio.sleep(0.1)


def measure(way: Way, kind: str, number: int) -> dict[str, float]:
    """Run clients against it; figures, and seconds of CPU for each event or request."""
    with running(sys.executable, str(LOAD), kind, way.address, str(number), str(SECONDS)) as clients:
        assert clients.stdout is not None
        assert clients.stdout.readline().strip() == "warm"
        before_s = way.cpu_s()
        told: dict[str, float] = json.loads(clients.stdout.readline())
        told["cpu_us"] = 1e6 * (way.cpu_s() - before_s) / told["count"]
    return told


def row(way: Way, told: dict[str, float], direct: dict[str, float]) -> str:
    added = told["p99_ms"] - direct["p99_ms"]
    return (
        f"{way.name:22} {told['count'] / told['seconds']:9,.0f}/s  p50 {told['p50_ms']:7.2f} ms"
        f"  p99 {told['p99_ms']:7.2f} ms (added {added:6.2f})  CPU {told['cpu_us']:6.1f} us each"
    )


def test_what_a_router_costs(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(PORTS)]
    endpoints = [f"127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        engine = [sys.executable, str(LOAD), "engine", ",".join(map(str, ports)), str(TOKENS_S)]
        process = stack.enter_context(running(*engine))
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        ways = [Way("direct", ",".join(endpoints), [])]
        ways.append(stack.enter_context(routed("router", endpoints, tmp_path / "r1")))
        fronts, processes = stack.enter_context(doors(endpoints))
        ways.append(stack.enter_context(routed("router and doors", fronts, tmp_path / "r2", *processes)))
        other = stack.enter_context(vllm_router(endpoints))
        ways += [] if other is None else [other]
        for kind, number in (("streams", STREAMS), ("requests", AT_ONCE)):
            print(f"\n{number} {kind} at once" + (f", {TOKENS_S} tokens/s each" if kind == "streams" else ""))
            measured = [measure(way, kind, number) for way in ways]
            for way, told in zip(ways, measured, strict=True):
                print(row(way, told, measured[0]))
                assert told["count"] > 0
