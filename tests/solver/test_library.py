"""The library: deterministic, pruned without loss, built anew only where it must be, refused where it is not
what it says."""

import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest

from schemas.catalog import Catalog
from schemas.performance import Efficiencies, load_efficiencies
from solver.building import build_library, inputs_of, taken_over
from solver.figures import Figures, FiguresError
from solver.library import Inputs, Library, LibraryError
from solver.library_file import load_library, save_library
from solver.points import Point, Profile
from solver.setups import Scope, SetupError, configuration_of
from solver.worth import Prices, best, per_usd

LEVELS = (("qwen3-32b", "interactive"), ("gpt-oss-20b", "interactive"))
CONFIGURATIONS = ("1xL4", "2xL4", "4xL4", "1xL40S", "1xH100")


@pytest.fixture(scope="module")
def figures(catalog: Catalog) -> Figures:
    return Figures(catalog, load_efficiencies(), None)


def scope(catalog: Catalog, **changed: object) -> Scope:
    nodes = tuple(configuration_of(catalog, name) for name in CONFIGURATIONS)
    asked = Scope(levels=LEVELS, configurations=nodes, variants={"qwen3-32b": ("bf16",)}, n_max=3)
    return replace(asked, **changed)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def library(catalog: Catalog, figures: Figures) -> Library:
    return build_library(figures, scope(catalog), cores=1)


# ----------------------------------------------------------------------------------------------- building


def test_the_same_inputs_in_any_order_give_the_same_library(
    catalog: Catalog, figures: Figures, library: Library
) -> None:
    asked = scope(catalog)
    turned = replace(asked, levels=asked.levels[::-1], configurations=asked.configurations[::-1])
    again = build_library(figures, turned, cores=2)
    assert (again.digest, again.header) == (library.digest, library.header)
    assert build_library(figures, scope(catalog, n_max=2), cores=1).digest != library.digest


def test_a_new_price_makes_no_new_library(catalog: Catalog, figures: Figures, library: Library) -> None:
    free = figures._replace(catalog=catalog.model_copy(update={"prices": ()}))
    assert inputs_of(free, scope(catalog)) == library.inputs


def test_services_have_templates_and_reasons(library: Library) -> None:
    assert set(library.by_service) == {"qwen3-32b/interactive/both", "gpt-oss-20b/interactive/both"}
    reasons = {refused.service.model: refused.reasons for refused in library.refused}
    assert reasons["qwen3-32b"]["does-not-fit"] > 0
    for part in library.header.parts:
        assert part.considered == part.valid + sum(part.refused.values())
    mixed = [c for c in library.candidates if len(c.uses) > 1]
    assert mixed
    assert library.empty == {}


def test_a_template_is_what_its_row_says(library: Library) -> None:
    for candidate in library.candidates:
        rated = candidate.rated
        assert rated.service == candidate.service
        assert rated.template.uses() == candidate.uses
        assert rated.rating.throughput == candidate.throughput
        model = {"qwen3-32b": 64, "gpt-oss-20b": 24}[candidate.service.model]
        assert sum(stage.layers for stage in rated.template.stages) == model
    shelf = library.by_service["qwen3-32b/interactive/both"]
    assert shelf[-1].nodes == list(shelf)[-1].nodes
    assert [c.nodes for c in shelf[:2]] == [c.nodes for c in list(shelf)[:2]]


def test_a_template_is_found_by_its_id(library: Library) -> None:
    for shelf in library.parts.values():
        row = len(shelf) - 1
        assert shelf.find(shelf.rated(row).template.id) == row
        assert shelf.find("not there") is None


def test_no_kept_template_is_matched_by_parts_that_are_kept(library: Library) -> None:
    for templates in library.by_service.values():
        value = {tuple(sorted(c.nodes)): c.throughput for c in templates}
        for whole, throughput in value.items():
            for a, b in combinations_with_replacement(value, 2):
                if tuple(sorted(a + b)) == whole:
                    assert value[a] + value[b] < throughput


def test_few_mixed_nodes_are_a_library_of_less(catalog: Catalog, figures: Figures, library: Library) -> None:
    """Rows of equal nodes, and of few of two configurations: what a sweep of those alone would keep."""
    few = build_library(figures, scope(catalog, mixed_max=2), cores=1)

    def allowed(nodes: tuple[str, ...]) -> bool:
        return len(set(nodes)) == 1 or len(nodes) == 2

    kept = [(c.service, c.nodes, c.throughput) for c in library.candidates if allowed(c.nodes)]
    assert [(c.service, c.nodes, c.throughput) for c in few.candidates] == kept
    assert few.digest != library.digest


# ------------------------------------------------------------------------------------- what has not changed


def test_only_what_changed_is_built_anew(catalog: Catalog, figures: Figures, library: Library) -> None:
    """A new promise of one model leaves the other's templates as they are, to the last bit."""
    changed = figures._replace(catalog=_slower(catalog, "gpt-oss-20b"))
    new = build_library(changed, scope(catalog), older=library, cores=1)
    assert [key.model for key in taken_over(new, library)] == ["qwen3-32b"]
    assert new.digest == build_library(changed, scope(catalog), cores=1).digest
    assert new.digest != library.digest


def test_more_of_anything_that_counts_takes_nothing_over(
    catalog: Catalog, figures: Figures, library: Library
) -> None:
    for asked in (scope(catalog, n_max=2), scope(catalog, configurations=scope(catalog).configurations[:2])):
        assert taken_over(build_library(figures, asked, older=library, cores=1), library) == []
    same = build_library(figures, scope(catalog), older=library, cores=1)
    assert len(taken_over(same, library)) == len(library.header.parts)
    assert same.digest == library.digest


def test_a_gpus_new_efficiency_builds_all_that_combine_it_anew(
    catalog: Catalog, figures: Figures, library: Library
) -> None:
    def slower(kind: str) -> Figures:
        told = figures.efficiencies.gpus
        first = told[0].first_token.model_copy(update={"own": 2.0})
        rest = [e.model_copy(update={"first_token": first}) if e.gpu == kind else e for e in told]
        return figures._replace(efficiencies=Efficiencies(gpus=tuple(rest)))

    assert taken_over(build_library(slower("L4"), scope(catalog), older=library, cores=1), library) == []
    other = build_library(slower("T4"), scope(catalog), older=library, cores=1)
    assert len(taken_over(other, library)) == len(library.header.parts)


def test_a_measured_point_builds_its_model_anew(catalog: Catalog, figures: Figures, library: Library) -> None:
    load = {"input_tokens": 1000.0, "output_tokens": 200.0, "max_concurrency": 1.0, "request_rate": None}
    point = Point.model_validate(
        {"model": "qwen3-32b", "variant": "bf16", "gpu": "L40S", "tp": 4, "pp": 1, "engine": "vllm-0.32.0"}
        | {"phase": "both", "source": "made up", "date": "2026-11-29", "request_throughput": 0.1}
        | {"ttft_ms": 400.0, "tpot_ms": 40.0, **load}
    )
    measured = figures._replace(profile=Profile(points=(point,)))
    new = build_library(measured, scope(catalog), older=library, cores=1)
    assert [key.model for key in taken_over(new, library)] == ["gpt-oss-20b"]


def test_a_save_that_fails_leaves_what_was_there(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.templates"
    save_library(library, path)
    before = path.read_bytes()

    def full(_: object) -> bytes:
        raise OSError("No space left on device")

    monkeypatch.setattr("solver.library_file._npy", full)
    with pytest.raises(OSError, match="No space"):
        save_library(library, path)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (before, [path])


def test_the_digest_is_also_of_what_is_said_beside_the_arrays(library: Library) -> None:
    first, *others = library.header.parts
    said = library.header.model_copy(update={"parts": (first.model_copy(update={"valid": 0}), *others)})
    assert replace(library, header=said).digest != library.digest


def _slower(catalog: Catalog, name: str) -> Catalog:
    model = catalog.model(name)
    level = model.levels[0]
    slow = tuple(o.model_copy(update={"ms": o.ms * 2}) for o in level.tpot)
    changed = model.model_copy(update={"levels": (level.model_copy(update={"tpot": slow}),)})
    models = tuple(changed if m.name == name else m for m in catalog.models)
    return catalog.model_copy(update={"models": models})


# ---------------------------------------------------------------------------------------------- the file


def test_save_and_load_round_trip(library: Library, figures: Figures, tmp_path: Path) -> None:
    save_library(library, tmp_path / "a")
    save_library(library, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    loaded = load_library(tmp_path / "a", figures, library.inputs)
    assert (loaded.digest, loaded.header) == (library.digest, library.header)
    one, two = (next(iter(each.candidates)).rated for each in (library, loaded))
    assert one == two


def test_a_library_without_figures_can_be_chosen_from_and_makes_nothing(
    library: Library, tmp_path: Path
) -> None:
    save_library(library, tmp_path / "a")
    candidate = next(iter(load_library(tmp_path / "a").candidates))
    assert candidate.throughput > 0
    with pytest.raises(LibraryError, match="without the catalog"):
        candidate.make()


def test_a_stale_library_is_refused_by_name(
    catalog: Catalog, figures: Figures, library: Library, tmp_path: Path
) -> None:
    save_library(library, tmp_path / "a")
    with pytest.raises(LibraryError, match=f"catalog: {library.inputs.catalog}, expected "):
        load_library(tmp_path / "a", figures._replace(catalog=_slower(catalog, "qwen3-32b")))
    needed = inputs_of(figures, scope(catalog, n_max=2, runtime="coral"))
    with pytest.raises(LibraryError, match="runtime: vllm, expected coral; n_max: 3, expected 2"):
        load_library(tmp_path / "a", figures, needed)


def test_a_library_that_was_changed_is_refused(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "a"
    save_library(library, path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(content["header.json"])

    def rewritten(match: str, **changed: bytes) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in {**content, **changed}.items():
                archive.writestr(name, data)
        with pytest.raises(LibraryError, match=match):
            load_library(path)

    throughput = content["0/throughput.npy"]
    rewritten("digest", **{"0/throughput.npy": throughput[:-1] + bytes([throughput[-1] ^ 1])})
    rewritten("digest", **{"header.json": json.dumps(header | {"digest": "0" * 16}).encode()})
    rewritten("rows", **{"1/tp.npy": content["0/tp.npy"]})
    header["library"]["inputs"]["n_max"] = "three"
    rewritten("inputs.n_max", **{"header.json": json.dumps(header).encode()})
    header["library"]["schema_version"] = 99
    rewritten("schema version 99", **{"header.json": json.dumps(header).encode()})
    rewritten("not a library file", **{"header.json": b"{}"})
    for junk in (b"", b"no archive", path.read_bytes()[:-200]):
        path.write_bytes(junk)
        with pytest.raises(LibraryError, match="not a library file"):
            load_library(path)


# --------------------------------------------------------------------------------------------- bad input


def test_impossible_inputs_are_named(catalog: Catalog, figures: Figures) -> None:
    def refused(error: type[Exception], match: str, **changed: object) -> None:
        with pytest.raises(error, match=match):
            build_library(figures, scope(catalog, **changed), cores=1)

    refused(LibraryError, "n_max", n_max=-1)
    refused(LibraryError, "rho", rho=float("nan"))
    refused(LibraryError, "mixed_max", mixed_max=0)
    refused(FiguresError, "gpt-9", levels=(("gpt-9", "interactive"),))
    refused(FiguresError, "SLO class 'batch'", levels=(("qwen3-32b", "batch"),))
    refused(FiguresError, "int3", variants={"qwen3-32b": ("int3",)})
    with pytest.raises(SetupError, match="1xT3"):
        configuration_of(catalog, "1xT3")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"n_max": 0}, "n-max: 0 nodes, expected at least 1"),
        ({"rho": 0.5}, "rho: 0.5 x the weights, expected at least 1"),
        ({"rho": 1.0}, "over-rho: every node has 1 x the weights in GPU memory, or more"),
        ({"nodes": ("1xL4",), "n_max": 1}, "does-not-fit"),
        ({"nodes": ("1xT4",)}, "gpu-not-allowed"),
    ],
)
def test_what_fits_nowhere_has_a_reason_and_the_rest_is_built(
    catalog: Catalog, figures: Figures, changed: dict[str, object], said: str
) -> None:
    nodes = changed.pop("nodes", ("8xH100",) if changed.get("rho") == 1 else CONFIGURATIONS)
    configurations = tuple(configuration_of(catalog, name) for name in nodes)  # type: ignore[attr-defined]
    built = build_library(figures, scope(catalog, configurations=configurations, **changed), cores=1)
    assert built.empty["qwen3-32b/interactive/both"].startswith(said)
    if said == "does-not-fit":
        assert "gpt-oss-20b/interactive/both" in built.by_service


def test_a_promise_that_no_node_keeps_is_a_reason(catalog: Catalog, figures: Figures) -> None:
    model = catalog.model("gpt-oss-20b")
    level = model.levels[0]
    hard = tuple(o.model_copy(update={"ms": 0.001}) for o in level.tpot)
    changed = model.model_copy(update={"levels": (level.model_copy(update={"tpot": hard}),)})
    models = tuple(changed if m.name == model.name else m for m in catalog.models)
    strict = figures._replace(catalog=catalog.model_copy(update={"models": models}))
    built = build_library(strict, scope(catalog, n_max=1), cores=1)
    (why,) = built.empty.values()
    assert why == "slo-too-tight: the model fits, but no placement meets its TTFT and TPOT"
    assert built.by_service.keys() == {"qwen3-32b/interactive/both"}


def test_rho_leaves_out_what_is_far_too_large(catalog: Catalog, figures: Figures) -> None:
    nodes = tuple(configuration_of(catalog, name) for name in ("8xH100", "1xH100"))
    built = build_library(figures, scope(catalog, levels=LEVELS[1:], configurations=nodes, n_max=2), cores=1)
    # 12 x 13.7 GB: two H100 are 160 GB, eight 640.
    assert {c.nodes for c in built.candidates} == {("1xH100",)}
    assert built.considered == 2


# --------------------------------------------------------------------------------------- worth at prices


def test_the_best_per_usd_is_where_its_nodes_cost_least(catalog: Catalog, library: Library) -> None:
    prices = Prices(catalog)
    for shelf in library.parts.values():
        worth, regions, usd = per_usd(shelf, prices)
        top = best(shelf, prices, 2)
        assert [w.per_usd for w in top] == sorted(worth.tolist(), reverse=True)[:2]
        for w in top:
            assert (w.region, w.usd_per_hour) == (regions[w.row], usd[w.row])
            assert w.per_usd == pytest.approx(shelf.kept.throughput[w.row] / w.usd_per_hour)
            here = [
                sum(
                    p.usd_per_hour * shelf[w.row].uses[p.configuration]
                    for p in catalog.prices
                    if (f"{p.cloud}/{p.region}", p.market) == (w.region, "on-demand")
                    and p.configuration in shelf[w.row].uses
                )
            ]
            assert w.usd_per_hour == pytest.approx(here[0])


def test_a_slice_costs_its_share_and_what_is_sold_nowhere_has_no_price(catalog: Catalog) -> None:
    ohio = Prices(catalog, ("aws/us-east-2",))
    nodes = [configuration_of(catalog, name) for name in ("4xL40S", "2xL40S", "1xA100", "1xL40S")]
    (found,) = ohio.by_region(nodes).values()
    assert found[1] == pytest.approx(found[0] / 2)
    assert np.isinf(found[2])
    assert found[3] == next(
        p.usd_per_hour for p in catalog.prices if (p.region, p.configuration) == ("us-east-2", "1xL40S")
    )


def test_inputs_say_how_they_differ(library: Library) -> None:
    other = library.inputs.model_copy(update={"rho": 8.0, "profile": "p" * 16})
    assert isinstance(other, Inputs)
    assert list(library.inputs.differences(other)) == [
        f"profile: {'p' * 16}, expected None",
        "rho: 8.0, expected 12.0",
    ]
    assert other.digest != library.inputs.digest


def test_importing_the_rooms_below_the_allocation_loads_no_pyomo() -> None:
    modules = (
        "solver.roofline, solver.candidates, solver.library, solver.columns, solver.answers, solver.verify, "
        "streams.cli"
    )
    heavy = "{m.split('.')[0] for m in sys.modules} & {'pyomo', 'highspy', 'numba'}"
    code = f"import sys, {modules}; sys.exit(len({heavy}))"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
