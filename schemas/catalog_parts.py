"""What a catalog's files say in one place and its models hold in another.

Service levels may stand apart from the models they belong to, under a top-level `levels` whose rows name
their `model`; and a level may name one of the `workloads` instead of spelling it out. So a paper's promises
go with the models that ship, and six models share one trace.
"""

from typing import Any

from schemas.marked import Marked


def put_together(marked: Marked) -> None:
    """Move levels into their models and workloads into their levels; what has no place becomes a fault."""
    _attach_levels(marked)
    _insert_workloads(marked)


def _attach_levels(marked: Marked) -> None:
    models = _by_name(marked.data.get("models"))
    levels = marked.data.get("levels", [])
    for i, level in enumerate(_rows(levels)):
        model = models.get(str(level.get("model")))
        if model is None:
            known = ", ".join(sorted(models))
            marked.fault(
                ("levels", i, "model"), f"{level.get('model')!r} is unknown, expected one of {known}"
            )
        else:
            del level["model"]
            if isinstance(model.setdefault("levels", []), list):  # else the catalog's check names it
                model["levels"].append(level)
    for i, level in enumerate(levels if isinstance(levels, list) else ()):
        if not isinstance(level, dict):
            marked.fault(("levels", i), f"{str(level)[:80]!r}, expected a level with its model")
    if not isinstance(levels, list):
        marked.fault(("levels",), f"{str(levels)[:80]!r}, expected a list of levels, each with its model")
    marked.data.pop("levels", None)  # the catalog has them in its models


def _insert_workloads(marked: Marked) -> None:
    workloads = _by_name(marked.data.get("workloads"))
    for i, model in enumerate(_rows(marked.data.get("models"))):
        for j, level in enumerate(_rows(model.get("levels"))):
            name = level.get("workload")
            if isinstance(name, str) and name in workloads:
                level["workload"] = workloads[name]
            elif isinstance(name, str):
                known = ", ".join(sorted(workloads))
                way = ("models", i, "levels", j, "workload")
                marked.fault(
                    way, f"{name!r} is unknown, expected its figures or one of {known or 'workloads'}"
                )


def _rows(value: object) -> list[dict[str, Any]]:
    """The mappings of a list; whatever else is there is told by the catalog's own check."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _by_name(value: object) -> dict[str, dict[str, Any]]:
    return {str(row.get("name")): row for row in _rows(value)}
