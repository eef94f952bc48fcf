"""How clients connect to Kafka, and why they cannot: one line that names what to mend.

The clients themselves say only that no broker could be reached; the cause goes to their log.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest

from schemas.settings import KafkaSettings

ASK_MS = 5_000
"""How long each broker is given when asked what is wrong."""
CLOSING_S = 10.0
"""How long a broker may take over TLS's good-bye; one that refused delays it."""


class Unreachable(KafkaConnectionError):  # type: ignore[misc]  # aiokafka's errors are untyped
    """Kafka cannot be reached. The text says why, and begins with the setting at fault."""

    def __str__(self) -> str:
        return str(self.args[0])


def client_args(kafka: KafkaSettings) -> dict[str, Any]:
    """Connection arguments of every aiokafka client.

    Raises:
        Unreachable: a certificate or key cannot be used.
    """
    return {"bootstrap_servers": kafka.bootstrap_servers, **security_args(kafka)}


def security_args(kafka: KafkaSettings) -> dict[str, Any]:
    """Of these the ones for TLS and SASL.

    Raises:
        Unreachable: a certificate or key cannot be used.
    """
    args: dict[str, Any] = {"security_protocol": kafka.security_protocol, "ssl_context": tls_context(kafka)}
    if kafka.uses_sasl and kafka.sasl_password is not None:
        args |= {
            "sasl_mechanism": kafka.sasl_mechanism,
            "sasl_plain_username": kafka.sasl_username,
            "sasl_plain_password": kafka.sasl_password.get_secret_value(),
        }
    return args


def tls_context(kafka: KafkaSettings) -> ssl.SSLContext | None:
    """What to trust, and who we are; None without TLS. The broker's name is checked.

    Raises:
        Unreachable: a certificate or key cannot be used.
    """
    if not kafka.uses_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=kafka.ssl_cafile)
    except OSError as error:  # ssl.SSLError is one
        raise Unreachable(f"kafka.ssl_cafile: {kafka.ssl_cafile}: {_told(error)}, expected PEM") from error
    if kafka.ssl_certfile is not None:
        try:
            # Without a password OpenSSL would ask the terminal for that of an encrypted key.
            context.load_cert_chain(kafka.ssl_certfile, kafka.ssl_keyfile, password="")
        except OSError as error:
            files = f"{kafka.ssl_certfile}, {kafka.ssl_keyfile or 'no kafka.ssl_keyfile'}"
            raise Unreachable(
                f"kafka.ssl_certfile: {files}: {_told(error)}, expected PEM without a password"
            ) from error
    return context


@asynccontextmanager
async def reaching(kafka: KafkaSettings) -> AsyncIterator[None]:
    """Where a client starts: that it reaches no broker is raised with the cause.

    Raises:
        Unreachable: instead of aiokafka's KafkaConnectionError.
    """
    try:
        yield
    except Unreachable:
        raise
    except KafkaConnectionError as error:
        raise Unreachable(await why_not(kafka)) from error


async def why_not(kafka: KafkaSettings) -> str:
    """What the first broker of `bootstrap_servers` that answers at all has against us; one line."""
    for address in (server.strip() for server in kafka.bootstrap_servers.split(",")):
        try:
            await ask(address, security_args(kafka), ASK_MS)
        except (KafkaError, OSError, TimeoutError) as error:
            if (told := _cause(kafka, address, error)) is not None:
                return told
        else:
            return f"kafka.bootstrap_servers: {address} did not answer just now, but does again"
    return f"kafka.bootstrap_servers: no broker answers at {kafka.bootstrap_servers}"


async def ask(address: str, security: Mapping[str, Any], timeout_ms: int) -> int:
    """How many brokers this one knows of; the connection has ended when it is told.

    Not by `AIOKafkaClient.bootstrap`: it closes its connection, refused or not, and nobody can wait for that.
    TLS says good-bye first, and a loop that ends before the broker's answer leaves its socket to the garbage
    collector.

    Args:
        security: the connection's arguments for it (`security_args`).
        timeout_ms: how long connecting and each answer may take.

    Raises:
        KafkaError, OSError: the broker refused, or did not answer.
    """
    host, _, port = address.rpartition(":")
    connected = asyncio.Event()
    connection = AIOKafkaConnection(
        host.strip("[]"),
        int(port),
        request_timeout_ms=timeout_ms,
        on_close=lambda *_: connected.set(),  # it is told of the end of what was a connection only
        **security,
    )
    try:
        await connection.connect()
        told = await connection.send(MetadataRequest([]))  # where SASL is wanted, the first that is refused
        return len(told.brokers)
    finally:
        closed = connection.close()
        if connected.is_set():
            await asyncio.wait({closed}, timeout=CLOSING_S)


def _cause(kafka: KafkaSettings, address: str, error: Exception) -> str | None:
    """What to mend; None where nobody listens."""
    told: str | None = None
    match error:
        case Unreachable():
            told = str(error)
        case SaslAuthenticationFailed():
            told = f"kafka.sasl_username, kafka.sasl_password: {address} refuses them: {error.args[0]}"
        case UnsupportedSaslMechanismError():
            told = f"kafka.sasl_mechanism: {address} does not offer {kafka.sasl_mechanism}"
        case ssl.SSLCertVerificationError():
            told = f"kafka.ssl_cafile: the certificate of {address} is not trusted: {error.verify_message}"
        case ssl.SSLError():
            told = f"kafka.security_protocol: {kafka.security_protocol} with {address}: {_told(error)}"
        case KafkaConnectionError() | ConnectionResetError():
            told = (
                f"kafka.security_protocol: {address} hangs up on {kafka.security_protocol}; "
                "it may want TLS, SASL or a client's certificate"
            )
        case socket.gaierror():
            told = f"kafka.bootstrap_servers: {address}: {_told(error)}"
        case _:
            pass
    return told


def _told(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
