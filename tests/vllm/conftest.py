"""What tests on real vLLM share: its environment, and the tiny model with its reference. No servers.

| variable | meaning |
| --- | --- |
| CORAL_REQUIRE | with `vllm` in it, vLLM is installed where it is missing; without, its tests skip |
"""

import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.engine import EngineError
from agents.reference import load
from agents.reference_make import make
from agents.revisions import revision_of
from agents.vllm import VllmNode, engine_version

REPO = Path(__file__).resolve().parent.parent.parent
CACHE = REPO / ".cache"
KV_CACHE_BYTES = 64 << 20


@pytest.fixture(scope="session")
def vllm_env() -> Path:
    """The `vllm` command of an environment of its own, installed if need be (`scripts/vllm.sh`)."""
    command = CACHE / "vllm" / "bin" / "vllm"
    if not command.exists() and "vllm" not in os.environ.get("CORAL_REQUIRE", ""):
        pytest.skip("no vLLM in .cache/vllm; `make vllm` installs it")
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run(
        [REPO / "scripts" / "vllm.sh", sys.executable, uv, CACHE], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.fail(done.stderr, pytrace=False)
    return command


@pytest.fixture(scope="session")
def cpu_node(vllm_env: Path) -> VllmNode:
    """This machine, as an engine on the CPU sees it."""
    return VllmNode(
        command=vllm_env,
        version=engine_version(vllm_env),
        platform="cpu",
        device_memory_gb=8.0,
        kv_cache_bytes=KV_CACHE_BYTES,
        # A loaded machine of two cores may take that long over a first step.
        stuck_after_s=60.0,
    )


@pytest.fixture(scope="session")
def tiny_weights(vllm_env: Path) -> Path:
    """The tiny model's folder; whether it has a reference is left open."""
    return vllm_env.parent.parent.parent / "vllm-models" / "tiny"


@pytest.fixture(scope="session")
def tiny_model(cpu_node: VllmNode, tiny_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's folder with its reference, which one vLLM makes once for each version of either."""
    with _alone(tiny_weights.with_name("tiny.lock")):
        try:
            made = load(tiny_weights, revision_of(tiny_weights), "auto").engine == cpu_node.version
        except EngineError:
            made = False
        if not made:
            log = tmp_path_factory.mktemp("reference") / "vllm.log"
            asyncio.run(make(tiny_weights, cpu_node, {}, log=log))
    return tiny_weights


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One of all test processes at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
