"""However `coral demo` ends, nothing of it stays: no process, and no port bound."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.rig import HANG_S, STATE_DIR, coral, end_all, listening, local_nodes, members, ports_of, until

INTERRUPTED = 130

pytestmark = [pytest.mark.kafka, pytest.mark.chaos, pytest.mark.timeout(600)]


class Demo:
    """A demo of the test's own, with a broker of its own."""

    def __init__(self, folder: Path) -> None:
        self.state_dir = folder / "state"
        self._folder, self._starts = folder, 0
        self._env = {STATE_DIR: str(self.state_dir), "CORAL_BROKER": "local"}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def _out(self) -> Path:
        return self._folder / f"out{self._starts}"

    @property
    def _err(self) -> Path:
        return self._folder / f"err{self._starts}"

    def start(self) -> None:
        self._starts += 1
        self.process = coral("demo", "--json", env=self._env, out=self._out, err=self._err)

    def start_as_a_script_does(self) -> None:
        """With `&`: a shell without job control has its background processes ignore SIGINT."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.start()
        finally:
            signal.signal(signal.SIGINT, before)

    def until_it_has_its_folder(self) -> None:
        self._until((self.state_dir / "demo").exists, "its folder")

    def until_it_serves(self) -> None:
        self._until(lambda: " serving" in self._err.read_text(), "a plan that serves")

    def until_it_has_local_nodes(self) -> None:
        self._until(lambda: local_nodes(self.state_dir), "a node of the local cloud")

    def _until(self, seen: Callable[[], object], what: str) -> None:
        def still_seen() -> object:
            assert self.process is not None
            assert self.process.poll() is None, self._err.read_text()
            return seen()

        until(still_seen, what)

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(HANG_S)

    def said(self) -> str:
        return self._err.read_text()

    def summary(self) -> dict[str, object]:
        said: dict[str, object] = json.loads(self._out.read_text().splitlines()[-1])
        return said

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.end(signal.SIGKILL)
        end_all(self.state_dir)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    made = Demo(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_end_it_sums_up_and_leaves_nothing(demo: Demo, number: signal.Signals) -> None:
    demo.start()
    demo.until_it_serves()
    ports = ports_of(members(demo.state_dir))
    assert len(ports) >= 2, "the broker's and those of the engines' doors"
    assert demo.end(number) == 0
    summary = demo.summary()
    assert summary["replay_equal"] is True
    assert summary["plans"] > 0  # type: ignore[operator]
    assert members(demo.state_dir) == []
    assert not ports & listening().keys()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_end_while_it_starts_it_leaves_nothing(demo: Demo, number: signal.Signals) -> None:
    demo.start_as_a_script_does()
    demo.until_it_has_its_folder()
    assert demo.end(number) == INTERRUPTED
    assert demo.said().endswith("stopped while starting\n")
    assert "Traceback" not in demo.said()
    assert members(demo.state_dir) == []


def test_killed_it_takes_its_parts_along_and_the_next_one_ends_its_nodes(demo: Demo) -> None:
    """The local cloud's nodes outlive it, as a cloud's do; whoever starts next in the folder ends them."""
    demo.start()
    demo.until_it_serves()
    demo.until_it_has_local_nodes()
    ports = ports_of(members(demo.state_dir))
    demo.end(signal.SIGKILL)
    killed_s = time.monotonic()

    def orphans() -> set[int]:
        nodes = {pid for processes in local_nodes(demo.state_dir).values() for pid in processes}
        return {process.pid for process in members(demo.state_dir)} - nodes

    until(lambda: not orphans(), "the end of its parts and its broker")
    print(f"parts and broker gone {time.monotonic() - killed_s:.1f} s after SIGKILL")
    left = {pid for processes in local_nodes(demo.state_dir).values() for pid in processes}
    assert left, "nodes of the local cloud do not end with their starter"
    assert ports & listening().keys() <= ports_of(members(demo.state_dir))

    demo.start()
    demo.until_it_serves()
    assert not left & {process.pid for process in members(demo.state_dir)}
    assert demo.end(signal.SIGINT) == 0
    assert members(demo.state_dir) == []
