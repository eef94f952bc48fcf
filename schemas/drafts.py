"""As much of a model as a file has right: every entry is checked by itself, what is wrong is collected."""

import json
from typing import Any, NamedTuple, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from schemas.faults import Steps, causes
from schemas.marked import Marked


class Draft(NamedTuple):
    """A model made of the valid entries of its lists alone, which those were, and the others' names."""

    model: Any
    kept: dict[str, list[int]]
    unfit: dict[str, list[str]]

    def steps(self, steps: Steps) -> Steps:
        """The way in the file to what is at `steps` in the model."""
        first, *rest = steps
        if rest and isinstance(rest[0], int) and first in self.kept:
            return (first, self.kept[str(first)][rest[0]], *rest[1:])
        return steps


def draft(model: type[BaseModel], marked: Marked) -> Draft:
    """Check every entry of every list by itself; what is wrong becomes faults of `marked`."""
    values: dict[str, Any] = {}
    kept: dict[str, list[int]] = {}
    unfit: dict[str, list[str]] = {}
    for name in marked.data:
        if name not in model.model_fields:
            expected = ", ".join(sorted(model.model_fields))
            marked.fault((name,), f"unknown key, expected one of {expected}")
    for name, info in model.model_fields.items():
        default = () if info.is_required() else info.get_default()
        adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, info.annotation))
        given = marked.data.get(name)
        if isinstance(given, list):
            rows = [(i, _valid(adapter, marked, (name, i), [row], inner=1)) for i, row in enumerate(given)]
            kept[name] = [i for i, row in rows if row is not None]
            values[name] = tuple(row[0] for _, row in rows if row is not None)
            unfit[name] = [_name(given[i]) for i, row in rows if row is None]
        elif name in marked.data:
            found = _valid(adapter, marked, (name,), given)
            values[name] = default if found is None else found
        else:
            values[name] = default
            if info.is_required():
                marked.fault((name,), "missing")
    return Draft(model.model_construct(**values), kept, unfit)


def _name(entry: object) -> str:
    return str(entry.get("name")) if isinstance(entry, dict) else ""


def _valid(adapter: TypeAdapter[Any], marked: Marked, steps: Steps, value: object, inner: int = 0) -> Any:
    """What `adapter` makes of `value`; None and faults if it is not valid.

    Args:
        inner: steps of the error's own way to leave out, since `steps` says them.
    """
    try:
        # JSON, so that YAML's lists meet the strict models as JSON arrays do.
        return adapter.validate_json(json.dumps(value, default=str))
    except ValidationError as error:
        for item in causes(error):
            marked.fault((*steps, *item["loc"][inner:]), _text(item["type"], item["msg"], item["input"]))
        return None


def _text(kind: str, message: str, value: object) -> str:
    if kind == "extra_forbidden":
        return f"unknown key (got {str(value)[:80]!r})"
    if kind == "missing":
        return "missing"
    if kind == "too_short":
        return "none, expected at least one"
    got = f"(got {str(value)[:80]!r})"
    if kind in {"float_type", "int_type"} and isinstance(value, str):
        got = f"(got text, {value[:80]!r}: no quotes)"
    return f"{message.removeprefix('Value error, ')} {got}"
