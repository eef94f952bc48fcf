"""All services of a set-up: every combination placed or proven needless, over all cores (solver.md, stage 1)."""

from collections.abc import Callable, Sequence

from schemas.catalog import Configuration
from solver.kept import Kept, Key, ServiceInputs

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
        ValueError: `n_max` or `rho` below 1, a configuration or a key given twice, more than 127 configurations.
    """
    raise NotImplementedError
