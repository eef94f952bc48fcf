"""Copies one revision from a store to this node's cache, verified file by file.

The copy grows in `<revision>.draft` and takes its final name once it has the revision that it should have.
Each file is digested while it is copied and noted when it is whole, so whatever ends a pull, the next one
goes on with the files that are missing. One pull of a revision at a time on a machine, whoever asks.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from agents.engine import EngineError
from agents.files import write_atomically
from agents.revisions import OURS, Note, Notes, files_of, noted, read_notes, write_notes

Tell = Callable[[str], None]

_TELL_S = 1.0
_LOCK_POLL_S = 0.2
_CHUNK = 8 << 20
_SPARE_BYTES = 1 << 30
"""Left free on the disk of the cache."""


async def pull(source: Path, cache: Path, revision: str, tell: Tell) -> Path:
    """Copy `source`, which should be `revision`, to `cache/revision`; at once if it is there.

    Args:
        tell: told in words how far it is, each second or so, from another thread.

    Raises:
        EngineError: `source` is not what it should be, or the disk is too small (refusal `unknown_model`);
            without refusal where reading or writing failed: another attempt may go on.
    """
    cancelled = threading.Event()
    async with _alone(cache / f"{revision}.lock"):
        copying = asyncio.create_task(asyncio.to_thread(_pull, source, cache, revision, tell, cancelled))
        try:
            return await asyncio.shield(copying)
        except asyncio.CancelledError:
            cancelled.set()  # The thread still holds the draft: the lock stays until it has ended.
            await asyncio.wait([copying])
            raise


@contextlib.asynccontextmanager
async def _alone(path: Path) -> AsyncIterator[None]:
    """Hold a lock among all processes of this machine; it goes with its holder."""
    file = await asyncio.to_thread(_opened, path)
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(file)


def _opened(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def _pull(source: Path, cache: Path, revision: str, tell: Tell, cancelled: threading.Event) -> Path:
    target, draft = cache / revision, cache / f"{revision}.draft"
    if target.is_dir():
        return target
    try:
        draft.mkdir(exist_ok=True)
        notes = _Copy(source, draft, tell, cancelled).run()
        if notes.revision != revision:
            culprit = _culprit(source, notes, revision)
            shutil.rmtree(draft)
            raise _broken(f"{culprit}: not what revision {revision} has")
        copy_ours(source, draft)
        draft.rename(target)
    except OSError as error:
        raise EngineError(f"cannot copy {source} to {draft}: {error}") from error
    return target


def copy_ours(source: Path, target: Path) -> None:
    """Copy what is kept with the weights and no part of them (references), as far as it is not there yet.

    Raises:
        OSError: a file cannot be read or written.
    """
    for ours in source.glob(f"{OURS}*.json"):
        if not (target / ours.name).exists():
            write_atomically(target / ours.name, ours.read_text(encoding="utf-8"))


class _Copy:
    """The files of one folder, copied to another as far as they are not there yet."""

    def __init__(self, source: Path, draft: Path, tell: Tell, cancelled: threading.Event) -> None:
        self._source = source
        self._draft = draft
        self._tell = tell
        self._cancelled = cancelled
        self._told_s = 0.0
        self._done = 0
        self._total = 0

    def run(self) -> Notes:
        """Copy; the notes of the whole draft.

        Raises:
            OSError: a file cannot be read or written.
            EngineError: the disk is too small.
        """
        names = files_of(self._source)
        sizes = {name: (self._source / name).stat().st_size for name in names}
        have = self._kept(sizes)
        self._total = sum(sizes.values())
        self._done = sum(sizes[name] for name in have)
        self._check_space()
        for name in names:
            if name not in have:
                have[name] = self._file(name)
                write_notes(self._draft, Notes(files=dict(sorted(have.items()))))
        return Notes(files=dict(sorted(have.items())))

    def _kept(self, sizes: dict[str, int]) -> dict[str, Note]:
        """What an earlier pull has left whole; the rest goes."""
        before = read_notes(self._draft).files
        kept = {}
        for name, note in before.items():
            path = self._draft / name
            if sizes.get(name) == note.size and path.is_file() and noted(path, note.sha256) == note:
                kept[name] = note
        for path in [path for path in self._draft.rglob("*") if path.is_file()]:
            name = path.relative_to(self._draft).as_posix()
            if name not in kept and not name.startswith(OURS):
                path.unlink()
        return kept

    def _check_space(self) -> None:
        needed, free = self._total - self._done, shutil.disk_usage(self._draft).free
        if needed + _SPARE_BYTES > free:
            raise _broken(
                f"{self._draft.parent} has {free / 1e9:.1f} GB free, expected {needed / 1e9:.1f} GB for "
                f"{self._source.name} and {_SPARE_BYTES / 1e9:.1f} GB to spare"
            )

    def _file(self, name: str) -> Note:
        target, part = self._draft / name, self._draft / f"{name}.part"
        target.parent.mkdir(parents=True, exist_ok=True)
        found = hashlib.sha256()
        with (self._source / name).open("rb") as reader, part.open("wb") as writer:
            while chunk := reader.read(_CHUNK):
                if self._cancelled.is_set():
                    raise EngineError("the pull was cancelled")
                found.update(chunk)
                writer.write(chunk)
                self._count(len(chunk))
            writer.flush()
            os.fsync(writer.fileno())
        part.replace(target)
        return noted(target, found.hexdigest())

    def _count(self, size: int) -> None:
        self._done += size
        if (now := time.monotonic()) - self._told_s >= _TELL_S:
            self._told_s = now
            self._tell(f"{self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB")


def _culprit(source: Path, copied: Notes, revision: str) -> str:
    """Which file of the store is wrong, as far as the store's own notes can tell."""
    right = read_notes(source)
    if right.revision != revision:
        return f"{source} has revision {copied.revision}"
    for name in sorted(right.files.keys() | copied.files.keys()):
        ours, theirs = right.files.get(name), copied.files.get(name)
        if ours is None:
            return f"{source / name} is too many"
        if theirs is None:
            return f"{source / name} is missing"
        if ours.sha256 != theirs.sha256:
            return f"{source / name} has digest {theirs.sha256[:16]}, expected {ours.sha256[:16]}"
    return str(source)


def _broken(text: str) -> EngineError:
    return EngineError(text, "unknown_model")
