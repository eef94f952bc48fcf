"""Every kind of command line that we make, through vLLM's own parser and configuration check."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agents.vllm import Launch, VllmNode, launch
from schemas.catalog import Phase
from schemas.vllm_arguments import ARGUMENTS
from tests.agents.shapes import Place, specs

pytestmark = [pytest.mark.vllm]

ONE: list[Place] = [("c1", (0,))]
SHAPES: dict[str, tuple[list[int], list[Place]]] = {
    "one stage": ([4], ONE),
    "one stage, two devices": ([4], [("c1", (0, 1))]),
    "uneven, over two nodes": ([1, 3], [("c1", (0,)), ("c2", (0,))]),
    "three stages": ([1, 2, 1], [("c1", (0,)), ("c2", (0,)), ("c3", (0,))]),
    "tp 2 x pp 2": ([2, 2], [("c1", (0, 1)), ("c2", (0, 1))]),
    "two stages on one node": ([1, 3], [("c1", (0,)), ("c1", (1,))]),
    "tp 2, two stages on one of two nodes": (
        [1, 2, 1],
        [("c1", (0, 1)), ("c1", (2, 3)), ("c2", (0, 1))],
    ),
}
PHASES: list[Phase] = ["both", "prefill", "decode"]
VALUES = {
    "dtype": "bfloat16",
    "quantization": "fp8",
    "kv-cache-dtype": "fp8",
    "block-size": "32",
    "max-model-len": "2048",
    "max-num-seqs": "16",
    "max-num-batched-tokens": "4096",
    "gpu-memory-utilization": "0.9",
    "enable-prefix-caching": "false",
}
"""A value for each argument that a variant may set."""


def launches(cpu: VllmNode, model: Path) -> Iterator[tuple[str, Launch]]:
    """Each command line with what it is."""
    # vLLM's build for the CPU checks these as well as it checks its own.
    cuda = cpu.model_copy(update={"platform": "cuda", "device_memory_gb": 24.0, "kv_cache_bytes": None})

    def ranks(node: VllmNode, shape: str, phase: Phase, args: Mapping[str, str]) -> Iterator[Launch]:
        layers, places = SHAPES[shape]
        for spec in specs(layers, places, phase=phase, vllm_args=args):
            yield launch(node, spec, model, http_port=8001, master_port=29001, kv_port=5601)

    for platform, node in (("cpu", cpu), ("cuda", cuda)):
        for shape in SHAPES:
            for stage, made in enumerate(ranks(node, shape, "both", {})):
                yield f"{platform}, {shape}, stage {stage}", made
        for phase in PHASES[1:]:
            yield f"{platform}, {phase}", next(ranks(node, "one stage", phase, {}))
        for name, value in VALUES.items():
            yield f"{platform}, {name} {value}", next(ranks(node, "one stage", "both", {name: value}))


def wrong(cpu: VllmNode, made: list[dict[str, Any]]) -> list[str | None]:
    """What vLLM says about each."""
    script = Path(__file__).with_name("parse.py")
    done = subprocess.run(
        [cpu.command.with_name("python"), script],
        input=json.dumps(made),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told: list[str | None] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_vllm_takes_every_command_line(cpu_node: VllmNode, tiny_weights: Path) -> None:
    assert VALUES.keys() == ARGUMENTS.keys(), "a value for each argument of the catalog's allow-list"
    made = dict(launches(cpu_node, tiny_weights))
    good = [launch.model_dump(mode="json") for launch in made.values()]
    # The check can fail: what is no option, and a node rank that cannot be.
    unknown = good[0] | {"argv": [*good[0]["argv"], "--no-such-option"]}
    misplaced = good[0] | {"argv": [*good[0]["argv"], "--nnodes", "2", "--node-rank", "5"]}
    *told, of_unknown, of_misplaced = wrong(cpu_node, [*good, unknown, misplaced])
    assert {name: why for name, why in zip(made, told, strict=True) if why is not None} == {}
    assert of_unknown is not None
    assert of_misplaced is not None
    print(f"{len(good)} command lines pass vLLM's parser and configuration check")
