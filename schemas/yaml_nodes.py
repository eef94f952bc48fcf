"""YAML as a tree of nodes that is safe to spell out: no circles, no abyss, nothing grown by aliases.

A file of a few hundred bytes can stand for more values than memory holds, each alias repeating the one before
it (the "billion laughs"). So nodes are measured, each once, before any value is made of them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml
from yaml.error import Mark, MarkedYAMLError
from yaml.reader import ReaderError

MOST_ADDED = 1_000_000
"""Characters (and one a value) by which aliases may make a file longer; one without may have any length."""
DEEPEST = 100
"""Lists and mappings within each other. Python's own recursion ends at 1000."""

PLAIN = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})
"""Tags of lists and mappings that are nothing more."""


# libyaml's parser where PyYAML was built with it: six times as fast, the same marks.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # one of two classes
    """`1e-07` is a number, as YAML 1.2 and JSON have it; PyYAML's YAML 1.1 wants a point and a sign."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)

_NO_VALUE = (ValueError, LookupError, ArithmeticError, AttributeError, TypeError)
"""What PyYAML's constructors raise, beside its own errors, at text that does not fit its tag."""


class UnfitError(ValueError):
    """A value that is not what it looks like; the text does not repeat it, since it may be a secret."""


@dataclass
class Document:
    """The first document of a file, and the loader that knows its tags. To be disposed of."""

    loader: Any
    root: yaml.Node | None

    def flatten(self, node: yaml.MappingNode) -> None:
        """Carry out the `<<` of a mapping.

        Raises:
            yaml.YAMLError: what it names is no mapping.
        """
        self.loader.flatten_mapping(node)

    def value(self, node: yaml.Node) -> Any:
        """The value of a node, as its tag has it.

        Raises:
            UnfitError: its text does not fit its tag: 2026-13-45 looks like a day, and there is none.
            yaml.YAMLError: the tag is none that is safe.
        """
        try:
            return self.loader.construct_object(node, deep=True)
        except _NO_VALUE as error:
            kind = node.tag.rpartition(":")[2]
            reason = f" ({error})" if kind == "timestamp" and isinstance(error, ValueError) else ""
            raise UnfitError(f"no {kind}{reason}, expected one, or quotes around it") from error

    def dispose(self) -> None:
        """Free what the parser holds."""
        self.loader.dispose()


def document(data: bytes) -> Document:
    """Read a file's first document and measure it.

    Raises:
        yaml.YAMLError: it is no YAML, an alias is within itself, or it is too deep, or by aliases too large.
    """
    try:
        loader = _Loader(data)
    except ReaderError as error:
        raise _at_position(error, data) from error
    try:
        root = loader.get_single_node()
        if root is not None:
            _Measure().of(root, 1)
    except ReaderError as error:
        loader.dispose()
        raise _at_position(error, data) from error
    except RecursionError as error:  # PyYAML's own parser; libyaml's has a limit
        loader.dispose()
        raise yaml.YAMLError(f"too deep, expected at most {DEEPEST} levels") from error
    except yaml.YAMLError:
        loader.dispose()
        raise
    return Document(loader, root)


def _at_position(error: ReaderError, data: bytes) -> yaml.YAMLError:
    """The same with a line: which the reader, who looks at characters, does not count."""
    line = data.count(b"\n", 0, error.position)
    mark = Mark("", error.position, line, 0, None, 0)
    foreign = "UTF-8" in str(error.reason)
    problem = f"byte {error.position} is not UTF-8, expected text" if foreign else str(error.reason)
    return MarkedYAMLError(problem=problem, problem_mark=mark)


class _Size(NamedTuple):
    """Of a node with its aliases spelt out."""

    length: int
    depth: int


@dataclass
class _Measure:
    known: dict[int, _Size | None] = field(default_factory=dict)
    """None while a node is being measured."""
    written: int = 0
    """Length of all nodes so far, each once."""

    def of(self, node: yaml.Node, level: int) -> _Size:
        if id(node) in self.known:
            size = self.known[id(node)]
            if size is None:
                raise _wrong(node, "an alias within what it stands for, expected no circle")
            return size
        if level > DEEPEST:
            raise _wrong(node, f"too deep, expected at most {DEEPEST} levels")
        self.known[id(node)] = None
        own = 1 + (len(node.value) if isinstance(node.value, str) else 0)
        self.written += own
        parts = [self.of(child, level + 1) for child in _children(node)]
        size = _Size(own + sum(p.length for p in parts), 1 + max((p.depth for p in parts), default=0))
        if size.length > self.written + MOST_ADDED:
            raise _wrong(node, f"aliases add {size.length:.2g} characters, expected at most {MOST_ADDED:,}")
        if size.depth > DEEPEST:
            raise _wrong(node, f"too deep once aliases are spelt out, expected at most {DEEPEST} levels")
        self.known[id(node)] = size
        return size


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair


def _wrong(node: yaml.Node, problem: str) -> MarkedYAMLError:
    return MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
