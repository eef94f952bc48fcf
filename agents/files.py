"""Files that must be whole: state is written atomically."""

import os
from pathlib import Path
from tempfile import NamedTemporaryFile


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` so that a crash at any moment leaves the old content or the new one.

    Raises:
        OSError: it could not be written; the old content is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def make_writable(folder: Path) -> None:
    """Make a folder, and see that files can be made in it: rights alone do not say so.

    Raises:
        OSError: it cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=folder, prefix=".writable-"):
        pass
