"""Head-room where it is used: the core's own rule plans a real trace, and promises are kept or not."""

from functools import cache

import numpy as np
import pytest

from agents.traces import SHIPPED_TRACES, read_requests
from schemas.catalog import load_catalog
from schemas.settings import load_settings
from solver.headroom import promises
from streams.control import policy_of
from tests.streams.planner_loop import capacity, share_kept

MODEL = "phi-4-14b"


@cache
def shares(headroom: str, thinned: float = 1.0) -> dict[str, float]:
    """Of the conversation trace's requests, those for whom each promise was kept."""
    requests = read_requests(SHIPPED_TRACES / "azure_2023_conv.csv.gz").requests
    rows = np.array([(r.arrival_s, r.input_tokens, r.output_tokens) for r in requests], dtype=np.float64)
    rows = rows[np.random.default_rng(7).random(len(rows)) < thinned]
    settings = load_settings(control={"serve": {MODEL: ["interactive"]}, "headroom": headroom})
    catalog = load_catalog(settings.catalog)
    given = capacity(rows[:, 0], policy_of(settings, catalog))
    tokens = {"ttft": rows[:, 1], "tpot": rows[:, 2]}
    return {
        p.of: share_kept(rows[:, 0], p.busy_s * tokens[p.of] / tokens[p.of].mean(), p, given)
        for p in promises(catalog.model(MODEL).levels[0], "both")
    }


@pytest.mark.parametrize("thinned", [1.0, 0.2])
def test_both_promises_are_kept_to_their_95th_percentile(thinned: float) -> None:
    assert min(shares("auto", thinned).values()) >= 0.95


def test_without_headroom_they_are_not() -> None:
    assert max(shares("off").values()) < 0.95
