"""What a node keeps for its guards: the key pair they speak with, and the ports they listen on.

Both are made once and kept in the node's state folder, so that an agent that starts again registers the
contact that its living guards already use. The agent owns the folder; guards only read.
"""

import errno
import os
import random
import socket
from pathlib import Path

from pydantic import ValidationError

from agents.files import write_atomically
from agents.star import KeyPair, new_keys
from agents.state_dir import StateError
from schemas.base import Frozen
from schemas.codec import describe

KEYS = "guard-keys.json"
PORT = "guard-port"

PORTS = range(10_240, 32_000)
"""Below what Linux gives to outgoing connections (32768 and up), which come and go."""
_TRIES = 200


class _Kept(Frozen):
    public: str
    secret: str


def keys(state_dir: Path) -> KeyPair:
    """This node's CURVE key pair; made on the first call, readable by its owner only.

    Raises:
        StateError: it is there and unreadable: a new one would make strangers of the guards that run.
    """
    path = state_dir / KEYS
    if not path.exists():
        _make(path)
    return read_keys(path)


def read_keys(path: Path) -> KeyPair:
    """The key pair in a file that `keys` made.

    Raises:
        StateError: there is none, or it is unreadable.
    """
    try:
        kept = _Kept.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        why = describe(error) if isinstance(error, ValidationError) else str(error)
        raise StateError(f"{path}: {why}; restore it, or drain the node and remove it") from error
    return KeyPair(kept.public, kept.secret)


def guard_port(state_dir: Path, devices: int, address: str) -> int:
    """The first of `devices` ports in a row, for a guard each; free ones are picked on the first call.

    Raises:
        StateError: the kept one is unreadable, or there are no free ones.
        OSError: `address` is not this machine's.
    """
    path = state_dir / PORT
    try:
        kept = path.read_text()
    except FileNotFoundError:
        port = _free_row(devices, address)
        write_atomically(path, f"{port}\n")
        return port
    try:
        return int(kept)
    except ValueError as error:
        raise StateError(f"{path}: {kept[:40]!r} is no port; restore it, or drain and remove it") from error


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made, draft = new_keys(), path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(_Kept(public=made.public, secret=made.secret).model_dump_json())
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def free_port(address: str) -> int:
    """A port of this machine that nobody has, for something that listens a little later."""
    return _free_row(1, address)


def port_is_free(address: str, port: int) -> bool:
    """Whether nobody listens there.

    Raises:
        OSError: `address` is not this machine's.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


def _free_row(count: int, address: str) -> int:
    """Chance keeps those apart who pick before they listen: several agents and guards on one machine."""
    for _ in range(_TRIES):
        first = random.choice(PORTS)
        if all(port_is_free(address, port) for port in range(first, first + count)):
            return first
    raise StateError(f"no {count} free ports in a row on {address} in {_TRIES} tries; set node.guard_port")
