"""Where a checkpoint's files are on this node, and which revision they are.

A **revision** is the SHA-256 over the names, sizes and contents of a folder's files (ours and hidden ones
left out), so it names exactly these weights, wherever they lie. A **store** is a folder (a mounted bucket,
say) of folders named by revision; the **cache** holds what was pulled from it, by the same names.
"""

from collections.abc import Callable, Mapping
from pathlib import Path


def revision_of(folder: Path) -> str:
    """The revision of the files in `folder`, 64 hexadecimal digits; blocks while it reads them.

    It is remembered beside them (or nowhere, if that cannot be written), by their sizes and times.

    Raises:
        OSError: a file cannot be read.
    """
    raise NotImplementedError


class Store:
    """The models of this node.

    Args:
        models: checkpoint -> the folder that has it, as configured.
        store: where revisions are pulled from; None if nowhere.
        cache: where pulled revisions are kept.
    """

    def __init__(self, models: Mapping[str, Path], store: Path | None, cache: Path) -> None:
        raise NotImplementedError

    async def find(self, checkpoint: str, revision: str | None) -> Path | None:
        """The folder that has it: the configured one, else the cache's; None if it must be pulled.

        Hashes what was not hashed before, in a thread.

        Args:
            revision: None takes whatever the configured folder has.

        Raises:
            EngineError: the node can never have it (refusal `unknown_model`).
        """
        raise NotImplementedError

    async def pull(
        self, checkpoint: str, revision: str, *, progress: Callable[[str], None] | None = None
    ) -> Path:
        """Copy it from the store to the cache, verified; at once if it is there, and once for all ranks.

        Cancelled or killed at any moment, it goes on where it was the next time.

        Args:
            progress: told in words how far it is, about once a second, from another thread.

        Raises:
            EngineError: the store does not have it, it is corrupt (the file is named), or the disk is too
                small (refusal `unknown_model`).
        """
        raise NotImplementedError

    def revisions(self) -> tuple[str, ...]:
        """Revisions on this node that were hashed, sorted: for heartbeats. Never blocks on hashing."""
        raise NotImplementedError
