"""A library as a file: a ZIP archive of one JSON header and the arrays of every part, as NumPy writes them.

The same library gives the same bytes. A reader checks the schema version, that the content has the digest
that the header states, and that it was built from what the reader needs.
"""

import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from schemas.base import canonical
from solver.figures import Figures
from solver.kept import Kept
from solver.library import ARRAYS, SCHEMA, Header, Inputs, Library, LibraryError, Part, plain_array

HEADER = "header.json"
SUFFIX = ".templates"
"""What the files' names end in by custom."""


def save_library(library: Library, path: Path, writer: int = 0) -> None:
    """Write a library, whole or not at all: others may be reading the old one, or writing theirs.

    Args:
        writer: tells those apart who may write at the same time, by process id, say.

    Raises:
        OSError: the file cannot be written.
    """
    unfinished = path.with_name(f"{path.name}.{writer}")
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
            header = {"digest": library.digest, "library": library.header.model_dump(mode="json")}
            archive.writestr(_entry(HEADER), canonical(header))
            for number, kept in enumerate(library.arrays):
                for name in ARRAYS:
                    archive.writestr(_entry(_member(number, name)), _npy(getattr(kept, name)))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def load_library(path: Path, figures: Figures | None = None, needed: Inputs | None = None) -> Library:
    """Read what `save_library` wrote.

    Args:
        figures: what it was rated by, to make templates of its rows with.
        needed: what it has to be built from; None takes any.

    Raises:
        OSError: the file cannot be read.
        LibraryError: it is no library, of another schema version, damaged, or stale: built from something
            else than `figures` or `needed`, which is named.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            stated, header = _header(path, json.loads(archive.read(HEADER)))
            arrays = tuple(_kept(archive, number, part) for number, part in enumerate(header.parts))
    except LibraryError:
        raise
    except (zipfile.BadZipFile, zlib.error, KeyError, TypeError, ValueError, EOFError) as error:
        raise LibraryError(f"{path.name}: not a library file: {_first_line(error)}") from error
    library = Library(header, arrays, figures)
    if library.digest != stated:
        raise LibraryError(f"{path.name}: content has digest {library.digest}, the file says {stated}")
    if stale := _stale(header.inputs, figures, needed):
        raise LibraryError(f"{path.name}: built from another {stale}")
    return library


def _header(path: Path, plain: Any) -> tuple[str, Header]:
    version = plain["library"]["schema_version"]
    if version != SCHEMA:
        raise LibraryError(f"{path.name}: schema version {version}, expected {SCHEMA}")
    try:
        return plain["digest"], Header.model_validate_json(canonical(plain["library"]))
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        raise LibraryError(f"{path.name}: {where}: {fault['msg']}") from error


def _kept(archive: zipfile.ZipFile, number: int, part: Part) -> Kept:
    arrays = {
        name: np.lib.format.read_array(io.BytesIO(archive.read(_member(number, name)))) for name in ARRAYS
    }
    if any(len(array) != part.kept for array in arrays.values()):
        raise ValueError(f"{'/'.join(part.key)}: expected {part.kept} rows of every array")
    return Kept(
        **arrays,
        considered=part.considered,
        over_rho=part.over_rho,
        valid=part.valid,
        refused=dict(part.refused),
    )


def _stale(built: Inputs, figures: Figures | None, needed: Inputs | None) -> str:
    """What a library was built from that is not what is needed; empty if nothing."""
    if needed is not None:
        return "; ".join(needed.differences(built))
    if figures is None:
        return ""
    here = built.model_copy(
        update={
            "catalog": figures.catalog_digest,
            "efficiencies": figures.efficiencies_digest,
            "profile": figures.profile_digest,
        }
    )
    return "; ".join(here.differences(built))


def _member(number: int, name: str) -> str:
    return f"{number}/{name}.npy"


def _entry(name: str) -> zipfile.ZipInfo:
    """Without a time of writing, so that the same content gives the same bytes."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _npy(array: NDArray[np.generic]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, plain_array(array), allow_pickle=False)
    return buffer.getvalue()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
