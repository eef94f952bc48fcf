"""YAML that remembers where it stood: one file, or a folder whose files are parts of one whole.

What is wrong with it is collected instead of raised, so that a person mends everything at once, each fault
with its file and line.
"""

import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, TypeVar, cast

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

Steps = Sequence[int | str]
"""Way from the root to a value: keys and indices, as pydantic's `loc`."""
Whole = TypeVar("Whole", bound=BaseModel)

# libyaml's parser where PyYAML was built with it: six times as fast, the same marks.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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


class _Index(NamedTuple):
    container: object
    """Kept, so that its id is nobody else's."""
    start: Place
    keys: dict[Hashable, Place]


@dataclass
class Marked:
    """Plain data and where each of its parts stood, wherever in `data` that part is moved to."""

    path: Path
    data: dict[str, Any] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    _index: dict[int, _Index] = field(default_factory=dict)
    _read: set[Path] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._index[id(self.data)] = _Index(self.data, Place(self.path, 1), {})

    def place(self, steps: Steps) -> Place:
        """Where the value at `steps` stood, or the innermost part around it that is there."""
        found, at = Place(self.path, 1), cast(object, self.data)
        for step in steps:
            index = self._index.get(id(at))
            if index is not None:
                found = index.keys.get(step, index.start)
            try:
                at = at[step]  # type: ignore[index]
            except (LookupError, TypeError):
                return found
            if isinstance(at, dict) and id(at) in self._index and isinstance(step, int):
                found = self._index[id(at)].start
        return found

    def key(self, steps: Steps) -> str:
        """The dotted path, with the name of an entry instead of its index where it has one."""
        words, at = [], cast(object, self.data)
        for step in steps:
            try:
                at = at[step]  # type: ignore[index]
            except (LookupError, TypeError):
                at = None
            names = (at.get("name"), at.get("slo_class")) if isinstance(at, dict) else ()
            name = next((n for n in names if isinstance(n, str)), None)
            words.append(name if isinstance(step, int) and name else str(step))
        return ".".join(words)

    def fault(self, steps: Steps, text: str) -> None:
        self.faults.append(Fault(self.place(steps), self.key(steps), text))

    # ------------------------------------------------------------------------------------------ reading

    def add(self, file: Path) -> None:
        """Read a file and what it includes; lists of the same name go on, other values are given once."""
        if file.resolve() in self._read:
            return
        self._read.add(file.resolve())
        try:
            content = self._content(file)
        except yaml.MarkedYAMLError as error:
            line = 1 if error.problem_mark is None else error.problem_mark.line + 1
            self.faults.append(Fault(Place(file, line), "body", f"{error.problem}, expected YAML"))
            return
        if not isinstance(content, dict):
            self.faults.append(Fault(Place(file, 1), "body", "expected keys with lists under them"))
            return
        for name, value in content.items():
            place = self._index[id(content)].keys[name]
            self._index[id(self.data)].keys.setdefault(name, place)
            if name == "include":
                self._include(file, place, value)
            elif isinstance(value, list) and isinstance(self.data.get(name, []), list):
                self.data.setdefault(name, []).extend(value)
            elif name in self.data:
                self.faults.append(Fault(place, str(name), "given twice"))
            else:
                self.data[name] = value

    def _include(self, file: Path, place: Place, names: object) -> None:
        for name in names if isinstance(names, list) else [names]:
            part = file.parent / str(name)
            if part.is_file():
                self.add(part)
            else:
                self.faults.append(Fault(place, "include", f"{name!r}, expected a file beside this one"))

    def _content(self, file: Path) -> Any:
        with file.open("rb") as stream:
            loader = _Loader(stream)
            try:
                node = loader.get_single_node()
                return None if node is None else self._plain(loader, node, file, {})
            finally:
                loader.dispose()

    def _plain(self, loader: Any, node: yaml.Node, file: Path, made: dict[int, Any]) -> Any:
        if id(node) in made:
            return made[id(node)]
        start = Place(file, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode):
            rows: list[Any] = []
            made[id(node)] = rows
            places: dict[Hashable, Place] = {}
            for i, child in enumerate(node.value):
                places[i] = Place(file, child.start_mark.line + 1)
                rows.append(self._plain(loader, child, file, made))
            self._index[id(rows)] = _Index(rows, start, places)
            return rows
        if isinstance(node, yaml.MappingNode):
            loader.flatten_mapping(node)
            mapping: dict[Any, Any] = {}
            made[id(node)] = mapping
            self._index[id(mapping)] = _Index(mapping, start, {})
            for key_node, child in node.value:
                self._pair(loader, mapping, key_node, child, file, made)
            return mapping
        return loader.construct_object(node, deep=True)

    def _pair(
        self,
        loader: Any,
        mapping: dict[Any, Any],
        key_node: yaml.Node,
        child: yaml.Node,
        file: Path,
        made: dict[int, Any],
    ) -> None:
        key = loader.construct_object(key_node, deep=True)
        place = Place(file, key_node.start_mark.line + 1)
        if not isinstance(key, str):
            self.faults.append(Fault(place, str(key), f"a {type(key).__name__}, expected a word for a key"))
            key = str(key)
        elif key in mapping:
            self.faults.append(Fault(place, key, "given twice"))
        mapping[key] = self._plain(loader, child, file, made)
        self._index[id(mapping)].keys[key] = place


def read_marked(path: Path) -> Marked:
    """Read a YAML file, or all of a folder (`*.yaml`, in the order of their names), as parts of one mapping.

    Raises:
        OSError: it cannot be read; a folder without any such file counts as absent.
    """
    marked = Marked(path)
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"{path}: a folder without .yaml files, expected a catalog's")
    for file in files:
        marked.add(file)
    return marked


# ------------------------------------------------------------------------------------------------ models


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


def draft(model: type[Whole], marked: Marked) -> Draft:
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
            unfit[name] = [
                str(given[i].get("name")) for i, row in rows if row is None and _has_keys(given[i])
            ]
        elif name in marked.data:
            found = _valid(adapter, marked, (name,), given)
            values[name] = default if found is None else found
        else:
            values[name] = default
            if info.is_required():
                marked.fault((name,), "missing")
    return Draft(model.model_construct(**values), kept, unfit)


def _has_keys(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _valid(adapter: TypeAdapter[Any], marked: Marked, steps: Steps, value: object, inner: int = 0) -> Any:
    """What `adapter` makes of `value`; None and faults if it is not valid.

    Args:
        inner: steps of the error's own way to leave out, since `steps` says them.
    """
    try:
        # JSON, so that YAML's lists meet the strict models as JSON arrays do.
        return adapter.validate_json(json.dumps(value, default=str))
    except ValidationError as error:
        for item in error.errors(include_url=False):
            marked.fault((*steps, *item["loc"][inner:]), _text(item["type"], item["msg"], item["input"]))
        return None


def _text(kind: str, message: str, value: object) -> str:
    if kind == "extra_forbidden":
        return f"unknown key (got {str(value)[:80]!r})"
    if kind == "missing":
        return "missing"
    return f"{message.removeprefix('Value error, ')} (got {str(value)[:80]!r})"


def unique(faults: Iterable[Fault]) -> list[Fault]:
    """In the order of the files and lines, each once."""
    return sorted(set(faults), key=lambda f: (f.place.file.name, f.place.line, f.key, f.text))
