"""`coral demo --engine vllm`: real engines, real answers, and nothing of them stays, however it ends."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents import processes, watcher
from agents.guard_files import TAG
from tests.e2e.demo_rig import Demo
from tests.e2e.rig import listening, members, ports_of, until

pytestmark = [pytest.mark.kafka, pytest.mark.vllm, pytest.mark.timeout(1500)]

START_S = 600.0
"""Guard against hangs: two starts of vLLM, one for the reference, on a busy machine."""
ANSWERS_S = 20.0
"""How long clients are let ask once an instance serves."""


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    made = Demo(tmp_path, "--engine", "vllm")
    try:
        yield made
    finally:
        made.close()


def engines(demo: Demo) -> set[int]:
    """The processes of guards and of what runs under them: `CORAL_RANK` names their rank."""
    return {
        process.pid for process in processes.tagged(TAG, lambda tag: tag.startswith(f"{demo.state_dir}/"))
    }


def test_clients_get_answers_and_a_killed_demo_leaves_its_engines_to_the_next(demo: Demo) -> None:
    demo.start()
    demo.until(lambda: len(engines(demo)) > 1, "a guard and its vLLM", START_S)
    demo.end(signal.SIGKILL)
    until(lambda: len(members(demo.state_dir)) == len(engines(demo)), "the end of all but the engines")
    left = engines(demo)
    assert left, "engines outlive whoever started them"

    demo.start()
    demo.until_it_serves(START_S)
    assert not left & {process.pid for process in members(demo.state_dir)}
    ports = ports_of(members(demo.state_dir))
    shared = watcher.segments(engines(demo))
    demo.let_run(ANSWERS_S)
    assert demo.end(signal.SIGTERM) == 0, demo.said()
    summary = demo.summary()
    print(
        {name: summary[name] for name in ("requests_served", "requests_refused", "output_tokens", "start_s")}
    )
    assert summary["request_errors"] == {}
    assert summary["requests_served"] > 0  # type: ignore[operator]
    assert summary["output_tokens"] > summary["requests_served"]  # type: ignore[operator]
    assert summary["start_s"], "no start was measured"
    assert summary["replay_equal"] is True
    assert members(demo.state_dir) == []
    assert not ports & listening().keys()
    assert not [name for name in shared if Path(name).exists()]
