"""All services of a set-up: every combination placed or proven needless (solver.md, "Stage 1").

Combinations are walked by size, all services side by side (`solver.walk`), on all cores. The loops are
compiled and let go of Python's lock, so the cores are threads: nothing is copied between them.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from schemas.catalog import Configuration
from solver.kept import Kept, Key, ServiceInputs
from solver.space import Space
from solver.walk import Chunk, Walk

Progress = Callable[[int, int], None]
"""Told (combinations done, combinations in all) now and then, in the calling thread."""


def sweep(
    services: Sequence[ServiceInputs],
    configurations: Sequence[Configuration],
    *,
    n_max: int,
    rho: float,
    cores: int | None = None,
    progress: Progress | None = None,
) -> dict[Key, Kept]:
    """The templates worth having of every service, by key, in the order of `services`.

    Args:
        configurations: those to combine; rows of `Kept` hold indices into this.
        n_max: most nodes of a combination.
        rho: most GPU memory of a combination, as a multiple of the variant's weights (coral.md).
        cores: how many to use; all that there are if None. The answer does not depend on it.

    Raises:
        ValueError: `n_max` or `rho` below 1, a configuration or a key given twice, more than 127
            configurations, or more nodes than the runtime's search can do.
    """
    _check(services, configurations, rho)
    space = Space(len(configurations), n_max)
    walks = [Walk(space, configurations, variants, rho) for variants in _by_service(services)]
    done, total = 0, sum(map(len, walks))
    swept: list[list[Chunk]] = [[] for _ in walks]
    pool = ThreadPoolExecutor(cores or os.cpu_count() or 1)
    try:
        for size in range(1, n_max + 1):
            jobs = [[pool.submit(walk.place, size, ranks) for ranks in walk.chunks(size)] for walk in walks]
            for job in as_completed([job for of_walk in jobs for job in of_walk]):
                done += job.result().combinations
                if progress is not None:
                    progress(done, total)
            for chunks, of_walk in zip(swept, jobs, strict=True):
                chunks += [job.result() for job in of_walk]
    finally:
        pool.shutdown(cancel_futures=True)
    kept: dict[Key, Kept] = {}
    for walk, chunks in zip(walks, swept, strict=True):
        kept |= walk.kept(chunks)
    return {service.key: kept[service.key] for service in services}


def _check(services: Sequence[ServiceInputs], configurations: Sequence[Configuration], rho: float) -> None:
    if not rho >= 1:
        raise ValueError(f"rho: {rho}, expected at least 1")
    for what, names in (
        ("configurations", [node.name for node in configurations]),
        ("services", ["/".join(service.key) for service in services]),
    ):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{what}: {twice} given twice")


def _by_service(services: Sequence[ServiceInputs]) -> list[list[ServiceInputs]]:
    """The variants of each service, together."""
    found: dict[Key, list[ServiceInputs]] = {}
    for service in services:
        found.setdefault(service.key._replace(variant=""), []).append(service)
    return list(found.values())
