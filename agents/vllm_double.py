"""A double of the `vllm` command: its command line, processes, endpoints and silences, without a model.

What it does not tell is as true to vLLM (0.32) as what it tells: a dead rank leaves streams hanging and
`/health` at 200 until the execute time-out; killed main processes leave workers behind; other ranks never end
by themselves; SIGTERM drains only with `--shutdown-timeout`; its sockets in the temporary folder stay there.
Its answers depend on the prompt alone, unless its ranks disagree about the partition: then they are wrong,
and nothing says so.

| variable | what it sets | default |
| --- | --- | --- |
| VLLM_DOUBLE_TOKEN_S | seconds a token | 0.01 |
| VLLM_DOUBLE_START_S | seconds until its processes are up | 0 |
| VLLM_DOUBLE_EXIT_S | seconds that a rank without HTTP takes to end on SIGTERM | 0.2 |
| VLLM_DOUBLE_FAIL | the error with which it ends instead of starting | none |
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import web

from agents.vllm_double_api import Api, Ranks, dial

VERSION = "0.32.0+double"
FAREWELL_S = 2.0
"""From the execute time-out to the end of the main process."""


def write_command(folder: Path) -> Path:
    """Make an environment of vLLM's shape in `folder`, with `vllm` and a `python` that tells its version."""
    folder.mkdir(parents=True, exist_ok=True)
    command, python = folder / "vllm", folder / "python"
    root = Path(__file__).parent.parent
    python.write_text(f"#!/bin/sh\necho {VERSION}\n")
    command.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(root)!r})\n"
        "from agents.vllm_double import main\nmain()\n"
    )
    for script in (command, python):
        script.chmod(0o755)
    return command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vllm", allow_abbrev=False)
    serve = parser.add_subparsers(dest="command", required=True).add_parser("serve", allow_abbrev=False)
    serve.add_argument("model", type=Path)
    serve.add_argument("--served-model-name", required=True)
    serve.add_argument("--nnodes", type=int, default=1)
    serve.add_argument("--node-rank", type=int, default=0)
    serve.add_argument("--master-addr", default="127.0.0.1")
    serve.add_argument("--master-port", type=int, default=29501)
    serve.add_argument("--device-ids", default="0")
    serve.add_argument("--shutdown-timeout", type=float, default=0)
    serve.add_argument("--headless", action="store_true")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000)
    return parser


# --- life --------------------------------------------------------------------------------------------------
async def _serve(given: argparse.Namespace, told: asyncio.Event) -> int:
    below = Ranks(given)
    api = Api(given, below)
    await asyncio.sleep(dial("START_S", 0.0))
    if await _first(up=below.start(), told=told.wait()) == "told":
        await below.end()
        return 0
    runner = web.AppRunner(api.application(), handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, given.host, given.port, shutdown_timeout=0.1).start()
    _log(f"Starting vLLM server on http://{given.host}:{given.port}")
    which = await _first(told=told.wait(), dead=api.dead.wait(), below=below.ended())
    if which == "below":
        _log("EngineDeadError: EngineCore encountered an issue.")
        return 1
    if which == "dead":
        await asyncio.sleep(FAREWELL_S)
        await below.end()
        return 0
    if given.shutdown_timeout == 0:  # the default: streams hang, and so does the process
        await below.end(signal.SIGKILL)
        await asyncio.Event().wait()
    api.draining = True
    with suppress(TimeoutError):
        await asyncio.wait_for(api.idle.wait(), given.shutdown_timeout)
    await asyncio.sleep(0.05)  # the last bytes may still be on their way
    await below.end()
    await runner.cleanup()
    return 0


async def _headless(given: argparse.Namespace, told: asyncio.Event) -> int:
    below = Ranks(given)
    await asyncio.sleep(dial("START_S", 0.0))
    starting = asyncio.create_task(below.start())
    await told.wait()  # whatever becomes of the other ranks
    starting.cancel()
    await below.end()
    await asyncio.sleep(dial("EXIT_S", 0.2))
    return 0


async def _first(**waits: Coroutine[Any, Any, object]) -> str:
    """The name of what comes first."""
    tasks = {asyncio.ensure_future(wait): name for name, wait in waits.items()}
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    return tasks[done.pop()]


def _log(text: str) -> None:
    print(f"(APIServer pid={os.getpid()}) INFO {text}", file=sys.stderr, flush=True)  # noqa: T201  its log


async def _run(given: argparse.Namespace) -> int:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    return await (_headless if given.headless else _serve)(given, told)


def main() -> None:
    """Be `vllm serve ...`; arguments that only a model would need are taken and ignored."""
    given, _ = _parser().parse_known_args()
    fault = os.environ.get("VLLM_DOUBLE_FAIL")
    if fault is None and not given.model.is_dir():
        fault = f"ValueError: {given.model} is not a folder of weights"
    if fault is not None:
        _log(fault)
        sys.exit(1)
    talk = socket.socket(socket.AF_UNIX)  # open for life, as those to its processes
    talk.bind(f"{os.environ.get('VLLM_RPC_BASE_PATH', tempfile.gettempdir())}/{uuid4()}")
    # Not sys.exit: a thread of asyncio's may still wait for a process that never ends.
    os._exit(asyncio.run(_run(given)))


if __name__ == "__main__":
    main()
