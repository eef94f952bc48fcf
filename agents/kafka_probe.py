"""What every way to a broker needs: does it answer, which ports are free, the error that says what lacks."""

import asyncio
import logging
import random
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiokafka.errors import KafkaError

from agents.kafka_client import ask

log = logging.getLogger(__name__)

# Below the range from which Linux (32768) and macOS (49152) take the ports of outgoing connections. A client
# that retries a stopped broker on a port of that range can, by chance, connect to itself and keep the port.
PORTS = range(20_000, 32_768)
PLAIN: Mapping[str, Any] = {}
"""No TLS and no SASL."""


class BrokerUnavailable(Exception):
    """No broker could be had; the message names each way that was tried and what it lacks."""


def free_ports(count: int) -> list[int]:
    """Distinct loopback TCP ports that nothing is bound to right now."""
    found: list[int] = []
    while len(found) < count:
        port = random.choice(PORTS)
        if port not in found and is_free(port):
            found.append(port)
    return found


def is_free(port: int) -> bool:
    """Whether nothing listens on this loopback TCP port; connections of one that did may still fade out."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def answers(bootstrap: str, timeout_s: float = 5.0, security: Mapping[str, Any] = PLAIN) -> bool:
    """Whether a broker at one of these `host:port,...` answers a metadata request with itself in it.

    Args:
        security: the client's arguments for it (`agents.kafka_client.security_args`).
    """
    if not any(_accepts(address, timeout_s) for address in bootstrap.split(",")):
        return False
    # A thread, since the caller may be inside a running event loop.
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, _metadata(bootstrap, timeout_s, security)).result()


def wait_until_answers(
    bootstrap: str, timeout_s: float, is_alive: Callable[[], bool], security: Mapping[str, Any] = PLAIN
) -> bool:
    """Ask until it answers, `is_alive` turns false, or the time (seconds) is up."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and is_alive():
        if answers(bootstrap, security=security):
            return True
        time.sleep(0.1)
    return False


def _accepts(address: str, timeout_s: float) -> bool:
    host, _, port = address.strip().rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
    except (OSError, ValueError):
        return False
    return True


async def _metadata(bootstrap: str, timeout_s: float, security: Mapping[str, Any]) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            return await _first_told(bootstrap, int(timeout_s * 1000), security)
    except TimeoutError:
        return False


async def _first_told(bootstrap: str, timeout_ms: int, security: Mapping[str, Any]) -> bool:
    """Whether the first of these brokers that answers knows of any."""
    for address in bootstrap.split(","):
        try:
            # A broker that the controller has not let in yet is missing from its own answer.
            return await ask(address.strip(), security, timeout_ms) > 0
        except (KafkaError, OSError, ValueError) as error:  # a TimeoutError is an OSError
            log.debug("no answer from %s: %s", address, error)
    return False
