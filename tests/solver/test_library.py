"""The library: deterministic, pruned without loss, and refused when it is not what it says."""

import gzip
import json
import subprocess
import sys
from itertools import combinations_with_replacement
from pathlib import Path

import pytest

from schemas.catalog import Catalog
from solver.combinations import Combination, best_split, enumerate_combinations
from solver.library import (
    Library,
    LibraryError,
    build_library,
    load_library,
)

LEVELS = [("qwen3-32b", "interactive"), ("gpt-oss-20b", "interactive")]
CONFIGURATIONS = ["1xL4", "2xL4", "4xL4", "1xL40S", "1xH100"]
BF16 = {"qwen3-32b": ["bf16"]}


@pytest.fixture(scope="module")
def library(catalog: Catalog) -> Library:
    return build_library(catalog, levels=LEVELS, configurations=CONFIGURATIONS, n_max=3, variants=BF16)


def test_the_same_inputs_in_any_order_give_the_same_library(catalog: Catalog, library: Library) -> None:
    again = build_library(
        catalog, levels=LEVELS[::-1], configurations=CONFIGURATIONS[::-1], n_max=3, variants=BF16
    )
    assert again == library
    assert again.digest == library.digest
    other = build_library(catalog, levels=LEVELS, configurations=CONFIGURATIONS, n_max=2, variants=BF16)
    assert other.digest != library.digest


def test_a_new_price_makes_no_new_library(catalog: Catalog, library: Library) -> None:
    free = catalog.model_copy(update={"prices": ()})
    again = build_library(free, levels=LEVELS, configurations=CONFIGURATIONS, n_max=3, variants=BF16)
    assert again.digest == library.digest


def test_both_services_have_templates_and_reasons(library: Library) -> None:
    assert set(library.by_service) == {"qwen3-32b/interactive/both", "gpt-oss-20b/interactive/both"}
    reasons = {r.service.model: r.reasons for r in library.refused}
    assert reasons["qwen3-32b"]["does-not-fit"] > 0
    assert any(len(r.template.stages) > 1 for r in library.templates)
    assert any(len(set(r.template.nodes)) == 2 for r in library.templates)
    assert {r.rating.engine for r in library.templates} == {library.engine}


def test_no_kept_template_is_matched_by_parts_that_are_kept(library: Library) -> None:
    for templates in library.by_service.values():
        value = {tuple(sorted(r.template.nodes)): r.rating.throughput for r in templates}
        for whole, throughput in value.items():
            for a, b in combinations_with_replacement(value, 2):
                if tuple(sorted(a + b)) == whole:
                    assert value[a] + value[b] < throughput


def test_the_best_split_may_have_three_parts() -> None:
    best: dict[Combination, float] = {("a",): 1.0}
    larger: list[Combination] = [("a", "a"), ("a", "a", "a")]
    for combination in larger:
        split = best_split(combination, best)
        best[combination] = max(split, 0.5)
    assert best["a", "a", "a"] == 3.0


def test_parts_of_a_combination_are_enumerated_before_it() -> None:
    order = enumerate_combinations(["b", "a", "c"], 4, 3)
    assert len(order) == len(set(order)) == 3 * 4 + 3 * (1 + 2)
    assert [len(c) for c in order] == sorted(len(c) for c in order)
    assert all(len(set(c)) <= 2 for c in order)
    assert enumerate_combinations(["a", "b"], 1, 1) == [("a",), ("b",)]


def test_save_and_load_round_trip(library: Library, tmp_path: Path) -> None:
    library.save(tmp_path / "a.json.gz")
    library.save(tmp_path / "b.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    loaded = load_library(tmp_path / "a.json.gz")
    assert loaded == library
    assert loaded.digest == library.digest


def test_a_library_that_was_changed_is_refused(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "lib.json.gz"
    library.save(path)
    plain = json.loads(gzip.decompress(path.read_bytes()))
    plain["library"]["templates"][0]["rating"]["throughput"] *= 2
    path.write_bytes(gzip.compress(json.dumps(plain).encode()))
    with pytest.raises(LibraryError, match="digest"):
        load_library(path)
    plain["library"]["schema_version"] = 99
    path.write_bytes(gzip.compress(json.dumps(plain).encode()))
    with pytest.raises(LibraryError, match="schema version 99"):
        load_library(path)
    for junk in (b"", b"no gzip", gzip.compress(b"{}"), gzip.compress(b"[1]"), gzip.compress(b"\xff")):
        path.write_bytes(junk)
        with pytest.raises(LibraryError):
            load_library(path)
    library.save(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(LibraryError):
        load_library(path)


def test_impossible_inputs_are_named(catalog: Catalog) -> None:
    def refused(match: str, **changed: object) -> None:
        arguments = {"levels": LEVELS, "configurations": ["1xL4"], **changed}
        with pytest.raises(LibraryError, match=match):
            build_library(catalog, **arguments)  # type: ignore[arg-type]

    refused("n_max", n_max=0)
    refused("rho", rho=0.5)
    refused("1xT3", configurations=["1xT3"])
    refused("gpt-9", levels=[("gpt-9", "interactive")])
    refused("SLO class 'batch'", levels=[("qwen3-32b", "batch")])
    refused("int3", variants={"qwen3-32b": ["int3"]})


def test_rho_leaves_out_what_is_far_too_large(catalog: Catalog) -> None:
    built = build_library(
        catalog, levels=[("gpt-oss-20b", "interactive")], configurations=["8xH100", "1xH100"], n_max=2
    )
    # 12 x 13.7 GB: two H100 are 160 GB, eight 640.
    assert {r.template.nodes for r in built.templates} == {("1xH100",)}
    assert built.considered == 2


def test_importing_the_rooms_below_the_allocation_loads_no_pyomo() -> None:
    modules = (
        "solver.roofline, solver.placement, solver.library, solver.columns, solver.answers, solver.verify"
    )
    heavy = "{m.split('.')[0] for m in sys.modules} & {'pyomo', 'highspy'}"
    code = f"import sys, {modules}; sys.exit(len({heavy}))"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
