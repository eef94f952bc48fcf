"""However `coral reference make` ends, no vLLM stays, and nothing of it: on the double."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from agents import processes, watcher
from agents.vllm_double import VERSION, write_command

HANG_S = 60.0
TAG = "CORAL_TEST_TAG"
MAKE = """
import asyncio, sys
from pathlib import Path
from agents.reference_make import make
from agents.vllm import VllmNode
folder = Path(sys.argv[1])
node = VllmNode(command=folder / "bin" / "vllm", version=sys.argv[2], platform="cpu", device_memory_gb=8.0)
print(asyncio.run(make(folder / "model", node, {}, log=folder / "vllm.log")))
"""


def wait_for(what: Callable[[], object]) -> None:
    patience = time.monotonic() + HANG_S
    while not what():
        assert time.monotonic() < patience
        time.sleep(0.02)


class Making:
    """The command as a process."""

    def __init__(self, folder: Path, **dials: str) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}")
        write_command(folder / "bin")
        self._folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAKE, str(folder), f"vllm-{VERSION}"],
            env={**os.environ, **dials, TAG: str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def engine(self) -> list[psutil.Process]:
        """All of vLLM's processes, its watcher included."""
        found = processes.tagged(TAG, {str(self._folder)}.__contains__)
        return [process for process in found if process.pid != self.process.pid]


@pytest.mark.parametrize("when", ["loading", "up"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_of_it_stays(tmp_path: Path, temp: Path, number: signal.Signals, when: str) -> None:
    dials = {"VLLM_DOUBLE_START_S": "600"} if when == "loading" else {"VLLM_DOUBLE_TOKEN_S": "600"}
    making = Making(tmp_path, **dials)
    try:
        wait_for((tmp_path / "vllm.log").exists)
        if when == "loading":
            wait_for(lambda: any("serve" in process.cmdline() for process in making.engine()))
        else:
            wait_for(lambda: "Starting vLLM server" in (tmp_path / "vllm.log").read_text())
        segments = watcher.segments(process.pid for process in making.engine())
        assert bool(segments) == (when == "up")
        making.process.send_signal(number)
        said, _ = making.process.communicate(timeout=HANG_S)
        wait_for(lambda: not making.engine())
        wait_for(lambda: not list(temp.iterdir()))
    finally:
        for process in making.engine():
            process.kill()
    assert not [path for path in segments if Path(path).exists()]
    if number is not signal.SIGKILL:
        assert said.endswith("KeyboardInterrupt\n"), "as Ctrl-C, for whoever called it"


def test_one_that_is_made_leaves_nothing_but_its_file(tmp_path: Path, temp: Path) -> None:
    making = Making(tmp_path)
    said, _ = making.process.communicate(timeout=HANG_S)
    assert making.process.returncode == 0, said
    assert Path(said.strip()).parent == tmp_path / "model"
    assert making.engine() == []
    assert list(temp.iterdir()) == []


def test_a_vllm_that_fails_is_named_by_its_error(tmp_path: Path, temp: Path) -> None:
    making = Making(tmp_path, VLLM_DOUBLE_FAIL="ValueError: no such layer")
    said, _ = making.process.communicate(timeout=HANG_S)
    assert making.process.returncode == 1
    assert "vLLM ended with status 1: ValueError: no such layer" in said
    assert list(temp.iterdir()) == []
