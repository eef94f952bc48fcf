"""YAML files, read as strictly as everything else that crosses a boundary."""

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter

Model = TypeVar("Model", bound=BaseModel)


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
