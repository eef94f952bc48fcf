"""Libraries that were built before, in a folder: by the digest of what they are built from."""

import os
from pathlib import Path

from solver.building import build_library, inputs_of
from solver.figures import Figures
from solver.library import Library, LibraryError
from solver.library_file import SUFFIX, load_library, save_library
from solver.setups import Scope


def cached_library(figures: Figures, scope: Scope, folder: Path) -> Library:
    """The library of a scope, from the folder, or built into it.

    Raises:
        OSError: the folder cannot be written.
        LibraryError: limits that cannot be.
    """
    inputs = inputs_of(figures, scope)
    path = folder / f"{inputs.digest}{SUFFIX}"
    if path.exists():
        try:
            return load_library(path, figures, inputs)
        except LibraryError:
            path.unlink(missing_ok=True)  # of an older version or cut short: built again
    library = build_library(figures, scope)
    folder.mkdir(parents=True, exist_ok=True)
    save_library(library, path, os.getpid())
    return library
