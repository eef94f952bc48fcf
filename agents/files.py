"""Files that must be whole: state written atomically, settings read strictly."""

import os
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter

Model = TypeVar("Model", bound=BaseModel)


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


def load_yaml(model: type[Model], path: Path) -> Model:
    """Read a YAML file as `model`.

    Raises:
        OSError: the file cannot be read.
        yaml.YAMLError: it is no YAML.
        pydantic.ValidationError: a field is missing, unknown or impossible; the error names it.
    """
    # JSON in between, so that YAML's lists meet the strict models as JSON arrays do.
    plain = TypeAdapter(object).dump_json(yaml.safe_load(path.read_text()))
    return model.model_validate_json(plain)
