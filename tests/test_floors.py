"""What import-linter cannot say about the floors: where packages come from, ambient state."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

REPO = Path(__file__).resolve().parent.parent
TOP_LEVEL = ("agents", "schemas", "solver", "streams")

# Pure: the same input gives the same output (docs/architecture.md). A folder stands for everything below it.
PURE = (
    "solver",
    "streams/core",
    "agents/affinity.py",
    "agents/balance.py",
    "agents/deployable.py",
    "agents/ledger.py",
    "agents/lifecycle.py",
    "agents/routing.py",
    "agents/talk.py",
    "agents/vitals.py",
)
IMPURE_IMPORTS = frozenset(
    {
        *("aiokafka", "asyncio", "faust", "httpx", "mode", "opentelemetry", "socket", "zmq"),
        *("random", "secrets", "subprocess", "threading", "time", "uuid"),
    }
)
# Attribute chains that read the clock or the environment through modules that are otherwise fine to import.
AMBIENT = frozenset(
    {
        "datetime.now",
        "datetime.utcnow",
        "datetime.today",
        "date.today",
        "datetime.datetime.now",
        "datetime.datetime.utcnow",
        "os.environ",
        "os.getenv",
        "os.urandom",
        "os.getpid",
    }
)


def _pure_files() -> Iterator[Path]:
    for name in PURE:
        path = REPO / name
        if path.is_dir():
            yield from sorted(path.rglob("*.py"))
        elif path.exists():
            yield path


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def ambient_reads(source: str) -> list[str]:
    """The clock and environment reads of a module's source, as `line: name`."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
    return [f"{node.lineno}: {_dotted(node)}" for node in nodes if _dotted(node) in AMBIENT]


@pytest.mark.parametrize("package", TOP_LEVEL)
def test_package_is_ours(package: str) -> None:
    """An SDK on PyPI is imported as `agents` too; an installed one must not shadow ours."""
    found = importlib.import_module(package).__file__
    assert found is not None
    assert Path(found).resolve() == REPO / package / "__init__.py"


def test_docker_folder_is_no_package() -> None:
    """A package named docker would shadow the Docker SDK that testcontainers imports."""
    assert not list((REPO / "docker").rglob("__init__.py"))


def test_packages_are_empty_at_the_top() -> None:
    """Importing `solver.roofline` must not load Pyomo."""
    filled = [str(p) for t in TOP_LEVEL for p in (REPO / t).rglob("__init__.py") if p.read_text().strip()]
    assert filled == []


def test_pure_agents_import_nothing_impure() -> None:
    """As the contract `pure`, for modules of `agents`, whose neighbours are impure."""
    graph = grimp.build_graph(*TOP_LEVEL, include_external_packages=True)
    for name in PURE:
        module = name.removesuffix(".py").replace("/", ".")
        if module in graph.modules:
            reached = {module} | graph.find_upstream_modules(module, as_package=(REPO / name).is_dir())
            assert not reached & IMPURE_IMPORTS, f"{module} reaches {sorted(reached & IMPURE_IMPORTS)}"


def test_pure_parts_read_no_clock_and_no_environment() -> None:
    found = {str(p.relative_to(REPO)): ambient_reads(p.read_text()) for p in _pure_files()}
    assert {path: reads for path, reads in found.items() if reads} == {}


def test_ambient_reads_are_seen() -> None:
    """The check above can fail."""
    source = "import os\nfrom datetime import datetime\nnow = datetime.now()\nhome = os.environ['HOME']\n"
    assert ambient_reads(source) == ["3: datetime.now", "4: os.environ"]
