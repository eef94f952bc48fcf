"""What the solve worker works with in real life: the catalog's template library and the Pyomo model.

Only the worker process imports this module, so that nobody else loads Pyomo.
"""

import os
import time
from pathlib import Path

from schemas.base import digest
from schemas.catalog import Catalog, load_catalog
from schemas.performance import Efficiencies, load_efficiencies
from schemas.problems import Answer, Pool, Problem, ServiceDemand, Stock
from solver.answers import METHOD
from solver.library import Library, LibraryError, build_library, load_library
from solver.methods import method
from solver.profiles import Profile, load_profile
from solver.roofline import ENGINE
from streams.solve_worker import Bench


def open_bench(
    catalog: str,
    efficiencies: str,
    profiles: list[str],
    levels: list[tuple[str, str]],
    configurations: list[str],
    cache: str,
) -> Bench:
    """Load or build the library, and solve once, since the first solve loads Pyomo and HiGHS.

    Args:
        catalog: path of the catalog's file.
        efficiencies: path of the file of the GPUs' efficiencies.
        profiles: paths of files of measured points.
        levels: (model, SLO class) pairs to have templates for.
        configurations: node configurations to plan with.
        cache: folder of libraries built before, by digest of what they were built from.
    """
    known = load_catalog(Path(catalog))
    profile = load_profile([Path(path) for path in profiles], known)
    figures = known, load_efficiencies(Path(efficiencies)), profile
    library = _library(*figures, levels, configurations, Path(cache))
    solve = method(METHOD)

    def answer(problem: Problem) -> Answer:
        return solve(problem, library, clock=time.perf_counter)

    answer(_first_problem(library))
    return Bench(library.digest, answer)


def _library(
    catalog: Catalog,
    efficiencies: Efficiencies,
    profile: Profile | None,
    levels: list[tuple[str, str]],
    configurations: list[str],
    cache: Path,
) -> Library:
    pairs = [(model, slo_class) for model, slo_class in levels]
    measured = profile and profile.digest
    key = digest([catalog.digest, digest(efficiencies), measured, pairs, configurations, ENGINE])
    path = cache / f"{key}.json.gz"
    if path.exists():
        try:
            return load_library(path)
        except LibraryError:
            path.unlink(missing_ok=True)  # of an older version or cut short: built again
    library = build_library(
        catalog, levels=pairs, configurations=configurations, efficiencies=efficiencies, profile=profile
    )
    cache.mkdir(parents=True, exist_ok=True)
    # Renamed into place: a standby may be reading, or writing the same.
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    library.save(unfinished)
    unfinished.replace(path)
    return library


def _first_problem(library: Library) -> Problem:
    """Something to solve for every service, with one node of everything in one made-up pool."""
    pool = Pool(cloud="warm", region="up", market="on-demand")
    services = {rated.service.key: rated.service for rated in library.templates}
    return Problem(
        id="warm-up",
        library=library.digest,
        demands=tuple(ServiceDemand(service=service, rate=1.0) for service in services.values()),
        stocks=tuple(
            Stock(pool=pool, configuration=name, nodes=1, usd_per_hour=1.0)
            for name in library.inputs.configurations
        ),
    )
