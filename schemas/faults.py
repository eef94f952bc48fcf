"""What is wrong with files that people write: each fault with its file, line and key."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

Steps = Sequence[int | str]
"""Way from the root to a value: keys and indices, as pydantic's `loc`."""


class Place(NamedTuple):
    """File and line, from 1."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Fault(NamedTuple):
    """One thing that is wrong: where it stands, the key's dotted path, and what was found and expected."""

    place: Place
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.key}: {self.text}"


SAID = 100
"""After which nobody reads on."""


class FileError(ValueError):
    """All that is wrong with a file or a folder of files; its text has a line a fault, `SAID` at most."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        said = [str(fault) for fault in self.faults[:SAID]]
        if len(self.faults) > SAID:
            said.append(f"and {len(self.faults) - SAID} more faults")
        super().__init__("\n".join(said))


def causes(error: ValidationError) -> list[ErrorDetails]:
    """What is wrong, but for what follows from it: a list that is left empty, its entries being wrong."""
    told = error.errors(include_url=False)
    return [item for item in told if not (item["type"] == "too_short" and item["input"])]


def unique(faults: Iterable[Fault]) -> list[Fault]:
    """In the order of the files and lines, each once."""
    return sorted(set(faults), key=lambda f: (f.place.file.name, f.place.line, f.key, f.text))
