"""A node's key pair and guard ports: made once, kept, and never replaced in silence."""

import socket
import stat
from pathlib import Path

import pytest

from agents import guard_keys
from agents.guard_keys import guard_port, keys
from agents.state_dir import StateError


def test_keys_are_made_once_and_for_their_owner_only(tmp_path: Path) -> None:
    made = keys(tmp_path / "state")
    assert len(made.public) == len(made.secret) == 40
    assert keys(tmp_path / "state") == made
    kept = tmp_path / "state" / guard_keys.KEYS
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_unreadable_keys_are_an_error_and_stay(tmp_path: Path) -> None:
    kept = tmp_path / guard_keys.KEYS
    kept.write_text("{}")
    with pytest.raises(StateError, match=r"guard-keys\.json: public"):
        keys(tmp_path)
    assert kept.read_text() == "{}"


def test_a_ports_row_is_free_and_kept(tmp_path: Path) -> None:
    first = guard_port(tmp_path, 4, "127.0.0.1")
    for port in range(first, first + 4):
        with socket.create_server(("127.0.0.1", port)):
            pass
    with socket.create_server(("127.0.0.1", first)):  # a guard of before listens
        assert guard_port(tmp_path, 4, "127.0.0.1") == first


def test_a_taken_port_spoils_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = guard_port(tmp_path / "a", 2, "127.0.0.1")
    monkeypatch.setattr(guard_keys, "PORTS", range(first, first + 1))
    with (
        socket.create_server(("127.0.0.1", first + 1)),
        pytest.raises(StateError, match="no 2 free ports"),
    ):
        guard_port(tmp_path / "b", 2, "127.0.0.1")


def test_an_unreadable_port_is_an_error(tmp_path: Path) -> None:
    (tmp_path / guard_keys.PORT).write_text("many")
    with pytest.raises(StateError, match="'many' is no port"):
        guard_port(tmp_path, 1, "127.0.0.1")
