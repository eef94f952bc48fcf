"""The whole table That[position, S, c, j]: 20 configurations, 6 models with all variants, 3 phases, 6 depths.

Prints what issue 5 asks for (under 2 s) with instance and cores; the limit here is a loose one.
"""

import os
import time

import pytest

from schemas.catalog import Catalog, Phase, load_catalog
from schemas.performance import load_efficiencies
from solver.roofline import Roofline
from solver.tables import node_table

pytestmark = pytest.mark.bench

KINDS = ("L4", "A10G", "L40S", "A100", "H100")
MODELS = ("phi-4-14b", "gpt-oss-20b", "qwen3-32b", "llama-3-70b", "gpt-oss-120b", "qwen3-235b-a22b")
PHASES: tuple[Phase, ...] = ("prefill", "decode", "both")


def test_the_whole_table() -> None:
    catalog = load_catalog()
    load_efficiencies()  # read once a process
    for attempt in ("cold", "warm", "warm"):
        wall, cpu = time.perf_counter(), time.process_time()
        tables, entries = build(catalog)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(
            f"\n{attempt}: {len(MODELS)} models in {tables // len(PHASES)} variants x {len(PHASES)} phases x "
            f"{4 * len(KINDS)} configurations x 6 depths x 3 positions, {entries} entries: "
            f"{wall:.2f} s wall, {cpu:.2f} s processor, 1 of {os.cpu_count()} cores"
        )
        assert cpu < 2


def build(catalog: Catalog) -> tuple[int, int]:
    """Every table; their number, and that of their entries."""
    gpus, efficiencies = {gpu.name: gpu for gpu in catalog.gpus}, load_efficiencies()
    nodes = [catalog.configuration(f"{n}x{kind}") for kind in KINDS for n in (1, 2, 4, 8)]
    found = [
        node_table(Roofline(model, variant, model.levels[0], gpus, efficiencies, phase), nodes)
        for model in map(catalog.model, MODELS)
        for variant in model.variants
        for phase in PHASES
    ]
    return len(found), sum(table.throughput.size for table in found)
