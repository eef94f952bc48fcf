"""Where a checkpoint's files are on this node, and how they come to it.

A **store** is a folder (a mounted bucket, say) of folders named by revision (`agents.revisions`); the
**cache** holds what was pulled from it, by the same names. A configured folder comes before both.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from agents.engine import EngineError
from agents.pulling import copy_ours, pull
from agents.revisions import known_revision, revision_of

__all__ = ["Store", "revision_of"]


class Store:
    """The models of this node.

    Args:
        models: checkpoint -> the folder that has it, as configured.
        store: where revisions are pulled from; None if nowhere.
        cache: where pulled revisions are kept.
    """

    def __init__(self, models: Mapping[str, Path], store: Path | None, cache: Path) -> None:
        self._models = models
        self._store = store
        self._cache = cache

    async def find(self, checkpoint: str, revision: str | None) -> Path | None:
        """The folder that has it: the configured one, else the cache's; None if it must be pulled.

        Reads what was not read before, in a thread.

        Args:
            revision: None takes whatever the configured folder has.

        Raises:
            EngineError: this node can never have it (refusal `unknown_model`).
        """
        return await asyncio.to_thread(self._find, checkpoint, revision)

    def _find(self, checkpoint: str, revision: str | None) -> Path | None:
        configured = self._models.get(checkpoint)
        if revision is None:
            if configured is None:
                raise _unknown(f"checkpoint {checkpoint}: no path is configured, and no revision to pull")
            self._read(configured)
            return configured
        has = None if configured is None else self._read(configured)
        if has == revision:
            return configured
        pulled = self._cache / revision
        if pulled.is_dir():
            if self._read(pulled) != revision:
                raise _unknown(f"{pulled} was changed since it was pulled; remove it")
            self._add_references(pulled)
            return pulled
        if self._store is not None and (self._store / revision).is_dir():
            return None
        found = f"{configured} has revision {has}" if configured else "no path is configured"
        where = "there is no store" if self._store is None else f"{self._store} has no such folder"
        raise _unknown(f"checkpoint {checkpoint}: revision {revision}: {found}, and {where}")

    def _add_references(self, pulled: Path) -> None:
        """One that was made after the weights were pulled would otherwise be missed for ever."""
        if self._store is not None:
            with contextlib.suppress(OSError):
                copy_ours(self._store / pulled.name, pulled)

    def _read(self, folder: Path) -> str:
        try:
            return revision_of(folder, self._cache)
        except OSError as error:
            raise _unknown(str(error)) from error

    async def revision(self, folder: Path) -> str:
        """The revision of a folder that `find` or `pull` gave.

        Raises:
            EngineError: it cannot be read (refusal `unknown_model`).
        """
        return await asyncio.to_thread(self._read, folder)

    async def pull(
        self, checkpoint: str, revision: str, *, progress: Callable[[str], None] = lambda _: None
    ) -> Path:
        """Copy it from the store to the cache, verified; at once if it is there, and once for all ranks.

        Cancelled or killed at any moment, it goes on with the next file the next time.

        Args:
            progress: told in words how far it is, each second or so, from another thread.

        Raises:
            EngineError: the store does not have it, it is corrupt (the file is named), or the disk is too
                small (refusal `unknown_model`).
        """
        if (found := await self.find(checkpoint, revision)) is not None:
            return found
        assert self._store is not None  # noqa: S101  else `find` had refused
        return await pull(self._store / revision, self._cache, revision, progress)

    def revisions(self) -> tuple[str, ...]:
        """Revisions on this node that were read once, sorted: for heartbeats. Reads no weights."""
        pulled = self._cache.iterdir() if self._cache.is_dir() else ()
        folders = [*self._models.values(), *(folder for folder in pulled if len(folder.name) == 64)]
        known = {known_revision(folder, self._cache) for folder in folders}
        return tuple(sorted(revision for revision in known if revision is not None))


def _unknown(text: str) -> EngineError:
    return EngineError(text, "unknown_model")
