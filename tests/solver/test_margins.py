"""How far kept templates are from being pruned."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from schemas.catalog import Configuration
from solver.kept import ServiceInputs
from solver.margins import in_need, margins
from solver.placement import throughput_of
from solver.roofline import Roofline
from solver.sweep import sweep


def test_a_margin_is_over_the_best_two_parts(
    roofline: Callable[..., Roofline], nodes: Callable[..., list[Configuration]]
) -> None:
    asked = ServiceInputs(roofline("qwen3-32b", "bf16", phase="decode"), "coral")
    told = nodes("1xL4", "1xL40S", "2xA100")
    kept = sweep([asked], told, n_max=3, rho=12)[asked.key]

    def split(nodes: tuple[int, ...]) -> float:
        parts = [part for size in range(1, len(nodes)) for part in combinations(range(len(nodes)), size)]
        rest = [[k for k in range(len(nodes)) if k not in part] for part in parts]
        return max(
            (
                given(tuple(nodes[k] for k in a)) + given(tuple(nodes[k] for k in b))
                for a, b in zip(parts, rest, strict=True)
            ),
            default=0.0,
        )

    def given(nodes: tuple[int, ...]) -> float:
        return max(throughput_of(asked, [told[c] for c in nodes]), split(nodes))

    serving = {c for c in range(len(told)) if given((c,)) > 0}
    assert 0 < len(serving) < len(told)
    rows = [tuple(c for c in row if c >= 0) for row in kept.combination.tolist()]
    parts = np.array([split(row) for row in rows])
    expected = np.divide(kept.throughput, parts, out=np.full(len(rows), np.inf), where=parts > 0) - 1
    assert margins(kept, len(told)) == pytest.approx(expected)
    assert in_need(kept).tolist() == [not serving.issuperset(row) for row in rows]
    assert np.isfinite(expected).any()
    assert in_need(kept).any()
