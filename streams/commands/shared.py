"""What all commands share: refusals of one line, the question whether Kafka is there, tracing."""

import asyncio
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
import yaml
from pydantic import ValidationError
from rich.console import Console

from agents.files import make_writable
from schemas.catalog import PAPER_CATALOG, SHIPPED_CATALOG, Catalog, load_catalog
from schemas.codec import describe
from schemas.faults import FileError
from schemas.settings import Settings

BAD_INPUT = 2
NAMED = {"shipped": SHIPPED_CATALOG, "paper": PAPER_CATALOG}
CatalogOption = Annotated[
    Path | None,
    typer.Option("--catalog", help="File or folder; or `shipped`, or `paper`; default: the settings'."),
]
File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True)]


def refused(text: str) -> typer.Exit:
    """To be raised: the one line that says what was wrong, and exit code 2."""
    console = Console(stderr=True, soft_wrap=True, markup=False, emoji=False, highlight=False)
    console.print(f"coral: {text}")
    return typer.Exit(BAD_INPUT)


@contextmanager
def bad_input() -> Iterator[None]:
    """What a person gave and can mend: one line, or one for each fault of a file, and exit code 2."""
    try:
        yield
    except FileError as error:
        raise refused(str(error)) from error
    except ValidationError as error:
        raise refused(describe(error)) from error
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise refused(" ".join(str(error).split())) from error  # YAML's errors have several lines
    except _kafka_error() as error:
        raise refused(f"Kafka: {error}") from error
    except _state_error() as error:
        raise refused(str(error)) from error


def _kafka_error() -> type[Exception]:
    """Loaded once something was raised: most commands do without a Kafka client, which takes its time."""
    from aiokafka.errors import KafkaError

    of_clients: type[Exception] = KafkaError
    return of_clients


def _state_error() -> type[Exception]:
    """Likewise."""
    from agents.state_dir import StateError

    return StateError


def catalog_at(settings: Settings, path: Path | None) -> Path:
    """A catalog's place by its path or name; a path that exists goes first, none is the settings'."""
    if path is None:
        return settings.catalog
    return path if path.exists() else NAMED.get(str(path), path)


def catalog_named(settings: Settings, path: Path | None) -> Path | None:
    """Likewise; none stays none, where something else than the settings says which it is."""
    return None if path is None else catalog_at(settings, path)


@contextmanager
def reading(field: str, expected: str = "a file or folder that can be read") -> Iterator[None]:
    """Name the option or setting whose file is read, or written, where it cannot be."""
    try:
        yield
    except OSError as error:
        why = str(error) if error.strerror is None else f"{error.filename}: {error.strerror}"
        raise ValueError(f"{field}: {why}, expected {expected}") from error


def read_catalog(settings: Settings, path: Path | None, field: str = "--catalog") -> Catalog:
    """The catalog that is named, or the settings'.

    Raises:
        ValueError: it cannot be read, or is none: with the field that names it, or its files and lines.
    """
    with reading("catalog" if path is None else field):
        return load_catalog(catalog_at(settings, path))


def state_folder(settings: Settings, *names: str) -> Path:
    """A folder under `state_dir`, made.

    Raises:
        OSError: it cannot be made or written; the setting is named.
    """
    folder = settings.state_dir.absolute().joinpath(*names)
    try:
        make_writable(folder)
    except OSError as error:
        raise OSError(f"state_dir: {folder} cannot be written: {error.strerror}") from error
    return folder


@contextmanager
def own_folder(settings: Settings, who: str, *names: str) -> Iterator[Path]:
    """A folder under `state_dir` that no other process uses meanwhile.

    Raises:
        OSError: as `state_folder`.
        StateError: another process has it.
    """
    folder = state_folder(settings, *names)
    from agents.state_dir import owned

    with owned(folder, who):
        yield folder


@contextmanager
def asking_kafka() -> Iterator[None]:
    """As `bad_input`, where Kafka is asked first: why it cannot be reached is said once, by us."""
    from aiokafka.errors import KafkaConnectionError

    client = logging.getLogger("aiokafka")
    level = client.level
    client.setLevel(logging.CRITICAL)
    with bad_input():
        try:
            yield
        except KafkaConnectionError as error:
            raise refused(str(error)) from error
        finally:
            client.setLevel(level)


def need_topics(settings: Settings) -> None:
    """End the command unless Kafka answers and has the topics: clients would wait without a word."""
    with asking_kafka():
        asyncio.run(_check_topics(settings))


async def _check_topics(settings: Settings) -> None:
    from agents.admin import missing_topics

    if missing := await missing_topics(settings):
        where = settings.kafka.bootstrap_servers
        raise ValueError(f"{', '.join(missing)}: not on {where}; `coral topics create` makes them")


def trace() -> None:
    """Give every message a traceparent. Exporting spans is for whoever adds an exporter."""
    from opentelemetry import trace as api
    from opentelemetry.sdk.trace import TracerProvider

    api.set_tracer_provider(TracerProvider())


# --- options that several commands have --------------------------------------------------------------
def scale(given: float) -> float:
    """Check `--time-scale`."""
    if not (math.isfinite(given) and given >= 0):
        raise refused(f"--time-scale: {given}, expected a finite number of at least 0")
    return given


def seconds(given: float | None) -> float | None:
    """Check `--seconds`."""
    if given is not None and not (math.isfinite(given) and given > 0):
        raise refused(f"--seconds: {given}, expected a finite number above 0")
    return given


def engine(given: str | None) -> str | None:
    """Check `--engine`."""
    if given not in (None, "simulated", "vllm"):
        raise refused(f"--engine: {given!r}, expected simulated or vllm")
    return given
