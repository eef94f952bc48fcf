"""Apache Kafka as a local Java process: one KRaft node on a loopback port, gone when its starter is.

Figures (2 cores, Java 17), once the jars are there: 5 s from nothing to an answer, 4 s on existing data, 380
MB resident; SIGTERM to gone 0.5-3 s; start after SIGKILL 13 s, as the new process waits out the old session.
"""

import base64
import logging
import os
import signal
import string
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Literal

from agents import watcher
from agents.kafka_jars import KAFKA_FILES, fetch_jars, find_java
from agents.kafka_probe import BrokerUnavailable, free_ports, is_free, wait_until_answers

log = logging.getLogger(__name__)

READY_TIMEOUT_S = 90.0
GRACE_S = 15.0
JVM = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(frozen=True)
class Listener:
    """One more door of the broker, beside the plain one."""

    protocol: Literal["SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    """No two listeners have the same."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Kafka's, without their prefix `listener.name.NAME.`."""


class LocalBroker:
    """One broker whose ports and data stay the same over `stop`, `kill` and `start`. Every method blocks.

    Without `data_dir` the data lies in a temporary folder that `close` removes (or the watcher, if this
    process dies before). The log is kept: in `data_dir`, else below `cache_dir`/kafka/logs.

    Args:
        listeners: more ways in; the plain one stays. `secured` has their addresses by protocol.
        scram: name -> password of users for SCRAM-SHA-512, made with fresh data.
    """

    def __init__(
        self,
        cache_dir: Path,
        data_dir: Path | None = None,
        *,
        listeners: Sequence[Listener] = (),
        scram: Mapping[str, str] | None = None,
    ) -> None:
        """Raises BrokerUnavailable if Java, or Maven while the jars are missing, cannot be had."""
        self._java = find_java()
        self._jars = fetch_jars(cache_dir)
        self.port, self._controller_port, *more = free_ports(2 + len(listeners))
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._listeners = listeners
        self._scram = scram or {}
        self.secured: dict[str, str] = {
            listener.protocol: f"127.0.0.1:{port}" for listener, port in zip(listeners, more, strict=True)
        }
        self._temporary = data_dir is None
        self.data_dir = (data_dir or Path(tempfile.mkdtemp(prefix="coral-kafka-"))).resolve()
        logs = self._jars.parent / "logs" if self._temporary else self.data_dir
        logs.mkdir(parents=True, exist_ok=True)
        self.log_path = logs / f"kafka-{os.getpid()}-{self.port}.log"
        self._watcher: subprocess.Popen[bytes] | None = None
        self.pid: int | None = None
        """The Java process, while there is one."""

    @property
    def running(self) -> bool:
        return self._watcher is not None and self._watcher.poll() is None

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start and wait until it answers. Raises BrokerUnavailable, with the log's end, if it does not."""
        if self.running:
            raise RuntimeError(f"the broker at {self.bootstrap} is running")
        if not is_free(self.port):
            # Else another's broker on this port would answer for ours.
            raise BrokerUnavailable(f"port {self.port} is taken")
        config = self._write_config()
        if not (self.data_dir / "log" / "meta.properties").exists():
            self._format(config)
        self._spawn(config)
        if not wait_until_answers(self.bootstrap, timeout_s, lambda: self.running):
            self.kill()
            raise BrokerUnavailable(f"Kafka did not start; {self.log_path} ends:\n{self._log_end()}")

    def stop(self) -> None:
        """SIGTERM, after 15 s SIGKILL; returns when the process is gone."""
        if self._watcher is not None and self._watcher.stdin is not None:
            self._watcher.stdin.close()
        self._reap()

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        if self.running and self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def close(self) -> None:
        """Stop it for good, and remove the data if it was temporary."""
        self.stop()
        if self._temporary:
            rmtree(self.data_dir, ignore_errors=True)

    def _reap(self) -> None:
        if self._watcher is None:
            return
        try:
            self._watcher.wait(GRACE_S + 10)
        except subprocess.TimeoutExpired:  # takes Java with it (watcher.py)
            self._watcher.kill()
            self._watcher.wait()
        for pipe in (self._watcher.stdin, self._watcher.stdout):
            if pipe is not None:
                pipe.close()
        self._watcher = self.pid = None

    def _write_config(self) -> Path:
        template = string.Template((KAFKA_FILES / "server.properties").read_text())
        config = self.data_dir / "server.properties"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        config.write_text(
            template.substitute(
                listen="127.0.0.1",
                port=self.port,
                controller_port=self._controller_port,
                data=self.data_dir / "log",
            )
            + "".join(f"{name}={value}\n" for name, value in self._more_properties().items())
        )
        return config

    def _more_properties(self) -> dict[str, str]:
        """What the listeners need, after the template's lines: of two equal names the later one holds."""
        if not self._listeners:
            return {}
        addresses = {"PLAINTEXT": self.bootstrap, **self.secured}
        doors = ",".join(f"{name}://{address}" for name, address in addresses.items())
        protocols = ["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in addresses)]
        return {
            "listeners": f"{doors},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": doors,
            "listener.security.protocol.map": ",".join(protocols),
            **{
                f"listener.name.{listener.protocol.lower()}.{name}": value
                for listener in self._listeners
                for name, value in listener.properties.items()
            },
        }

    def _command(self, main: str, *arguments: str) -> list[str]:
        logging_config = f"-Dlog4j2.configurationFile=file:{KAFKA_FILES / 'log4j2.properties'}"
        return [self._java, *JVM, logging_config, "-cp", f"{self._jars}/*", main, *arguments]

    def _format(self, config: Path) -> None:
        # As org.apache.kafka.common.Uuid prints it; a leading dash would read as an option.
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        users = [f'SCRAM-SHA-512=[name="{name}",password="{word}"]' for name, word in self._scram.items()]
        form = ("format", "-t", cluster, "-c", str(config), *(f"--add-scram={user}" for user in users))
        command = self._command("kafka.tools.StorageTool", *form)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BrokerUnavailable(f"Kafka's data folder could not be formatted: {done.stdout}{done.stderr}")

    def _spawn(self, config: Path) -> None:
        watch = [sys.executable, "-I", "-S", watcher.__file__, "--parent", str(os.getpid())]
        watch += ["--grace", str(GRACE_S)]
        if self._temporary:
            watch += ["--litter", str(self.data_dir)]
        with self.log_path.open("ab") as kafka_log:
            self._watcher = subprocess.Popen(
                [*watch, "--", *self._command("kafka.Kafka", str(config))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=kafka_log,
                # Ctrl-C in the terminal reaches us alone: the broker stops after those who talk to it.
                start_new_session=True,
            )
        # An empty line: the watcher failed before it had a child; then `running` is false.
        told = self._watcher.stdout.readline() if self._watcher.stdout else b""
        self.pid = int(told) if told.strip() else None

    def _log_end(self, lines: int = 15) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
