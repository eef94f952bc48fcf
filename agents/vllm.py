"""The command line and environment of one vLLM process, from one rank of a plan. Pure.

Upstream's `vllm serve` in its own environment; what was tried, and what it will not tell: see the tests in
tests/vllm. A stage is a *node rank* of vLLM's multi-node pipeline; several on one machine differ in their
device ids. The head (node rank 0) has the HTTP server, on loopback; the others are headless.
"""

from pathlib import Path
from typing import Literal

from agents.engine import EngineSpec
from schemas.base import Frozen
from schemas.catalog import Positive, Whole


class VllmNode(Frozen):
    """What this machine has for vLLM, and how it runs it."""

    command: Path
    """The `vllm` executable of vLLM's own environment."""
    version: str
    """Engine version, such as `vllm-0.32.0+cpu` (`engine_version`)."""
    platform: Literal["cuda", "cpu"]
    device_memory_gb: Positive
    """Of one device, in 10^9 bytes."""
    kv_cache_bytes: Whole | None = None
    """KV cache of one rank; needed on the CPU, where there is no device memory to take a share of."""
    stuck_after_s: Positive = 120.0
    """vLLM gives up on a step after so long."""
    drain_deadline_s: Positive = 600.0
    """SIGTERM lets open requests finish for so long."""


class Launch(Frozen):
    """One process to start: what it runs, and what is added to the inherited environment."""

    argv: tuple[str, ...]
    environment: dict[str, str]


def launch(
    node: VllmNode, spec: EngineSpec, model: Path, *, http_port: int, master_port: int, kv_port: int
) -> Launch:
    """How to start the rank that `spec` names.

    Args:
        model: folder of the weights; their public name is the service's model.
        http_port: where the head serves, on loopback. Others have no HTTP.
        master_port: where the ranks meet, on the head's machine; fresh for each attempt, the same for all
            ranks. Unused by an instance of one stage.
        kv_port: where prefill and decode instances shake hands about the KV cache; phase `both` has none.
    """
    raise NotImplementedError


def engine_version(command: Path) -> str:
    """The version that `command`'s environment has installed, as `vllm-0.32.0`; torch is not imported.

    Raises:
        EngineError: there is none (refusal `engine_missing`).
    """
    raise NotImplementedError
