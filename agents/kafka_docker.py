"""Apache Kafka in a container, through testcontainers.

Only if a local Docker daemon answers and the image is there or can be pulled within 60 s. testcontainers' own
helper (Ryuk) removes the container if this process is killed; with TESTCONTAINERS_RYUK_DISABLED nothing does.
"""

import contextlib
import logging
import os
import socket
import string
import time
from collections.abc import Iterator
from pathlib import Path

import requests
from docker.client import DockerClient
from docker.errors import DockerException, ImageNotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from agents.kafka_probe import BrokerUnavailable, free_ports, wait_until_answers

log = logging.getLogger(__name__)

PING_TIMEOUT_S = 5
PULL_LIMIT_S = 60.0
READY_TIMEOUT_S = 90.0
TEMPLATE = Path(__file__).resolve().parent.parent / "docker" / "kafka" / "server.properties"


@contextlib.contextmanager
def docker_broker(image: str, log_dir: Path) -> Iterator[tuple[str, Path]]:
    """A broker in a container of `image`: yields its bootstrap address and where its log will be.

    Raises BrokerUnavailable if Docker does not answer, the image cannot be had, or Kafka does not start.
    """
    needed = [image] if testcontainers_config.ryuk_disabled else [image, testcontainers_config.ryuk_image]
    with _daemon() as client:
        for name in needed:
            _ensure_image(client, name)
    port, controller_port = free_ports(2)
    log_dir.mkdir(parents=True, exist_ok=True)
    log_path = log_dir / f"kafka-docker-{port}.log"
    container = _container(image, port, controller_port)
    try:
        _start(container, port)
        yield f"127.0.0.1:{port}", log_path
    finally:
        with contextlib.suppress(DockerException, requests.RequestException):
            if container.get_wrapped_container() is not None:
                log_path.write_bytes(b"".join(container.get_logs()))
        container.stop()


@contextlib.contextmanager
def _daemon() -> Iterator[DockerClient]:
    _check_socket(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
    try:
        client = DockerClient.from_env(timeout=PING_TIMEOUT_S)
        client.ping()
    except (DockerException, requests.RequestException) as error:
        raise BrokerUnavailable(f"Docker does not answer: {str(error)[:200]}") from error
    try:
        yield client
    finally:
        client.close()


def _check_socket(address: str) -> None:
    """The SDK leaks its socket when nobody listens; and a broker on another machine is not at 127.0.0.1."""
    if not address.startswith("unix://"):
        raise BrokerUnavailable(f"Docker is not on this machine ({address})")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(address.removeprefix("unix://"))
        except OSError as error:
            raise BrokerUnavailable(f"no Docker daemon at {address} ({error.strerror})") from error


def _ensure_image(client: DockerClient, image: str) -> None:
    """Pull the image if it is not there, giving up after 60 s."""
    with contextlib.suppress(ImageNotFound):
        client.images.get(image)
        return
    log.info("pulling %s (at most %.0f s)", image, PULL_LIMIT_S)
    repository, _, tag = image.rpartition(":")
    deadline = time.monotonic() + PULL_LIMIT_S
    # The time-out is of one read: a stalled pull ends too.
    client.api.timeout = PULL_LIMIT_S
    try:
        for line in client.api.pull(repository, tag=tag, stream=True, decode=True):
            if "error" in line:
                raise BrokerUnavailable(f"image {image} cannot be pulled: {line['error']}")
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"image {image} was not pulled within {PULL_LIMIT_S:.0f} s")
    except (DockerException, requests.RequestException) as error:
        raise BrokerUnavailable(f"image {image} cannot be pulled: {str(error)[:200]}") from error


def environment(port: int, controller_port: int) -> dict[str, str]:
    """docker/kafka/server.properties as the KAFKA_* variables that the images take."""
    filled = string.Template(TEMPLATE.read_text()).substitute(
        listen="0.0.0.0",  # noqa: S104 - inside the container; published on loopback only
        port=port,
        controller_port=controller_port,
        data="/tmp/kraft-combined-logs",  # noqa: S108 - inside the container
    )
    settings = (line.split("=", 1) for line in filled.splitlines() if line and not line.startswith("#"))
    return {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in settings}


def _container(image: str, port: int, controller_port: int) -> DockerContainer:
    container = DockerContainer(image).with_envs(**environment(port, controller_port))
    # Docker's form for "on this address only"; with_bind_ports would publish an open broker to the network.
    container.ports[f"{port}/tcp"] = ("127.0.0.1", port)  # type: ignore[assignment]
    return container.with_kwargs(mem_limit="1g")


def _start(container: DockerContainer, port: int) -> None:
    try:
        container.start()
    except (DockerException, requests.RequestException) as error:
        raise BrokerUnavailable(f"the container did not start: {str(error)[:500]}") from error

    def alive() -> bool:
        container.reload()
        return container.status in {"created", "running"}

    if not wait_until_answers(f"127.0.0.1:{port}", READY_TIMEOUT_S, alive):
        told = b"".join(container.get_logs()).decode(errors="replace")[-2000:]
        raise BrokerUnavailable(f"Kafka did not start in its container:\n{told}")
