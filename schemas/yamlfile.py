"""YAML files, read as strictly as everything else that crosses a boundary."""

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

Model = TypeVar("Model", bound=BaseModel)

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser where PyYAML was built with it: ten times as fast, the same marks."""
_ANY = TypeAdapter[object](object, config=ConfigDict(ser_json_inf_nan="constants"))
"""Infinities stay what they are, for the model to refuse; by default they would become null."""


def load_yaml(model: type[Model], path: Path) -> Model:
    """Read a YAML file as `model`.

    Raises:
        OSError: the file cannot be read.
        yaml.YAMLError: it is no YAML; the error names the file.
        pydantic.ValidationError: a field is missing, unknown or impossible; the error names it, and a note
            the file.
    """
    with path.open("rb") as file:
        content = yaml.load(file, Loader=LOADER)  # noqa: S506 - a safe one
    # JSON in between, so that YAML's lists meet the strict models as JSON arrays do.
    plain = _ANY.dump_json(content)
    try:
        return model.model_validate_json(plain)
    except ValidationError as error:
        error.add_note(str(path))
        raise
