"""Temporary folders of engines, one each: vLLM leaves its sockets and meeting files there for ever.

Whoever ends an engine removes its folder: mostly its watcher. Where that was killed, too, the folder is found
by the tag of the engine's processes, which it names.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

PREFIX = "coral-rank-"
OWNER = "rank"
"""A link inside that holds the tag: it is there whole or not at all."""
MOST_BYTES = 107 - len(f"/{PREFIX}12345678/00000000-0000-4000-8000-000000000000")
"""Of the path that these folders are in: a socket's has 107 at most, and vLLM names its sockets by UUIDs."""


def make(tag: str) -> Path:
    """A new one. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_root()))
    (folder / OWNER).symlink_to(tag)
    return folder


def environment(folder: Path) -> Mapping[str, str]:
    """What makes a vLLM use it."""
    return {"TMPDIR": str(folder), "VLLM_RPC_BASE_PATH": str(folder)}


def left_by(wanted: Callable[[str], bool]) -> dict[Path, str]:
    """Those whose tag is wanted, each with its tag."""
    found = {}
    for folder in _root().glob(f"{PREFIX}*"):
        with suppress(OSError):  # removed meanwhile, or somebody else's
            if wanted(tag := str((folder / OWNER).readlink())):
                found[folder] = tag
    return found


def used_by(members: Iterable[psutil.Process]) -> set[Path]:
    """Those that these processes have."""
    found = set()
    for process in members:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            folder = Path(process.environ().get("TMPDIR", ""))
            if folder.name.startswith(PREFIX):
                found.add(folder)
    return found


def remove(folder: Path) -> None:
    """With all that is in it, as far as that can be."""
    shutil.rmtree(folder, ignore_errors=True)


def _root() -> Path:
    given = Path(tempfile.gettempdir())
    return given if len(bytes(given)) <= MOST_BYTES else Path("/tmp")  # noqa: S108  always there, and short
