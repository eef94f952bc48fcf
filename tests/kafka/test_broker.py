"""The local broker as a process: it answers, and it is gone when it should be, however its starter ended."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from agents.broker import DEFAULT_CACHE, BrokerUnavailable, LocalBroker, start_broker
from agents.kafka_probe import answers, is_free

pytestmark = pytest.mark.kafka

REPO = Path(__file__).resolve().parent.parent.parent


def eventually(holds: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.1)
    return holds()


async def write(bootstrap: str, topic: str, values: list[bytes]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        for value in values:
            await producer.send_and_wait(topic, value)


async def read(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    async with AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        return [(await consumer.getone()).value for _ in range(count)]


def test_the_sessions_broker_answers(kafka: str) -> None:
    assert answers(kafka)


def test_given_servers_are_taken_as_they_are(kafka: str) -> None:
    with start_broker(kafka) as broker:
        assert (broker.bootstrap, broker.kind, broker.log_path) == (kafka, "given", None)
    assert answers(kafka)


def test_stop_leaves_no_process_no_port_and_the_log(tmp_path: Path) -> None:
    with start_broker(prefer="local", data_dir=tmp_path) as broker:
        assert broker.kind == "local"
        port = int(broker.bootstrap.rpartition(":")[2])
        ours = psutil.Process().children(recursive=True)
        java = [
            process
            for process in ours
            if process.name() == "java" and str(tmp_path) in str(process.cmdline())
        ]
        assert len(java) == 1
        # Ctrl-C signals the terminal's foreground group; the broker is stopped in order, by its starter.
        assert os.getpgid(java[0].pid) != os.getpgid(0)
    assert not java[0].is_running()
    assert is_free(port)
    assert broker.log_path is not None
    assert "Kafka Server started" in broker.log_path.read_text()


async def test_kill_and_restart_keeps_records(own_broker: LocalBroker, topic_prefix: str) -> None:
    values = [str(n).encode() for n in range(100)]
    await write(own_broker.bootstrap, topic_prefix, values)
    pid = own_broker.pid
    own_broker.kill()
    assert not own_broker.running
    assert not answers(own_broker.bootstrap)
    own_broker.start()
    assert own_broker.pid != pid
    assert await read(own_broker.bootstrap, topic_prefix, 100) == values
    own_broker.stop()
    own_broker.start()
    assert await read(own_broker.bootstrap, topic_prefix, 100) == values


# Starts a broker, then forks a child that holds every descriptor of its parent open, as a process pool would.
STARTER = """
import os, pathlib, time
from agents.broker import DEFAULT_CACHE, LocalBroker
broker = LocalBroker(DEFAULT_CACHE)
broker.start()
child = os.fork()
if child == 0:
    time.sleep(120)
    os._exit(0)
print(broker.pid, broker.port, child, broker.data_dir, flush=True)
time.sleep(120)
"""


def test_gone_when_its_starter_is_killed() -> None:
    starter = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", STARTER], cwd=REPO, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    java, port, child, data_dir = starter.stdout.readline().split()
    try:
        assert psutil.pid_exists(int(java))
        starter.kill()
        starter.wait()
        assert eventually(lambda: not psutil.pid_exists(int(java)))
        assert is_free(int(port))
        assert eventually(lambda: not Path(data_dir).exists()), "temporary data is left"
    finally:
        starter.stdout.close()
        os.kill(int(child), signal.SIGKILL)


if sys.platform == "linux":  # elsewhere no process can ask to die with its parent

    def test_gone_when_its_watcher_is_killed(own_broker: LocalBroker) -> None:
        assert own_broker.pid is not None
        java = psutil.Process(own_broker.pid)
        watcher = java.parent()
        assert watcher is not None
        watcher.kill()
        assert eventually(lambda: not java.is_running())
        own_broker.stop()
        assert not own_broker.running


def test_a_taken_port_is_said(tmp_path: Path) -> None:
    """Whoever has it may be a broker too, and would answer for ours."""
    broker = LocalBroker(DEFAULT_CACHE, tmp_path)
    with (
        socket.create_server(("127.0.0.1", broker.port)),
        pytest.raises(BrokerUnavailable, match=f"port {broker.port} is taken"),
    ):
        broker.start()


def test_a_broker_that_dies_at_once_is_told_with_its_log(tmp_path: Path) -> None:
    broker = LocalBroker(DEFAULT_CACHE, tmp_path)
    broker.start()
    broker.stop()
    (tmp_path / "log" / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=other\n")
    with pytest.raises(BrokerUnavailable, match=r"(?s)Kafka did not start.*node id 7"):
        broker.start()
    assert not broker.running
