"""The paper's integer program against the fast search: the same optimum, and how many times slower.

300 random combinations of the catalog's nodes, all phases, as large as HiGHS can prove: one to three nodes
with the model's own layers, four to six with 8 to 12. Prints seconds per combination of both, one core.
"""

import os
import time
from typing import NamedTuple

import numpy as np
import pytest

from schemas.catalog import Architecture, Catalog, Phase, load_catalog
from schemas.performance import load_efficiencies
from solver.placement_ilp import Unproven, solve_placement
from solver.roofline import Roofline
from solver.stage_search import place_stages
from solver.stage_tables import tables_of
from solver.tables import NodeTable, node_table

pytestmark = pytest.mark.bench

CASES = 50
"""Of each size."""
LIMIT_S = 120.0
"""For one program; there is one for each number of stages."""
PHASES: tuple[Phase, ...] = ("both", "prefill", "decode")
KINDS = ("L4", "A10G", "L40S", "A100", "H100")


class Case(NamedTuple):
    table: NodeTable
    nodes: list[int]


@pytest.mark.parametrize("size", range(1, 7))
def test_the_program_proves_what_the_search_found(size: int) -> None:
    catalog, rng = load_catalog(), np.random.default_rng(size)
    program_s, search_s, unproven, empty = [], [], 0, 0
    for i in range(CASES):
        case = draw(catalog, rng, size, PHASES[i % 3])
        throughput, seconds = search(case)
        search_s.append(seconds)
        began = time.process_time()
        try:
            proven = solve_placement(case.table, case.nodes, time_limit_s=LIMIT_S)
        except Unproven:
            unproven += 1
            continue
        finally:
            program_s.append(time.process_time() - began)
        empty += proven is None
        if proven is None:
            assert throughput == 0
        else:
            assert throughput == pytest.approx(proven.throughput, rel=1e-6)
            assert throughput == pytest.approx(proven.bound, rel=1e-6)
    ratio = np.sum(program_s) / np.sum(search_s)
    print(
        f"\n{size} nodes, {CASES} combinations: program {np.mean(program_s):.2f} s in the mean, "
        f"{np.max(program_s):.2f} s at most; search {1e6 * np.mean(search_s):.0f} us: {ratio:,.0f} times; "
        f"{unproven} unproven within {LIMIT_S:.0f} s, {empty} cannot serve; 1 of {os.cpu_count()} cores"
    )
    assert unproven <= CASES // 10


def draw(catalog: Catalog, rng: np.random.Generator, size: int, phase: Phase) -> Case:
    """A service, and nodes of up to three configurations that it may run on."""
    served = [(model, variant) for model in catalog.models if model.levels for variant in model.variants]
    model, variant = served[int(rng.integers(len(served)))]
    if size > 3:
        layers = int(rng.integers(8, 13))
        plain = {"layers": layers, "full_attention_layers": layers, "dense_ffn_layers": 0}
        shape = Architecture(**{**model.architecture.model_dump(), **plain})
        model = model.model_copy(update={"architecture": shape})
    gpus, level = {gpu.name: gpu for gpu in catalog.gpus}, model.levels[0]
    roofline = Roofline(model, variant, level, gpus, load_efficiencies(), phase)
    allowed = [f"{n}x{kind}" for kind in KINDS if kind in variant.gpus for n in (1, 2, 4, 8)]
    kinds = [str(name) for name in rng.choice(allowed, int(rng.integers(1, 4)))]
    table = node_table(roofline, [catalog.configuration(name) for name in kinds])
    return Case(table, sorted(rng.integers(0, len(kinds), size).tolist()))


def search(case: Case) -> tuple[float, float]:
    """Throughput, and processor seconds of a search from nothing among many."""
    tables = tables_of(case.table)
    rows = np.array([case.nodes] * 100, dtype=np.int8)
    place_stages(rows[:1], np.zeros(1), tables)  # compiles
    began = time.process_time()
    found = place_stages(rows, np.zeros(len(rows)), tables)
    return float(found.throughput[0]), (time.process_time() - began) / len(rows)
