"""Which Kafka: given bootstrap servers, else Docker through testcontainers, else a local Java process.

The one place that makes this choice, for the demo and the tests alike. A way that is not there is said and
passed over; given bootstrap servers are never replaced by something else.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agents.kafka_client import Unreachable, security_args, why_not
from agents.kafka_local import LocalBroker
from agents.kafka_probe import BrokerUnavailable, wait_until_answers
from schemas.settings import KafkaSettings

__all__ = ["DEFAULT_CACHE", "Broker", "BrokerUnavailable", "LocalBroker", "start_broker"]

log = logging.getLogger(__name__)

# In the checkout: one clone's jars and logs, gone with `make clean`.
DEFAULT_CACHE = Path(__file__).resolve().parent.parent / ".cache"
DEFAULT_IMAGE = "apache/kafka:4.3.1"
GIVEN_TIMEOUT_S = 10.0
# A port that was free can be taken before Java binds it; then another one is tried.
LOCAL_TRIES = 2

Kind = Literal["given", "docker", "local"]
Own = Literal["docker", "local"]


@dataclass(frozen=True)
class Broker:
    """A broker that answers."""

    bootstrap: str
    """`host:port`, or several with commas."""
    kind: Kind
    log_path: Path | None
    """Its log, kept afterwards; a container's is written when it stops; None for a given one."""


@contextlib.contextmanager
def start_broker(
    bootstrap: str | None = None,
    *,
    kafka: KafkaSettings | None = None,
    cache_dir: Path = DEFAULT_CACHE,
    data_dir: Path | None = None,
    prefer: Own = "docker",
    image: str = DEFAULT_IMAGE,
    say: Callable[[str], None] = log.warning,
) -> Iterator[Broker]:
    """A broker for the length of a `with`; one that we started is stopped at its end. Blocks while starting.

    `kafka` has the security of given servers. `prefer` is the way tried first, the other one second.
    `data_dir` (local only) keeps the data for a next time; without it the data is temporary. `say` is told of
    each way that was passed over. Raises BrokerUnavailable if given servers do not answer, or if there is no
    way left.
    """
    if bootstrap:
        _wait_for(bootstrap, kafka or KafkaSettings())
        yield Broker(bootstrap, "given", None)
        return
    ways: dict[Own, Callable[[], contextlib.AbstractContextManager[Broker]]] = {
        "docker": lambda: _docker(image, cache_dir),
        "local": lambda: _local(cache_dir, data_dir),
    }
    with contextlib.ExitStack() as stack:
        yield _first(stack, sorted(ways.items(), key=lambda way: way[0] != prefer), say)


def _wait_for(bootstrap: str, kafka: KafkaSettings) -> None:
    given = kafka.model_copy(update={"bootstrap_servers": bootstrap})
    try:
        answered = wait_until_answers(bootstrap, GIVEN_TIMEOUT_S, lambda: True, security_args(given))
    except Unreachable as error:
        raise BrokerUnavailable(str(error)) from error
    if not answered:
        # A thread, since the caller may be inside a running event loop.
        with ThreadPoolExecutor(max_workers=1) as pool:
            raise BrokerUnavailable(pool.submit(asyncio.run, why_not(given)).result())


def _first(
    stack: contextlib.ExitStack,
    ways: list[tuple[Own, Callable[[], contextlib.AbstractContextManager[Broker]]]],
    say: Callable[[str], None],
) -> Broker:
    reasons: list[str] = []
    for kind, enter in ways:
        try:
            return stack.enter_context(enter())
        except BrokerUnavailable as error:
            reasons.append(f"{kind}: {error}")
            say(f"no Kafka by way of {kind}: {error}")
    raise BrokerUnavailable("no Kafka to be had:\n  " + "\n  ".join(reasons))


@contextlib.contextmanager
def _docker(image: str, cache_dir: Path) -> Iterator[Broker]:
    try:
        # Here, not above: half a second of imports, and testcontainers is a development dependency.
        from agents.kafka_docker import docker_broker  # noqa: PLC0415
    except ImportError as error:
        raise BrokerUnavailable(f"testcontainers is not installed ({error})") from error
    with docker_broker(image, cache_dir / "kafka" / "logs") as (bootstrap, log_path):
        yield Broker(bootstrap, "docker", log_path)


@contextlib.contextmanager
def _local(cache_dir: Path, data_dir: Path | None) -> Iterator[Broker]:
    with contextlib.ExitStack() as stack:
        broker = _started(stack, cache_dir, data_dir)
        yield Broker(broker.bootstrap, "local", broker.log_path)


def _started(stack: contextlib.ExitStack, cache_dir: Path, data_dir: Path | None) -> LocalBroker:
    for attempt in range(1, LOCAL_TRIES + 1):
        broker = LocalBroker(cache_dir, data_dir)
        stack.callback(broker.close)
        try:
            broker.start()
        except BrokerUnavailable:
            if attempt == LOCAL_TRIES:
                raise
        else:
            return broker
    raise AssertionError("unreachable")
