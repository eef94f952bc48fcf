"""`coral demo --engine vllm`: answers from engines behind guards, and nothing of them stays, however it ends.

On vLLM itself where that must be there (CORAL_REQUIRE), else on its double, which starts in a second.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents import processes, tiny_model, watcher
from agents.broker import DEFAULT_CACHE
from agents.guard_files import TAG
from agents.vllm_double import write_command
from tests.e2e.demo_rig import Demo
from tests.e2e.rig import listening, members, ports_of, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(1500)]

START_S = 600.0
"""Guard against hangs: two starts of vLLM, one for the reference, on a busy machine."""
ANSWERS_S = 20.0
"""How long clients are let ask once an instance serves."""


REAL = pytest.param("vllm", marks=pytest.mark.vllm)
ENGINES = [REAL if "vllm" in os.environ.get("CORAL_REQUIRE", "") else "double"]


@pytest.fixture(params=ENGINES)
def demo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Demo]:
    env = of_the_double(tmp_path) if request.param == "double" else installed()
    made = Demo(tmp_path, "--engine", "vllm", env=env)
    try:
        yield made
    finally:
        made.close()


def of_the_double(folder: Path) -> dict[str, str]:
    tiny_model.make(folder / "tiny")
    models = json.dumps({"tiny": str(folder / "tiny")})
    return {"CORAL_NODE__VLLM": str(write_command(folder / "bin")), "CORAL_NODE__MODELS": models}


def installed() -> dict[str, str]:
    if not (DEFAULT_CACHE / "vllm" / "bin" / "vllm").exists():
        pytest.skip("no vLLM here: `make vllm` installs it")
    return {}


def engines(demo: Demo) -> set[int]:
    """The processes of guards and of what runs under them: `CORAL_RANK` names their rank."""

    def of_a_rank(tag: str) -> bool:  # and not of the reference, which ends with the demo
        return tag.startswith(f"{demo.state_dir}/") and "/guards/" in tag

    return {process.pid for process in processes.tagged(TAG, of_a_rank)}


def others(demo: Demo) -> set[int]:
    """All else that the demo started."""
    return {process.pid for process in members(demo.state_dir)} - engines(demo)


def test_clients_get_answers_and_a_killed_demo_leaves_its_engines_to_the_next(demo: Demo) -> None:
    demo.start()
    demo.until(lambda: len(engines(demo)) > 1, "a guard and its vLLM", START_S)
    demo.end(signal.SIGKILL)
    until(lambda: not others(demo), "the end of all but the engines")
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
