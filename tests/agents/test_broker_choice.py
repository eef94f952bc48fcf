"""Which Kafka is taken, what is said when one is not there, and how the jars come: no broker runs here."""

import contextlib
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agents import broker, kafka_jars
from agents.broker import Broker, BrokerUnavailable, start_broker
from agents.kafka_docker import docker_broker, environment
from agents.kafka_jars import KAFKA_FILES, fetch_jars, find_java
from agents.kafka_probe import free_ports, is_free

REPO = Path(__file__).resolve().parent.parent.parent


def program(folder: Path, name: str, script: str) -> Path:
    """An executable shell script to stand on PATH in place of the real thing."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is all of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_a_missing_java_is_named(path: Path) -> None:
    with pytest.raises(
        BrokerUnavailable, match=r"java is not on PATH.*apt-get install openjdk-17.*brew install"
    ):
        find_java()


def test_an_old_java_is_named(path: Path) -> None:
    program(path, "java", """echo 'openjdk version "11.0.2" 2019-01-15' >&2""")
    with pytest.raises(BrokerUnavailable, match="is not 17 or newer"):
        find_java()


def test_a_new_java_is_taken(path: Path) -> None:
    java = program(path, "java", """echo 'openjdk version "21.0.2" 2024-01-16' >&2""")
    assert find_java() == str(java)


def test_a_missing_maven_is_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(
        BrokerUnavailable, match=r"mvn is not on PATH.*apt-get install maven.*brew install maven"
    ):
        fetch_jars(tmp_path)


def test_a_failing_maven_is_quoted_and_leaves_nothing(path: Path, tmp_path: Path) -> None:
    program(path, "mvn", "echo 'no route to host'; exit 1")
    with pytest.raises(BrokerUnavailable, match="no route to host"):
        fetch_jars(tmp_path)
    assert [p.suffix for p in (tmp_path / "kafka").iterdir()] == [".lock"]


def test_cached_jars_need_no_maven(path: Path, tmp_path: Path) -> None:
    fake = program(path, "mvn", SLOW_MAVEN.format(calls=tmp_path / "calls"))
    jars = fetch_jars(tmp_path)
    fake.unlink()
    assert fetch_jars(tmp_path) == jars
    assert [p.name for p in jars.iterdir()] == ["kafka_2.13.jar"]


# Notes its call, and takes long enough for another starter to find the cache still empty.
SLOW_MAVEN = """
echo called >> {calls}
for argument; do case "$argument" in -DoutputDirectory=*) folder="${{argument#*=}}" ;; esac; done
/bin/sleep 1
: > "$folder/kafka_2.13.jar"
"""


def test_two_starters_fetch_once(path: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    program(path, "mvn", SLOW_MAVEN.format(calls=calls))
    script = (
        "import sys, pathlib; from agents.kafka_jars import fetch_jars; fetch_jars(pathlib.Path(sys.argv[1]))"
    )
    starters = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=REPO, env={"PATH": str(path)})
        for _ in range(2)
    ]
    assert [starter.wait(60) for starter in starters] == [0, 0]
    assert calls.read_text() == "called\n"


def test_a_changed_pom_is_another_cache(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(path, "mvn", SLOW_MAVEN.format(calls=tmp_path / "calls"))
    before = fetch_jars(tmp_path)
    changed = tmp_path / "pom.xml"
    changed.write_bytes(kafka_jars.POM.read_bytes() + b"<!-- -->")
    monkeypatch.setattr(kafka_jars, "POM", changed)
    assert fetch_jars(tmp_path) != before


def test_given_servers_are_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "GIVEN_TIMEOUT_S", 0.5)
    (port,) = free_ports(1)
    with (
        pytest.raises(BrokerUnavailable, match=f"no broker answers at 127.0.0.1:{port}"),
        start_broker(f"127.0.0.1:{port}"),
    ):
        pytest.fail("nothing was there")


class Ways:
    """Stands in for both ways, noting which were tried; those in `missing` are not there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, missing: set[str]) -> None:
        self.tried: list[str] = []
        self.missing = missing
        monkeypatch.setattr(broker, "_docker", lambda *_: self._way("docker"))
        monkeypatch.setattr(broker, "_local", lambda *_: self._way("local"))

    @contextlib.contextmanager
    def _way(self, kind: broker.Own) -> Iterator[Broker]:
        self.tried.append(kind)
        if kind in self.missing:
            raise BrokerUnavailable(f"{kind} is missing")
        yield Broker("127.0.0.1:1", kind, None)


@pytest.mark.parametrize(
    ("prefer", "missing", "tried"),
    [
        ("docker", set(), ["docker"]),
        ("docker", {"docker"}, ["docker", "local"]),
        ("local", set(), ["local"]),
        ("local", {"local"}, ["local", "docker"]),
    ],
)
def test_the_next_way_is_tried_and_the_first_is_said(
    monkeypatch: pytest.MonkeyPatch, prefer: broker.Own, missing: set[str], tried: list[str]
) -> None:
    ways, said = Ways(monkeypatch, missing), list[str]()
    with start_broker(prefer=prefer, say=said.append) as started:
        assert started.kind == tried[-1]
    assert ways.tried == tried
    assert said == [f"no Kafka by way of {kind}: {kind} is missing" for kind in tried[:-1]]


def test_no_way_left_names_all(monkeypatch: pytest.MonkeyPatch) -> None:
    Ways(monkeypatch, {"docker", "local"})
    with pytest.raises(BrokerUnavailable, match=r"docker is missing\n.*local is missing"), start_broker():
        pytest.fail("nothing was there")


def test_ports_are_free_distinct_and_not_ephemeral() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(is_free(port) and port < 32_768 for port in ports)


def test_compose_says_the_same_as_the_properties() -> None:
    compose = yaml.safe_load((REPO / "docker" / "compose.yaml").read_text())
    told = {name: str(value) for name, value in compose["services"]["kafka"]["environment"].items()}
    told.pop("KAFKA_HEAP_OPTS")
    assert told == environment(9092, 9093)


def test_every_placeholder_of_the_properties_is_filled() -> None:
    assert "$" not in "".join(environment(1, 2).values())
    assert (KAFKA_FILES / "server.properties").is_file()


@pytest.mark.parametrize(
    ("host", "said"),
    [("unix:///nonexistent/d.sock", "no Docker daemon at"), ("tcp://192.0.2.1:2375", "not on this machine")],
)
def test_docker_that_is_not_here_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str, said: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(BrokerUnavailable, match=said), docker_broker("coral-kafka:none", tmp_path):
        pytest.fail("nothing was there")
