"""YAML that remembers where it stood: one file, or a folder whose files are parts of one whole.

What is wrong with it is collected instead of raised, so that a person mends everything at once, each fault
with its file and line.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from schemas.yamlfile import LOADER

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
        self.mark(self.data, Place(self.path, 1))

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
            if isinstance(step, int) and id(at) in self._index:
                found = self._index[id(at)].start  # its list may have been put together of several
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
        except yaml.YAMLError as error:
            mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
            place = Place(file, 1 if mark is None else mark.line + 1)
            self.faults.append(Fault(place, "body", f"{problem or error}, expected YAML"))
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
            loader = LOADER(stream)
            try:
                node = loader.get_single_node()
                return None if node is None else _Reader(self, loader, file).plain(node)
            finally:
                loader.dispose()

    def mark(self, container: object, start: Place) -> dict[Hashable, Place]:
        """Remember where a mapping or list begins; what is returned takes the places of its keys."""
        index = self._index[id(container)] = _Index(container, start, {})
        return index.keys


@dataclass
class _Reader:
    """Makes plain data of one file's nodes; an anchor's value is made once, wherever it is used."""

    marked: Marked
    loader: Any
    file: Path
    made: dict[int, Any] = field(default_factory=dict)

    def plain(self, node: yaml.Node) -> Any:
        if id(node) in self.made:
            return self.made[id(node)]
        if isinstance(node, yaml.SequenceNode):
            return self._list(node)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node)
        return self.loader.construct_object(node, deep=True)

    def _list(self, node: yaml.SequenceNode) -> list[Any]:
        rows: list[Any] = []
        self.made[id(node)] = rows
        places = self.marked.mark(rows, self._place(node))
        for i, child in enumerate(node.value):
            places[i] = self._place(child)
            rows.append(self.plain(child))
        return rows

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        self.made[id(node)] = mapping
        places = self.marked.mark(mapping, self._place(node))
        self.loader.flatten_mapping(node)
        for key_node, child in node.value:
            key = self.loader.construct_object(key_node, deep=True)
            place = self._place(key_node)
            if not isinstance(key, str):
                text = f"a {type(key).__name__}, expected a word for a key"
                self.marked.faults.append(Fault(place, str(key), text))
            elif key in mapping:
                self.marked.faults.append(Fault(place, key, "given twice"))
            places[str(key)] = place
            mapping[str(key)] = self.plain(child)
        return mapping

    def _place(self, node: yaml.Node) -> Place:
        return Place(self.file, node.start_mark.line + 1)


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


def unique(faults: Iterable[Fault]) -> list[Fault]:
    """In the order of the files and lines, each once."""
    return sorted(set(faults), key=lambda f: (f.place.file.name, f.place.line, f.key, f.text))
