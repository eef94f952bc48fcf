"""YAML that remembers where it stood: one file, or a folder whose files are parts of one whole.

What is wrong with it is collected instead of raised, so that a person mends everything at once, each fault
with its file and line.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from schemas.faults import Fault, Place, Steps
from schemas.secret import is_secret, shown
from schemas.yaml_nodes import PLAIN, Document, UnfitError, document


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
    unread: bool = False
    """Whether a part could not be read at all: what seems to be missing may stand there."""
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
        content = self.content(file)
        if content is None:
            return
        if not content:
            self._lacks(Fault(Place(file, 1), "body", "empty, expected keys with lists under them"))
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
                self._lacks(Fault(place, "include", f"{name!r}, expected a file beside this one"))

    def content(self, file: Path) -> dict[str, Any] | None:
        """The keys of one file, as they stand there; None and a fault if it is none of keys.

        Raises:
            OSError: it cannot be read.
        """
        try:
            found = document(file.read_bytes())
            try:
                content = {} if found.root is None else _Reader(self, found, file).plain(found.root)
            finally:
                found.dispose()
        except yaml.YAMLError as error:
            mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
            place = Place(file, 1 if mark is None else mark.line + 1)
            text = " ".join(str(problem or error).split())
            if text.startswith("but "):
                text = f"{getattr(error, 'context', None)}, {text}"
            self._lacks(
                Fault(place, "body", text if "expected" in text.split() else f"{text}, expected YAML")
            )
            return None
        if not isinstance(content, dict):
            got = repr(str(content)[:80])
            self._lacks(Fault(Place(file, 1), "body", f"{got}, expected `name: value` lines"))
            return None
        return content

    def _lacks(self, fault: Fault) -> None:
        self.unread = True
        self.faults.append(fault)

    def mark(self, container: object, start: Place) -> dict[Hashable, Place]:
        """Remember where a mapping or list begins; what is returned takes the places of its keys."""
        index = self._index[id(container)] = _Index(container, start, {})
        return index.keys


@dataclass
class _Reader:
    """Makes plain data of one file's nodes; an anchor's value is made once, wherever it is used."""

    marked: Marked
    document: Document
    file: Path
    made: dict[int, Any] = field(default_factory=dict)
    way: list[str] = field(default_factory=list)

    def plain(self, node: yaml.Node) -> Any:
        if id(node) in self.made:
            return self.made[id(node)]
        if isinstance(node, yaml.CollectionNode) and node.tag not in PLAIN:
            self._fault(node, f"tag {node.tag!r}, expected a plain list or mapping")
        if isinstance(node, yaml.SequenceNode):
            return self._list(node)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node)
        try:
            return self.document.value(node)
        except UnfitError as error:
            got = "a secret" if is_secret(" ".join(self.way)) else repr(str(node.value)[:80])
            self._fault(node, f"{got} is {error}")
            return node.value

    def _list(self, node: yaml.SequenceNode) -> list[Any]:
        rows: list[Any] = []
        self.made[id(node)] = rows
        places = self.marked.mark(rows, self._place(node))
        for i, child in enumerate(node.value):
            places[i] = self._place(child)
            rows.append(self._under(str(i), child))
        return rows

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        self.made[id(node)] = mapping
        places = self.marked.mark(mapping, self._place(node))
        own = {id(key) for key, _ in node.value}
        self.document.flatten(node)
        given: set[str] = set()
        for key_node, child in node.value:
            key = self._key(key_node)
            if key in given and id(key_node) in own:
                self._fault(key_node, "given twice", key)
            if id(key_node) in own:
                given.add(key)
            places[key] = self._place(key_node)
            mapping[key] = self._under(key, child)
        return mapping

    def _key(self, node: yaml.Node) -> str:
        try:
            key = self.document.value(node)
        except UnfitError:
            key = node.value
        if not isinstance(key, str):
            self._fault(node, f"a {type(key).__name__}, expected a word for a key", str(key))
        return str(key)

    def _under(self, step: str, node: yaml.Node) -> Any:
        self.way.append(step)
        value = self.plain(node)
        self.way.pop()
        return value

    def _fault(self, node: yaml.Node, text: str, *key: str) -> None:
        way = ".".join(shown([*self.way, *key]))
        self.marked.faults.append(Fault(self._place(node), way or "body", text))

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
