"""Which weights are these? The revision of a folder, from all that is in it.

A **revision** is the SHA-256 over the names, sizes and contents of all files of a folder, ours (`coral-*`)
and hidden ones left out: it names exactly these weights, wherever they lie.

Hashing hundreds of gigabytes takes minutes, so each file's digest is noted in `coral-revision.json`, beside
the weights or, where that cannot be written, in a spare folder. A note holds as long as its file has the same
size and time.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import ValidationError

from agents.files import write_atomically
from schemas.base import Count, Frozen, digest

NOTES = "coral-revision.json"
OURS = "coral-"
"""Begins the names of what is ours and no part of the weights."""


_READERS = 4
"""Files read at a time: one thread digests more slowly than a disk reads."""


class Note(Frozen):
    """What a file had when it was read: a file with the same size and time still has it."""

    size: Count
    mtime_ns: int
    """Nanoseconds since the epoch: more digits than a Count has."""
    sha256: str


class Notes(Frozen):
    """The files of a folder, by their path in it."""

    files: dict[str, Note] = {}

    @property
    def revision(self) -> str:
        lines = (f"{name}\0{note.size}\0{note.sha256}\n" for name, note in sorted(self.files.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def revision_of(folder: Path, spare: Path | None = None) -> str:
    """The revision of the files in `folder`, 64 hexadecimal digits; blocks while it reads them.

    Args:
        spare: where the notes go if the folder cannot be written.

    Raises:
        OSError: a file cannot be read, or there is none.
    """
    before, names = read_notes(folder, spare), files_of(folder)
    with ThreadPoolExecutor(_READERS) as readers:
        found = readers.map(lambda name: _note(folder / name, before.files.get(name)), names)
        notes = Notes(files=dict(zip(names, found, strict=True)))
    if notes != before:
        write_notes(folder, notes, spare)
    return notes.revision


def known_revision(folder: Path, spare: Path | None = None) -> str | None:
    """The revision of `folder` if all its files are noted and unchanged; reads none of them."""
    with contextlib.suppress(OSError):
        notes = read_notes(folder, spare)
        if list(notes.files) == files_of(folder) and all(
            _holds(note, folder / name) for name, note in notes.files.items()
        ):
            return notes.revision
    return None


def files_of(folder: Path) -> list[str]:
    """Paths within `folder` of the files that its revision is about, sorted.

    Raises:
        OSError: there is no such folder, or nothing is in it.
    """
    found = sorted(path.relative_to(folder).as_posix() for path in _walk(folder))
    if not found:
        raise FileNotFoundError(f"{folder} has no files, expected those of a model")
    return found


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith((".", OURS)):
            continue
        if path.is_dir():
            yield from _walk(path)
        else:
            yield path


def _note(path: Path, before: Note | None) -> Note:
    if before is not None and _holds(before, path):
        return before
    return noted(path, sha256_of(path))


def _holds(note: Note, path: Path) -> bool:
    now = path.stat()
    return (note.size, note.mtime_ns) == (now.st_size, now.st_mtime_ns)


def noted(path: Path, sha256: str) -> Note:
    """The note of a file whose digest is known."""
    now = path.stat()
    return Note(size=now.st_size, mtime_ns=now.st_mtime_ns, sha256=sha256)


def sha256_of(path: Path) -> str:
    """Digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_notes(folder: Path, spare: Path | None = None) -> Notes:
    """What was noted about a folder; nothing where there are no notes, or unreadable ones."""
    for path in _places(folder, spare):
        with contextlib.suppress(OSError, ValidationError):
            return Notes.model_validate_json(path.read_bytes())
    return Notes()


def write_notes(folder: Path, notes: Notes, spare: Path | None = None) -> None:
    """Note it where that can be written; nowhere is fine, the next one reads the files again."""
    for path in _places(folder, spare):
        with contextlib.suppress(OSError):
            write_atomically(path, notes.model_dump_json(indent=1) + "\n")
            return


def _places(folder: Path, spare: Path | None) -> list[Path]:
    beside = [folder / NOTES]
    return beside if spare is None else [*beside, spare / f"{OURS}{digest(str(folder))}.json"]
