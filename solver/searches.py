"""Which search places a service: one for each runtime. Importing this loads numba."""

from collections.abc import Sequence

from schemas.catalog import Configuration
from solver.chain_search import ChainSearch
from solver.kept import Search, ServiceInputs
from solver.stage_search import StageSearch


def search_of(inputs: ServiceInputs, configurations: Sequence[Configuration], n_max: int) -> Search:
    """The exact search for combinations of up to `n_max` of these nodes."""
    if inputs.runtime == "vllm":
        return ChainSearch(inputs.roofline, configurations, n_max)
    return StageSearch(inputs.roofline, configurations, n_max)
