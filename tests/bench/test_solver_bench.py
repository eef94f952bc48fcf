"""The core set-up (coral.md): build its library, then solve snapshots of it with real prices.

Prints instance, cores, method, gap and seconds. The limits are loose ones that a loaded machine holds; the
printed figures are what counts.
"""

import os
import random
import statistics
import time

import pytest

from schemas.catalog import Catalog, load_catalog
from schemas.performance import load_efficiencies
from schemas.problems import Pool, Problem, Running, Service, ServiceDemand, Stock
from solver.building import build_library
from solver.figures import Figures
from solver.library import Library
from solver.methods import METHODS
from solver.setups import Scope, configuration_of
from solver.verify import verify
from streams.solve_bench import MIXED_MAX

pytestmark = pytest.mark.bench

MODELS = ("qwen3-32b", "gpt-oss-20b", "phi-4-14b")
SERVICES = tuple(Service(model=model, slo_class="interactive") for model in MODELS)
CONFIGURATIONS = tuple(f"{n}x{gpu}" for gpu in ("L4", "A10G", "L40S") for n in (1, 2, 4, 8))


def snapshot(
    catalog: Catalog, library: Library, seed: int, scale: float, running: tuple[Running, ...]
) -> Problem:
    """10 requests/s a model, +-20%; seeded stock of up to `scale` x 8 nodes a configuration and pool."""
    rng = random.Random(seed)
    stocks = tuple(
        Stock(
            pool=Pool(cloud=p.cloud, region=p.region, market=p.market),
            configuration=p.configuration,
            nodes=round(rng.randint(2, 8) * scale),
            usd_per_hour=p.usd_per_hour,
        )
        for p in catalog.prices
        if p.configuration in CONFIGURATIONS
    )
    return Problem(
        id=f"core-{seed}-{scale}",
        library=library.digest,
        demands=tuple(ServiceDemand(service=s, rate=10 * rng.uniform(0.8, 1.2)) for s in SERVICES),
        stocks=stocks,
        running=running,
        startup_ratio=dict.fromkeys(MODELS, 0.25),
    )


def build(catalog: Catalog, configurations: tuple[str, ...], n_max: int) -> Library:
    """Build and print what it took; processor time beside wall time, for machines that are busy."""
    scope = Scope(
        levels=tuple((s.model, s.slo_class) for s in SERVICES),
        configurations=tuple(configuration_of(catalog, name) for name in configurations),
        variants={},
        n_max=n_max,
        mixed_max=MIXED_MAX,
    )
    figures = Figures(catalog, load_efficiencies(), None)
    wall, cpu = time.perf_counter(), time.process_time()
    library = build_library(figures, scope, cores=1)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        f"\nlibrary, {len(SERVICES)} models x {len(configurations)} configurations, n_max {n_max}, 1 core: "
        f"{wall:.2f} s wall, {cpu:.2f} s processor, {library.considered} placed, "
        f"{sum(map(len, library.arrays))} kept"
    )
    assert cpu < 2
    return library


def test_library_of_eight_configurations_is_built_at_start() -> None:
    catalog = load_catalog()
    names = ("1xL4", "2xL4", "4xL4", "1xL40S", "4xL40S", "1xA100", "1xH100", "1xA10G")
    build(catalog, names, 4)


def test_core_snapshots() -> None:
    catalog = load_catalog()
    library = build(catalog, CONFIGURATIONS, 6)
    print(f"cores here: {os.cpu_count()}, used: 1 (HiGHS threads=1)")
    for name, solve in METHODS.items():
        for scale in (4.0, 1.0, 0.3):
            times, gaps, unmet = [], [], 0
            for seed in range(8):
                running: tuple[Running, ...] = ()
                for again in (seed, seed + 100):
                    problem = snapshot(catalog, library, again, scale, running)
                    answer = solve(problem, library, clock=time.perf_counter)
                    assert verify(problem, answer) == ()
                    times.append(answer.seconds)
                    gaps.append(answer.gap)
                    unmet += bool(answer.unmet)
                    running = tuple(
                        Running(template=c.template, rating=c.rating, pool=c.pool, count=c.count)
                        for c in answer.chosen
                    )
            print(
                f"core, 3 pools, stock x{scale}, {len(times)} snapshots, {name}: gap <= {max(gaps):.1e}, "
                f"median {statistics.median(times):.3f} s, worst {max(times):.3f} s, {unmet} short of stock"
            )
            assert max(gaps) < 1e-3
