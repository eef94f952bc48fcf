"""Library files and what belongs to them: the set-up asked for, the catalog that one was built from."""

from collections.abc import Sequence
from pathlib import Path

from schemas.catalog import PAPER_CATALOG, Catalog, Runtime, load_catalog
from schemas.performance import load_efficiencies
from schemas.settings import Settings
from solver.figures import Figures
from solver.library import Library
from solver.library_file import load_library
from solver.profiles import load_profile
from solver.setups import PAPER_SETUPS, Setup, SetupFile, own_setup, paper_setup, read_setup


def setup_of(settings: Settings, name: str | None, catalog: Path | None = None) -> Setup:
    """A paper's set-up, a file's, or the settings' own.

    Args:
        name: `core`, `extended`, or a path; None for what the settings serve.
        catalog: instead of the one that the set-up says.

    Raises:
        OSError: a file cannot be read.
        ValueError: what it says cannot be; the field is named.
    """
    if name in PAPER_SETUPS:
        return paper_setup(name, load_catalog(catalog or PAPER_CATALOG))
    if name is None:
        return own_setup(load_catalog(catalog or settings.catalog), _settings_own(settings))
    path = Path(name)
    if not path.is_file():
        known = ", ".join(PAPER_SETUPS)
        raise FileNotFoundError(f"--setup: {name!r} is neither a file nor one of {known}")
    asked, own_catalog = read_setup(path)
    return own_setup(load_catalog(catalog or own_catalog or settings.catalog), asked, path.stem)


def _settings_own(settings: Settings) -> SetupFile:
    """What the controller is to serve and to plan with, as far as the settings say."""
    serve = {model: tuple(classes) for model, classes in settings.control.serve.items()}
    return SetupFile(serve=serve or None, configurations=tuple(settings.control.configurations) or None)


def figures_for(settings: Settings, catalog: Catalog) -> Figures:
    """All that templates are rated by, with the settings' efficiencies and measured points.

    Raises:
        OSError, ValueError: as the loaders.
    """
    profile = load_profile(settings.profiles, catalog)
    return Figures(catalog, load_efficiencies(settings.efficiencies), profile)


def runtime_of(name: str | None) -> Runtime | None:
    """What `--runtime` names; None for the set-up's own."""
    runtimes: dict[str | None, Runtime | None] = {None: None, "vllm": "vllm", "coral": "coral"}
    if name not in runtimes:
        raise ValueError(f"--runtime: {name!r}, expected vllm or coral")
    return runtimes[name]


def open_library(settings: Settings, path: Path, catalog: Path | None = None) -> Library:
    """A library with what makes its templates.

    Args:
        catalog: None takes the settings' or the paper's, whichever it was built from.

    Raises:
        OSError: a file cannot be read.
        LibraryError: it is no library, or built from something else, which is named.
    """
    plain = load_library(path)
    places: Sequence[Path] = (settings.catalog, PAPER_CATALOG) if catalog is None else (catalog,)
    for place in places:
        figures = figures_for(settings, load_catalog(place))
        if figures.catalog_digest == plain.inputs.catalog:
            return load_library(path, figures)
    return load_library(path, figures_for(settings, load_catalog(places[0])))  # which says what is stale
