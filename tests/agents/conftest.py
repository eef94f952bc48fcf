"""What the tests of guards share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.guard_rig import Host


@pytest.fixture
def temp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder that nobody else uses, as short as a real one: the path of a socket must fit."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as made:
        monkeypatch.setenv("TMPDIR", made)
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)


@pytest.fixture
def hosts(tmp_path: Path, temp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Host]]:
    """Two nodes on this machine, with the double of vLLM; whatever a test leaves is ended."""
    monkeypatch.setenv("VLLM_DOUBLE_TOKEN_S", "0.02")
    made = [Host(tmp_path / claim, claim) for claim in ("c1", "c2")]
    yield made
    for host in made:
        host.end_all()
    assert list(temp.iterdir()) == []
