"""The command line and environment of one vLLM process, from one rank of a plan.

Upstream's `vllm serve`, in its own environment; nothing here depends on which build that is. A stage is a
**node rank** of vLLM's multi-node pipeline, several of them on one machine if need be, each with its own
devices. The head (node rank 0) serves HTTP on loopback; the others are headless.

`launch` and `facts` are pure; `engine_version` and `interface_of` ask the machine, once an agent's life.
"""

import json
import math
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import psutil

from agents.engine import EngineError, EngineSpec
from schemas.base import Frozen
from schemas.catalog import Phase, Positive, Whole
from schemas.plans import Instance, Rank

KV_ROLES: Mapping[Phase, str] = {"prefill": "kv_producer", "decode": "kv_consumer"}
"""Phases whose instances hand KV caches over, and what NIXL calls them."""

BESIDE_GB = 2.0
"""Per device, beside weights and KV cache: activations, graphs, buffers; as the performance model assumes."""
GREATEST_SHARE = 0.95
"""Of a device's memory; its driver has the rest."""

_HEAD = ("--host", "127.0.0.1", "--enable-prompt-tokens-details")
"""On loopback; usage tells cached tokens too, which routers report."""
_SWITCHES = frozenset({"enable-prefix-caching"})
_VERSION_S = 60.0
"""How long an interpreter on a cold disk may take to tell a version."""


class VllmNode(Frozen):
    """What this machine has for vLLM, and how it runs it."""

    command: Path
    """The `vllm` executable of vLLM's own environment."""
    version: str
    """Engine version, such as `vllm-0.32.0+cpu` (`engine_version`)."""
    platform: Literal["cuda", "cpu"]
    device_memory_gb: Positive
    """Of one device, in 10^9 bytes."""
    interface: str = "lo"
    """Network interface of this machine's address (`interface_of`)."""
    kv_cache_bytes: Whole | None = None
    """KV cache of one device; where it is None, vLLM takes a share of the device's memory."""
    stuck_after_s: Positive = 120.0
    """vLLM gives up on a step after so long."""


class Launch(Frozen):
    """One process to start: what it runs, and what is set on top of the inherited environment."""

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
        kv_port: where decode instances ask a prefill instance for its KV caches; unused in phase `both`.

    Raises:
        EngineError: an argument of the variant that vLLM would not understand (refusal `not_deployable`).
    """
    argv = [str(node.command), "serve", str(model), *_arguments(node, spec)]
    argv += ["--device-ids", ",".join(map(str, spec.rank.device_ids)), *_memory(node, spec)]
    argv += [
        "--shutdown-timeout",
        str(math.ceil(spec.instance.drain_deadline_ms / 1000)),
        "--uvicorn-log-level",
        "warning",
    ]
    if (stages := len(spec.instance.stages)) > 1:
        argv += ["--nnodes", str(stages), "--node-rank", str(spec.key.stage)]
        argv += ["--master-addr", _head_address(spec), "--master-port", str(master_port)]
    argv += [*_HEAD, "--port", str(http_port)] if spec.head else ["--headless"]
    return Launch(argv=tuple(argv), environment=_environment(node, spec, kv_port))


def facts(node: VllmNode, spec: EngineSpec) -> dict[str, str]:
    """What must be the same at all ranks of an instance; ranks that differ are healthy and wrong."""
    return {
        "engine": node.version,
        "partition": partition(spec.instance),
        "arguments": " ".join(_arguments(node, spec)),
    }


def partition(instance: Instance) -> str:
    """Layers of each stage, such as `1,3`."""
    return ",".join(str(stage.layers) for stage in instance.stages)


# --- arguments -------------------------------------------------------------------------------------
def _arguments(node: VllmNode, spec: EngineSpec) -> list[str]:
    """Those that all ranks of the instance have in common."""
    stages, tp = len(spec.instance.stages), spec.rank.tp
    argv = ["--served-model-name", spec.instance.service.model]
    argv += ["--tensor-parallel-size", str(tp), "--pipeline-parallel-size", str(stages)]
    if stages * tp > 1:
        argv += ["--distributed-executor-backend", "mp"]
    if node.platform == "cpu":  # Nothing is compiled, though not by `--enforce-eager`: pipelines die of it.
        argv += ["-cc.mode=1", "-cc.backend=eager"]
    for name, value in sorted(spec.template.vllm_args.items()):
        argv += _argument(name, value)
    if (role := KV_ROLES.get(spec.template.phase)) is not None:
        transfer = {"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": node.platform}
        argv += ["--kv-transfer-config", json.dumps(transfer)]
    return argv


def _argument(name: str, value: str) -> list[str]:
    if name not in _SWITCHES:
        return [f"--{name}", value]
    if value not in ("true", "false"):
        raise EngineError(f"vllm_args.{name}: {value!r}, expected true or false", "not_deployable")
    return [f"--{name}" if value == "true" else f"--no-{name}"]


def _memory(node: VllmNode, spec: EngineSpec) -> list[str]:
    """How much it may take: what the variant says, else what the template was rated with."""
    if node.kv_cache_bytes is not None:
        return ["--kv-cache-memory-bytes", str(node.kv_cache_bytes)]
    if node.platform == "cpu" or "gpu-memory-utilization" in spec.template.vllm_args:
        return []
    return ["--gpu-memory-utilization", f"{_share(node, spec.rank):.3f}"]


def _share(node: VllmNode, rank: Rank) -> float:
    needed_gb = rank.memory_gb / len(rank.device_ids) + BESIDE_GB
    return min(GREATEST_SHARE, needed_gb / node.device_memory_gb)


def _head_address(spec: EngineSpec) -> str:
    contact = spec.contacts.get(spec.instance.stages[0].ranks[0].claim)
    return spec.address if contact is None else contact.address


# --- environment -----------------------------------------------------------------------------------
def _environment(node: VllmNode, spec: EngineSpec, kv_port: int) -> dict[str, str]:
    environment = {
        "HF_HUB_OFFLINE": "1",  # Weights are on the disk; nothing is fetched behind our back.
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": spec.address,
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(math.ceil(node.stuck_after_s)),
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "2",
    }
    if spec.head:
        environment["VLLM_SERVER_DEV_MODE"] = "1"  # For `collective_rpc`, on loopback.
    if len(spec.instance.stages) > 1:
        environment["VLLM_PP_LAYER_PARTITION"] = partition(spec.instance)
        environment |= {"GLOO_SOCKET_IFNAME": node.interface, "NCCL_SOCKET_IFNAME": node.interface}
    if node.platform == "cuda":
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML's order, in which devices are claimed.
    if node.platform == "cpu":
        # One thread: on shared cores more of them spin and wait for each other.
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        # Else the first request for log-probabilities waits for a C++ compiler, longer than a step may take.
        environment["TORCHDYNAMO_DISABLE"] = "1"
    if spec.template.phase in KV_ROLES:
        environment |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": spec.address}
        environment |= {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(kv_port)}
        if node.platform == "cpu":
            environment |= {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": node.interface}
    return environment


# --- asked of the machine --------------------------------------------------------------------------
def engine_version(command: Path) -> str:
    """The version that `command`'s environment has installed, as `vllm-0.32.0`; torch is not imported.

    Raises:
        EngineError: there is none (refusal `engine_missing`).
    """
    python = command.parent / "python"
    ask = "from importlib.metadata import version; print(version('vllm'))"
    if not command.is_file():
        raise EngineError(f"{command} does not exist, expected the vllm command", "engine_missing")
    try:
        told = subprocess.run(
            [str(python), "-c", ask], capture_output=True, text=True, timeout=_VERSION_S, check=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{python} does not tell vLLM's version: {error}", "engine_missing") from error
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().rpartition("\n")[2]
        raise EngineError(f"no vLLM in {command.parent.parent}: {last}", "engine_missing") from error
    return f"vllm-{told.stdout.strip()}"


def interface_of(address: str) -> str:
    """The network interface that has `address`.

    Raises:
        EngineError: none has.
    """
    found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0]
    for interface, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == found for each in addresses):
            return interface
    raise EngineError(f"address {address}: no network interface of this machine has it")
