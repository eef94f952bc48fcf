"""However `coral demo` ends, nothing of it stays: no process, and no port bound."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.interrupts import INTERRUPTED
from tests.e2e.demo_rig import Demo
from tests.e2e.rig import listening, local_nodes, members, ports_of, until

pytestmark = [pytest.mark.kafka, pytest.mark.chaos, pytest.mark.timeout(600)]


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    made = Demo(tmp_path)
    try:
        yield made
    finally:
        made.close()


def told_to_end_it_sums_up_and_leaves_nothing(demo: Demo, number: signal.Signals) -> None:
    """One that serves. Of the tests below three end so, each by another signal."""
    ports = ports_of(members(demo.state_dir))
    assert len(ports) >= 2, "the broker's and those of the engines' doors"
    assert demo.end(number) == 0
    summary = demo.summary()
    assert summary["replay_equal"] is True
    assert summary["plans"] > 0  # type: ignore[operator]
    assert members(demo.state_dir) == []
    assert not ports & listening().keys()


def test_it_ends_with_its_terminal(demo: Demo) -> None:
    demo.start()
    demo.until_it_serves()
    told_to_end_it_sums_up_and_leaves_nothing(demo, signal.SIGHUP)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_told_to_end_while_it_starts_it_leaves_nothing(demo: Demo, number: signal.Signals) -> None:
    demo.start_as_a_script_does()
    demo.until_it_has_its_folder()
    assert demo.end(number) == INTERRUPTED
    assert demo.said().endswith("stopped while starting\n")
    assert "Traceback" not in demo.said()
    assert members(demo.state_dir) == []


def test_with_nohup_it_outlives_its_terminal(demo: Demo) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        demo.start()
    finally:
        signal.signal(signal.SIGHUP, before)
    demo.until_it_has_its_folder()
    demo.hear(signal.SIGHUP)
    demo.until_it_serves()
    demo.hear(signal.SIGHUP)
    demo.let_run(1.0)
    told_to_end_it_sums_up_and_leaves_nothing(demo, signal.SIGTERM)


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
    told_to_end_it_sums_up_and_leaves_nothing(demo, signal.SIGINT)
