"""YAML files, read as strictly as everything else that crosses a boundary."""

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

Model = TypeVar("Model", bound=BaseModel)

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser where PyYAML was built with it: ten times as fast, the same marks."""


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
    # JSON in between, so that YAML's lists meet the strict models as JSON arrays do. A NaN stays one and is
    # refused: as JSON's null it would read as a field that was not given.
    plain = to_json(content, inf_nan_mode="constants")
    try:
        return model.model_validate_json(plain)
    except ValidationError as error:
        error.add_note(str(path))
        raise
