"""What the solve worker works with in real life: the catalog's template library and the Pyomo model.

Only the worker process imports this module, so that nobody else loads Pyomo.
"""

import time
from pathlib import Path

from schemas.catalog import load_catalog
from schemas.performance import load_efficiencies
from schemas.problems import Answer, Pool, Problem, ServiceDemand, Stock
from solver.answers import METHOD
from solver.figures import Figures
from solver.library import Library
from solver.methods import method
from solver.profiles import load_profile
from solver.setups import Scope, configuration_of
from streams.library_cache import cached_library
from streams.solve_worker import Bench, Better

N_MAX, MIXED_MAX = 4, 4
"""Most nodes of a template, of one configuration or two. Of all that is sold the sweep finds these in 4 s of
a core; up to six nodes take it 37 s and bring 2% more templates. With more than two configurations there are
five times as many, and the integer program, with a column for each in each pool, goes from 0.5 s to 5 s."""


def open_bench(
    catalog: str,
    efficiencies: str,
    profiles: list[str],
    levels: list[tuple[str, str]],
    configurations: list[str],
    cache: str,
    variants: dict[str, list[str]] | None = None,
) -> Bench:
    """Load or build the library, and solve once, since the first solve loads Pyomo and HiGHS.

    Args:
        catalog: path of the catalog's file.
        efficiencies: path of the file of the GPUs' efficiencies.
        profiles: paths of files of measured points.
        levels: (model, SLO class) pairs to have templates for.
        configurations: node configurations to plan with.
        cache: folder of libraries built before, by digest of what they were built from.
        variants: model -> those that are good enough, where not all are.
    """
    known = load_catalog(Path(catalog))
    profile = load_profile([Path(path) for path in profiles], known)
    figures = Figures(known, load_efficiencies(Path(efficiencies)), profile)
    scope = Scope(
        levels=tuple((model, slo_class) for model, slo_class in levels),
        configurations=tuple(configuration_of(known, name) for name in configurations),
        variants={model: tuple(names) for model, names in (variants or {}).items()},
        n_max=N_MAX,
        mixed_max=MIXED_MAX,
    )
    library = cached_library(figures, scope, Path(cache))
    solve = method(METHOD)

    def answer(problem: Problem, better: Better | None = None) -> Answer:
        return solve(problem, library, clock=time.perf_counter, better=better)

    answer(_first_problem(library))
    return Bench(library.digest, answer)


def _first_problem(library: Library) -> Problem:
    """Something to solve for every service, with one node of everything in one made-up pool."""
    pool = Pool(cloud="warm", region="up", market="on-demand")
    return Problem(
        id="warm-up",
        library=library.digest,
        demands=tuple(ServiceDemand(service=service, rate=1.0) for service in library.services.values()),
        stocks=tuple(
            Stock(pool=pool, configuration=node.name, nodes=1, usd_per_hour=1.0)
            for node in library.inputs.configurations
        ),
    )
