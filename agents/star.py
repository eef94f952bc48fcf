"""The sockets of a star: one listens, the others connect to it, and CURVE keeps strangers out.

ZeroMQ connects again by itself, and drops what is garbage before a message begins. Only holders of the keys
given are let in (ZAP, RFC 27), so every message comes with the key of its sender.
"""

import errno
from collections.abc import Iterable
from typing import NamedTuple, Self

import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator

from agents.engine import EngineError

LINGER_MS = 100


class KeyPair(NamedTuple):
    """A CURVE key pair, both halves in Z85 (40 characters)."""

    public: str
    secret: str


class Message(NamedTuple):
    """What came: from the holder of which key, and by which way an answer finds it."""

    key: str
    route: bytes
    raw: bytes


class Star:
    """One end of it. Sending never waits: what cannot go now is lost."""

    def __init__(self, kind: int, keys: KeyPair, *, max_bytes: int) -> None:
        self._context = zmq.asyncio.Context()
        self._guests: AsyncioAuthenticator | None = None
        self._centre_key = ""
        self._socket = self._context.socket(kind)
        self._socket.linger = LINGER_MS
        self._socket.maxmsgsize = max_bytes
        self._socket.ipv6 = True
        self._socket.curve_publickey = keys.public.encode("ascii")
        self._socket.curve_secretkey = keys.secret.encode("ascii")

    @classmethod
    def listen(cls, address: str, port: int, keys: KeyPair, guests: Iterable[str], *, max_bytes: int) -> Self:
        """The centre, for the holders of the public keys `guests`.

        Raises:
            EngineError: `port_taken` where a stranger listens; without refusal where the address is not
                this machine's.
        """
        star = cls(zmq.ROUTER, keys, max_bytes=max_bytes)
        star._guests = AsyncioAuthenticator(star._context)
        star._guests.configure_curve_callback(credentials_provider=_Guests(guests))
        star._guests.start()
        star._socket.curve_server = True
        try:
            star._socket.bind(_url(address, port))
        except zmq.ZMQError as error:
            star.close()
            raise _cannot_listen(address, port, error) from error
        return star

    @classmethod
    def connect(cls, address: str, port: int, keys: KeyPair, centre_key: str, *, max_bytes: int) -> Self:
        """A point; the centre may come later, and go and come again."""
        star = cls(zmq.DEALER, keys, max_bytes=max_bytes)
        star._centre_key = centre_key
        star._socket.curve_serverkey = centre_key.encode("ascii")
        star._socket.immediate = True  # no word waits for a connection: it would be old by then
        star._socket.connect(_url(address, port))
        return star

    async def receive(self) -> Message:
        """The next message of somebody who was let in; `raw` is empty if it is none of one frame."""
        frames = await self._socket.recv_multipart(copy=False)
        raw = frames[-1]
        if self._guests is None:
            return Message(self._centre_key, b"", raw.bytes if len(frames) == 1 else b"")
        return Message(str(raw.get("User-Id")), frames[0].bytes, raw.bytes if len(frames) == 2 else b"")

    async def send(self, route: bytes, raw: bytes) -> None:
        """To the point at `route`; to the centre from everywhere else."""
        try:
            await self._socket.send_multipart([raw] if self._guests is None else [route, raw], zmq.NOBLOCK)
        except zmq.Again:
            return  # nobody is connected, or does not read

    def close(self) -> None:
        """Close it, its port and its threads; what was just sent has 0.1 s to leave."""
        self._socket.close()
        if self._guests is not None:
            self._guests.stop()
        self._context.term()


class _Guests:
    """Asked by libzmq's handshake who is let in."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = frozenset(keys)

    def callback(self, domain: str, key: bytes) -> bool:  # noqa: ARG002  the signature is pyzmq's
        return key.decode("ascii") in self._keys


def new_keys() -> KeyPair:
    """A fresh key pair, from the system's randomness."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode("ascii"), secret.decode("ascii"))


def _url(address: str, port: int) -> str:
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def _cannot_listen(address: str, port: int, error: zmq.ZMQError) -> EngineError:
    if error.errno == errno.EADDRINUSE:
        return EngineError(f"{address}:{port}, where the guard must listen, is taken", "port_taken")
    return EngineError(f"the guard cannot listen at {address}:{port}: {error.strerror}")
