"""The template library: build it, look into it, compare two."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streams.commands import shared

if TYPE_CHECKING:
    from schemas.settings import Settings
    from solver.figures import Figures
    from solver.library import Library
    from solver.setups import Setup
    from solver.worth import Prices
    from streams.catalog_view import View
    from streams.library_view import Spent

PANEL = "Planning"
PARTLY_EMPTY = 3
"""Exit code: the library is written, and some service has no template."""
app = typer.Typer()
templates_app = typer.Typer(
    no_args_is_help=True, help="Serving templates: the best placement on each node combination."
)
app.add_typer(templates_app, name="templates", rich_help_panel=PANEL)

File = Annotated[Path, typer.Argument(help="A library that `coral templates build` wrote.")]
Service = Annotated[str | None, typer.Option(help="MODEL/CLASS/PHASE; all if not given.")]
Catalog = Annotated[
    Path | None,
    typer.Option(
        help="File or folder; or `shipped`, or `paper`; default: the settings', or the paper's if the "
        "library was built from that."
    ),
]
Region = Annotated[
    list[str] | None, typer.Option(help="Where nodes are bought, cloud/region; may be repeated.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]


@templates_app.command("build")
def build(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    setup: Annotated[
        str | None,
        typer.Option(
            help="core or extended (the paper's), or a file (docs/templates.md); default: what the "
            "settings serve, on what is sold."
        ),
    ] = None,
    runtime: Annotated[str | None, typer.Option(help="vllm or coral; default: the set-up's.")] = None,
    n_max: Annotated[
        int | None,
        typer.Option(
            help="Most nodes of a template; default: the set-up's, else 6, or fewer where they make more "
            "than 2 million combinations: of all that is sold, 4."
        ),
    ] = None,
    rho: Annotated[
        float | None,
        typer.Option(help="Most GPU memory, times the weights; default: the set-up's, else 12."),
    ] = None,
    catalog: Annotated[
        Path | None,
        typer.Option(help="File or folder; or `shipped`, or `paper`; default: the one that the set-up says."),
    ] = None,
    cores: Annotated[int | None, typer.Option(help="How many to use; default: all.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Take nothing over from the file that is there.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build the templates of a set-up. What has not changed is taken over from the file, if there is one.

    Exit code 3 if the library is built, and some of its services have no template.
    """
    from solver.building import build_library, taken_over
    from solver.library_file import save_library
    from solver.worth import Prices
    from streams import library_view

    with shared.bad_input():
        asked, figures = asked_setup(context.obj, setup, runtime, n_max, rho, catalog, cores)
        older = None if fresh else _older(out)
        with _watch() as spent, _progress() as progress:
            library = build_library(figures, asked.scope, older=older, cores=cores, progress=progress)
        with shared.reading("--out", "a file that can be written"):
            save_library(library, out, os.getpid())
        prices = Prices(asked.catalog, asked.regions)
        view = library_view.built(library, prices, spent(cores), taken_over(library, older))
    _tell(view, as_json)
    for service, why in library.empty.items():
        typer.echo(f"coral: {service} has no template: {why}", err=True)
    if library.empty:
        raise typer.Exit(PARTLY_EMPTY)


@templates_app.command("show")
def show(
    context: typer.Context,
    file: File,
    service: Service = None,
    region: Region = None,
    catalog: Catalog = None,
    as_json: Json = False,
) -> None:
    """Show what a library has for each service: combinations, templates, refusals, the best per USD."""
    from streams import library_view

    with shared.bad_input():
        library, prices = _opened(context.obj, file, catalog, region)
        view = library_view.shown(library, prices, service)
    _tell(view, as_json)


@templates_app.command("best")
def best(
    context: typer.Context,
    file: File,
    service: Service = None,
    count: Annotated[int, typer.Option(help="How many of each service.")] = 5,
    region: Region = None,
    catalog: Catalog = None,
    as_json: Json = False,
) -> None:
    """Show what gives most per USD at list prices, with the ids that `coral explain template` takes."""
    from streams import library_view

    with shared.bad_input():
        if count < 1:
            raise ValueError(f"--count: {count}, expected at least 1")
        library, prices = _opened(context.obj, file, catalog, region)
        view = library_view.best(library, prices, count, service)
    _tell(view, as_json)


@templates_app.command("diff")
def diff(
    context: typer.Context,
    first: File,
    second: File,
    region: Region = None,
    catalog: Catalog = None,
    as_json: Json = False,
) -> None:
    """Show how two libraries differ: what they were built from, and in which templates."""
    from solver.library_file import load_library
    from streams import library_view

    with shared.bad_input():
        old, prices = _opened(context.obj, first, catalog, region)
        view = library_view.difference(old, load_library(second), prices)
    _tell(view, as_json)


# ------------------------------------------------------------------------------------------------- inputs


def asked_setup(
    settings: "Settings",
    setup: str | None,
    runtime: str | None,
    n_max: int | None,
    rho: float | None,
    catalog: Path | None = None,
    cores: int | None = None,
) -> "tuple[Setup, Figures]":
    """The set-up of that name, within these limits where they are given, and what its templates are rated by.

    Raises:
        OSError, ValueError: a file cannot be read, or limits cannot be.
    """
    from dataclasses import replace

    from streams.libraries import figures_for, runtime_of, setup_of

    if n_max is not None and n_max < 1:
        raise ValueError(f"--n-max: {n_max}, expected at least 1")
    if rho is not None and not 1 <= rho < float("inf"):
        raise ValueError(f"--rho: {rho}, expected a finite number of at least 1")
    if cores is not None and cores < 1:
        raise ValueError(f"--cores: {cores}, expected at least 1")
    found = setup_of(settings, setup, shared.catalog_named(settings, catalog))
    scope = found.scope.with_limits(runtime_of(runtime), n_max, rho)
    return replace(found, scope=scope), figures_for(settings, found.catalog)


def _older(path: Path) -> "Library | None":
    """What is there already.

    Raises:
        LibraryError: it is no library, or one of another schema version; it may be dear to somebody.
    """
    from solver.library import LibraryError
    from solver.library_file import load_library

    try:
        return load_library(path) if path.exists() else None
    except LibraryError as error:
        raise LibraryError(f"--out: {error}; with --fresh it is replaced") from error


def _opened(
    settings: "Settings", file: Path, catalog: Path | None, regions: list[str] | None
) -> "tuple[Library, Prices]":
    from solver.worth import Prices
    from streams.libraries import open_library

    library = open_library(settings, file, shared.catalog_named(settings, catalog))
    known = library.rated_by.catalog
    sold = {f"{price.cloud}/{price.region}" for price in known.prices}
    if unknown := sorted(set(regions or ()) - sold):
        raise ValueError(f"--region: {unknown[0]!r}, expected one of {', '.join(sorted(sold))}")
    return library, Prices(known, tuple(regions or ()))


# ------------------------------------------------------------------------------------------------ outputs


def _tell(view: "View", as_json: bool) -> None:
    from streams import catalog_view

    if as_json:
        typer.echo(view.as_json())
    else:
        catalog_view.show(view)


@contextmanager
def _watch() -> "Iterator[Callable[[int | None], Spent]]":
    """Measures what is done inside; afterwards, what is given says what it took."""
    import os
    import resource
    import time

    from streams.library_view import Spent

    start_s = time.perf_counter()
    seconds = 0.0

    def spent(asked: int | None) -> Spent:
        cores = asked or len(os.sched_getaffinity(0))
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return Spent(seconds, peak_kib * 1024 / 1e9, cores)

    yield spent
    seconds = time.perf_counter() - start_s


@contextmanager
def _progress() -> "Iterator[Callable[[int, int], None] | None]":
    """A bar on the terminal, none where there is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("combinations"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("combinations", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
