"""YAML files, read as strictly as everything else that crosses a boundary."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from schemas.faults import FileError, causes
from schemas.marked import Marked

Model = TypeVar("Model", bound=BaseModel)

_ANY = TypeAdapter[object](object, config=ConfigDict(ser_json_inf_nan="constants"))
"""Infinities stay what they are, for the model to refuse; by default they would become null."""


def load_yaml(model: type[Model], path: Path) -> Model:
    """Read a YAML file as `model`.

    Raises: as `load_marked`.
    """
    return load_marked(model, path)[0]


def load_marked(model: type[Model], path: Path) -> tuple[Model, Marked]:
    """Read a YAML file as `model`, with what says where each part of it stood.

    Raises:
        OSError: the file cannot be read.
        FileError: it is no YAML of keys and values.
        pydantic.ValidationError: a field is missing, unknown or impossible; the error names it, and a note
            the file and the lines.
    """
    marked = Marked(path)
    marked.data = marked.content(path) or {}
    if marked.faults:
        raise FileError(marked.faults)
    # JSON in between, so that YAML's lists meet the strict models as JSON arrays do.
    plain = _ANY.dump_json(marked.data)
    try:
        return model.model_validate_json(plain), marked
    except ValidationError as error:
        lines = sorted({marked.place(item["loc"]).line for item in causes(error)})
        error.add_note(f"{path}:{','.join(map(str, lines))}")
        raise
