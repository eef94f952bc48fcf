"""What the end-to-end tests share: `coral` commands as processes, telemetry, and looking on.

Nothing here knows how a part works. It starts them, kills them, finds what is left of them, and reads topics.
"""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import psutil
from aiokafka import AIOKafkaProducer

from agents.bus import Bus, client_args, read_to_end
from agents.local_process import TAG
from schemas import codec, topics
from schemas.events import DeadLetter
from schemas.settings import Settings
from schemas.telemetry import TelemetrySample

REPO = Path(__file__).resolve().parents[2]
HANG_S = 150.0
"""Guard against hangs on a busy machine, not a promise."""
STATE_DIR = "CORAL_STATE_DIR"


def until(seen: Callable[[], object], what: str, hang_s: float = HANG_S) -> None:
    """Look again and again until `seen` holds."""
    end = time.monotonic() + hang_s
    while not seen():
        assert time.monotonic() < end, f"not seen within {hang_s:g} s: {what}"
        time.sleep(0.25)


# --- processes -------------------------------------------------------------------------------------
def coral(
    *arguments: str, env: Mapping[str, str], out: Path, err: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start one `coral` command in a session of its own; its output is appended to these files."""
    with out.open("ab") as stdout, (err or out).open("ab") as stderr:
        return subprocess.Popen(
            [sys.executable, "-m", "streams.cli", *arguments],
            cwd=REPO,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )


def ask(*arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run one `coral` command to its end."""
    command = [sys.executable, "-m", "streams.cli", *arguments]
    return subprocess.run(
        command,
        cwd=REPO,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def members(state_dir: Path) -> list[psutil.Process]:
    """Every process, whoever its parent is by now, whose environment puts its state below a folder."""
    return [process for process in psutil.process_iter() if _is_below(process, state_dir)]


def _is_below(process: psutil.Process, folder: Path) -> bool:
    state = _environment(process).get(STATE_DIR)
    return state is not None and Path(state).is_relative_to(folder)


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return {} if process.status() == psutil.STATUS_ZOMBIE else process.environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return {}  # ended meanwhile, or somebody else's


def local_nodes(state_dir: Path) -> dict[str, list[int]]:
    """Claim -> the processes that the local cloud started for it; more than one is one too many."""
    found: dict[str, list[int]] = {}
    for process in members(state_dir):
        tag = _environment(process).get(TAG)
        if tag is not None and _leads_a_session(process):
            found.setdefault(Path(tag).name, []).append(process.pid)
    return found


def _leads_a_session(process: psutil.Process) -> bool:
    try:
        return os.getsid(process.pid) == process.pid
    except ProcessLookupError:
        return False


def listening() -> dict[int, int | None]:
    """TCP port -> process, of everything that listens on this machine."""
    found = psutil.net_connections("tcp")
    return {c.laddr.port: c.pid for c in found if c.laddr and c.status == psutil.CONN_LISTEN}


def ports_of(processes: list[psutil.Process]) -> set[int]:
    pids = {process.pid for process in processes}
    return {port for port, pid in listening().items() if pid in pids}


def end_all(state_dir: Path) -> None:
    """SIGKILL whatever is left of a test: nothing of it may outlive it."""
    for process in members(state_dir):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    until(lambda: not members(state_dir), "the end of the rig's processes")


# --- Kafka -----------------------------------------------------------------------------------------
async def write_raw(
    settings: Settings, topic: str, value: bytes | None, headers: codec.Headers, key: bytes | None = None
) -> tuple[str, int, int]:
    """Write a message as it is. Returns where it stands: topic, partition, offset."""
    producer = AIOKafkaProducer(**client_args(settings.kafka))
    await producer.start()
    try:
        written = await producer.send_and_wait(topic, value, key=key, headers=headers)
    finally:
        await producer.stop()
    return written.topic, written.partition, written.offset


def dead_letters(settings: Settings) -> list[DeadLetter]:
    records = asyncio.run(read_to_end(settings.kafka, settings.topic(topics.DEADLETTER)))
    letters = [codec.decode(topics.DEADLETTER, r.value, r.headers) for r in records]
    return [letter for letter in letters if isinstance(letter, DeadLetter)]


class Traffic:
    """A router's telemetry, every second: what its clients offer. `rate` (requests/s) may change any time."""

    def __init__(self, settings: Settings, model: str, rate: int) -> None:
        self.rate = rate
        self._model = model
        self._settings = settings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._play()), name="traffic")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(HANG_S)

    async def _play(self) -> None:
        async with Bus(self._settings.kafka, self._settings.topic_prefix, "router/test") as bus:
            second = int(time.time())
            while not self._stop.is_set():
                said = TelemetrySample(
                    source="router",
                    model=self._model,
                    slo_class="interactive",
                    at_ms=1000 * second,
                    offered=self.rate,
                )
                await bus.send(topics.TELEMETRY, said, key=said.model, event_id=said.id)
                second += 1
                await asyncio.sleep(max(0.0, second - time.time()))
