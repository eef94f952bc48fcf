"""What the door of an instance costs: CPU per streamed chunk, and how much later a chunk comes through it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.bench

STREAMS, TOKENS_A_SECOND, SECONDS = 300, 20, 10
SCRIPT = Path(__file__).parent / "streaming.py"
DOOR = """
import asyncio, sys, uvloop
from agents.door import Door

async def main():
    door = await Door.open("127.0.0.1", sys.argv[1])
    print(door.endpoint, flush=True)
    await asyncio.Event().wait()

uvloop.run(main())
"""


@contextmanager
def running(*command: str) -> Iterator[tuple[psutil.Process, str]]:
    """A process, and the first line it prints."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield psutil.Process(process.pid), process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def load(endpoint: str) -> dict[str, float]:
    command = [sys.executable, str(SCRIPT), "load", endpoint, str(STREAMS), str(SECONDS)]
    read: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return read


def test_chunks_through_the_door() -> None:
    with running(str(SCRIPT), "serve", str(TOKENS_A_SECOND)) as (_, port):
        direct = load(f"127.0.0.1:{port}")
        with running("-c", DOOR, f"http://127.0.0.1:{port}") as (door, endpoint):
            before = door.cpu_times()
            through = load(endpoint)
            after = door.cpu_times()
    chunks = through["chunks"] * (SECONDS + 2) / SECONDS  # the load warms up for two seconds
    kernel, all_us = (
        1e6 * used / chunks for used in (after.system - before.system, sum(after[:2]) - sum(before[:2]))
    )
    print(f"\ndirect: {direct}\nthrough the door: {through}")
    print(f"{all_us:.0f} us of CPU a chunk, {kernel:.0f} of them the kernel's")
    assert through["chunks"] > 0
