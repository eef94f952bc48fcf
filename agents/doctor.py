"""Looks whether a node has what vLLM needs, and says what is wrong in words: `coral doctor vllm`.

    for finding in check(command, platform="cpu", models={"tiny": Path("...")}, address="127.0.0.1"):
        print(finding.level, finding.what, finding.text)

Nothing is started but vLLM's own interpreter, once; it takes about as long as the import of vLLM.
`coral model revision PATH` is `agents.weights.revision_of(path)`, `coral reference make PATH` is
`agents.reference_make.make(path, node, vllm_args, log=..., tp=...)`.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import psutil

from agents.engine import EngineError
from agents.inventory import Machine, survey
from agents.revisions import OURS, files_of, known_revision
from agents.vllm import engine_version, interface_of
from schemas.base import Frozen

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  where Linux has it; nothing is written
SHARED_MEMORY_GB = 1.0
"""vLLM's processes hand tensors over there; containers often have 64 MB."""
MEMORY_GB = 4.0
"""Of an engine on the CPU: three processes, the weights of a small model and its KV cache."""
IMPORT_S = 300.0

_ASK = """
import importlib.util, json, torch
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser
make_arg_parser(FlexibleArgumentParser())
nixl = "none" if importlib.util.find_spec("nixl") is None else "broken"
if nixl == "broken":
    try:
        import nixl._api
        nixl = "works"
    except Exception as error:
        nixl = f"{type(error).__name__}: {error}"
print()
print(json.dumps({"torch": torch.__version__, "platform": current_platform.device_type, "nixl": nixl}))
"""
"""Run by vLLM's interpreter; the last line is the answer."""


class Finding(Frozen):
    """One thing looked at: `bad` ones keep engines from starting, a `note` may matter to somebody."""

    what: str
    level: Literal["ok", "note", "bad"]
    text: str


def check(
    command: Path | None,
    *,
    platform: Literal["cuda", "cpu"],
    models: Mapping[str, Path],
    address: str,
    store: Path | None = None,
    machine: Machine | None = None,
) -> list[Finding]:
    """Everything that a node's settings promise, looked at; blocks for as long as vLLM takes to import.

    Args:
        command: the `vllm` command of the settings; None if none is set.
        models: checkpoint -> its folder.
        address: of this machine, as other nodes reach it.
        store: where weights are pulled from.
        machine: where GPUs are looked for; None asks the driver.
    """
    return [
        *_command(command, platform),
        *_models(models, store),
        _address(address),
        *(_gpus(machine) if platform == "cuda" else _memory()),
        _shared_memory(),
    ]


def _command(command: Path | None, platform: str) -> Iterator[Finding]:
    if command is None:
        yield Finding(what="vllm", level="bad", text="node.vllm is not set, expected the path of `vllm`")
        return
    try:
        version = engine_version(command)
    except EngineError as error:
        yield Finding(what="vllm", level="bad", text=str(error))
        return
    yield Finding(what="vllm", level="ok", text=f"{version} at {command}")
    try:
        told = _told(command.parent / "python")
    except EngineError as error:
        yield Finding(what="import", level="bad", text=str(error))
        return
    yield Finding(what="import", level="ok", text=f"its parser works, with torch {told['torch']}")
    yield _platform(str(told["platform"]), platform)
    yield _nixl(str(told["nixl"]))


def _told(python: Path) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [str(python), "-c", _ASK], capture_output=True, text=True, timeout=IMPORT_S, check=True
        )
        told: dict[str, Any] = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"vLLM was not imported within {IMPORT_S:g} s") from error
    except subprocess.CalledProcessError as error:
        raise EngineError(f"vLLM does not import: {error.stderr.strip().rpartition(chr(10))[2]}") from error
    except json.JSONDecodeError as error:
        raise EngineError(f"vLLM's interpreter said no JSON at its end: {done.stdout[-200:]!r}") from error
    return told


def _platform(has: str, expected: str) -> Finding:
    if has == expected:
        return Finding(what="platform", level="ok", text=has)
    text = f"this vLLM runs on {has or 'nothing here'}, expected {expected} as node.platform says"
    return Finding(what="platform", level="bad", text=text)


def _nixl(told: str) -> Finding:
    if told == "works":
        return Finding(what="nixl", level="ok", text="prefill and decode instances can hand KV caches over")
    why = "not installed" if told == "none" else told
    return Finding(what="nixl", level="note", text=f"{why}: no instances of phase prefill or decode here")


def _models(models: Mapping[str, Path], store: Path | None) -> Iterator[Finding]:
    for checkpoint, folder in sorted(models.items()):
        yield _model(checkpoint, folder)
    if store is not None:
        there = store.is_dir()
        count = sum(len(folder.name) == 64 for folder in store.iterdir()) if there else 0
        text = f"{count} revisions in {store}" if there else f"{store} is no folder"
        yield Finding(what="store", level="ok" if there else "bad", text=text)
    elif not models:
        yield Finding(what="models", level="bad", text="neither node.models nor node.store is set")


def _model(checkpoint: str, folder: Path) -> Finding:
    what = f"model {checkpoint}"
    try:
        files = files_of(folder)
    except OSError as error:
        return Finding(what=what, level="bad", text=str(error))
    if "config.json" not in files:
        return Finding(what=what, level="bad", text=f"{folder} has no config.json, expected a checkpoint's")
    revision = known_revision(folder) or "not read yet (`coral model revision`)"
    prefix = f"{OURS}reference-"
    references = [path.stem.removeprefix(prefix) for path in sorted(folder.glob(f"{prefix}*.json"))]
    if not references:
        text = (
            f"revision {revision}; no reference (`coral reference make`), so it is refused unless unverified"
        )
        return Finding(what=what, level="note", text=text)
    return Finding(what=what, level="ok", text=f"revision {revision}; references: {', '.join(references)}")


def _address(address: str) -> Finding:
    try:
        return Finding(what="address", level="ok", text=f"{address} on {interface_of(address)}")
    except (EngineError, OSError) as error:
        return Finding(what="address", level="bad", text=f"node.address: {error}")


def _gpus(machine: Machine | None) -> Iterator[Finding]:
    try:
        seen = survey(machine)
    except OSError as error:
        yield Finding(what="gpus", level="bad", text=str(error))
        return
    if not seen.devices:
        yield Finding(
            what="gpus", level="bad", text="the driver shows none, expected some (node.platform: cuda)"
        )
    for device in seen.devices:
        free_gb = device.memory_gb - device.used_gb
        busy = f", held by processes {list(device.pids)}" if device.pids else ""
        text = f"{device.name}, {free_gb:.1f} of {device.memory_gb:.1f} GB free{busy}"
        level: Literal["ok", "note"] = "note" if device.pids else "ok"
        yield Finding(what=f"gpu {device.index}", level=level, text=text)
    for fault in seen.faults:
        yield Finding(what="gpus", level="bad", text=fault)


def _memory() -> Iterator[Finding]:
    free_gb = psutil.virtual_memory().available / 1e9
    text = f"{free_gb:.1f} GB free; an engine on the CPU takes about {MEMORY_GB:g}"
    yield Finding(what="memory", level="ok" if free_gb >= MEMORY_GB else "bad", text=text)


def _shared_memory() -> Finding:
    if not SHARED_MEMORY.is_dir():
        return Finding(what="shared memory", level="note", text=f"no {SHARED_MEMORY} on this system")
    total_gb = shutil.disk_usage(SHARED_MEMORY).total / 1e9
    text = f"{total_gb:.1f} GB at {SHARED_MEMORY}, expected {SHARED_MEMORY_GB:g} at least"
    return Finding(what="shared memory", level="ok" if total_gb >= SHARED_MEMORY_GB else "bad", text=text)
