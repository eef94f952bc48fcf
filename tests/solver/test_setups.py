"""Set-ups: the paper's, the catalog's own with what is sold and its slices, and a file's."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from schemas.catalog import PAPER_CATALOG, Catalog, load_catalog
from schemas.codec import describe
from solver.setups import (
    SetupError,
    SetupFile,
    configuration_of,
    open_n_max,
    own_setup,
    paper_setup,
    read_setup,
    sold,
    sold_in,
    with_slices,
)


@pytest.fixture(scope="module")
def paper() -> Catalog:
    return load_catalog(PAPER_CATALOG)


def test_paper_mode_takes_every_configuration_as_its_own_node(paper: Catalog) -> None:
    """Sold or not, one checkpoint a model, both phases apart, runtime coral; as many as the paper has."""
    sizes = {"core": (3, 12, 2), "extended": (6, 20, 3)}
    for name, (models, nodes, regions) in sizes.items():
        setup = paper_setup(name, paper)
        scope = setup.scope
        assert (len(scope.levels), len(scope.configurations), len(setup.regions)) == (models, nodes, regions)
        assert (scope.phases, scope.runtime, scope.n_max, scope.rho) == (
            ("prefill", "decode"),
            "coral",
            6,
            12.0,
        )
        assert all(len(names) == 1 for names in scope.variants.values())
    with pytest.raises(SetupError, match="'huge', expected one of core, extended"):
        paper_setup("huge", paper)


def test_what_nobody_sells_has_no_region(paper: Catalog) -> None:
    """The paper's 2xL40S, and its 1xA100 on AWS."""
    assert sold_in(paper, "2xL40S") == ()
    assert sold_in(paper, "1xA100") == ("gcp/us-central1",)
    assert "2xL40S" not in [node.name for node in sold(paper)]


def test_the_catalogs_own_is_what_is_sold_and_its_slices(catalog: Catalog) -> None:
    scope = own_setup(catalog).scope
    names = [node.name for node in scope.configurations]
    assert (scope.runtime, scope.phases) == ("vllm", ("both",))
    assert {node.name for node in sold(catalog)} < set(names)
    assert len(names) == len(set(names))
    for kind, sizes in {"L40S": (1, 2, 4, 8), "H200": (1, 2, 4, 8), "V100-32GB": (1, 2, 4, 8)}.items():
        assert [n for n in names if n.endswith(f"x{kind}")] == [f"{size}x{kind}" for size in sizes]


def test_a_slice_has_its_share_of_the_network(catalog: Catalog) -> None:
    made = {node.name: node for node in with_slices(catalog, [configuration_of(catalog, "8xH200")])}
    assert list(made) == ["1xH200", "2xH200", "4xH200", "8xH200"]
    assert made["2xH200"].network_gbps == made["8xH200"].network_gbps / 4
    known = with_slices(catalog, [configuration_of(catalog, "4xL40S")])
    assert known[0] == configuration_of(catalog, "1xL40S")  # as the catalog has it: that one is sold


def test_regions_narrow_what_is_sold(catalog: Catalog) -> None:
    iowa = own_setup(catalog, SetupFile(regions=("gcp/us-central1",)))
    names = {node.name for node in iowa.scope.configurations}
    assert "1xA100" in names
    assert not {name for name in names if name.endswith("L40S")}
    assert iowa.regions == ("gcp/us-central1",)


def test_a_file_says_all_that_can_be_asked(tmp_path: Path, catalog: Catalog) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "catalog: paper\nserve: {qwen3-32b: [interactive]}\nvariants: {qwen3-32b: [fp8]}\n"
        "configurations: [4xL40S, 1xH100]\nslices: false\nphases: [prefill, decode]\nruntime: coral\n"
        "n_max: 3\nrho: 8\n"
    )
    asked, where = read_setup(path)
    assert where == PAPER_CATALOG
    scope = own_setup(catalog, asked).scope
    assert scope.levels == (("qwen3-32b", "interactive"),)
    assert [node.name for node in scope.configurations] == ["4xL40S", "1xH100"]
    assert (scope.variants, scope.phases) == ({"qwen3-32b": ("fp8",)}, ("prefill", "decode"))
    assert (scope.runtime, scope.n_max, scope.rho) == ("coral", 3, 8.0)
    path.write_text("catalog: models/mine.yaml\n")
    assert read_setup(path)[1] == tmp_path / "models" / "mine.yaml"
    path.write_text("{}\n")
    assert read_setup(path) == (SetupFile(), None)


def test_a_file_that_leaves_n_max_open_gets_as_much_as_a_build_can_do(catalog: Catalog) -> None:
    assert own_setup(catalog, SetupFile(configurations=("1xL4", "1xH100"), slices=False)).scope.n_max == 6
    every = own_setup(catalog).scope
    assert (every.n_max, open_n_max(len(every.configurations))) == (4, 4)
    assert [open_n_max(n) for n in (1, 20, 30, 31, 127)] == [6, 6, 6, 5, 3]


def test_what_a_file_cannot_ask_is_named(tmp_path: Path, catalog: Catalog) -> None:
    for asked, said in (
        (SetupFile(serve={"gpt-9": ("interactive",)}), "serve: gpt-9/interactive"),
        (SetupFile(configurations=("3xL4",)), "configurations: '3xL4'"),
        (SetupFile(regions=("aws/mars-1",)), r"regions: \['aws/mars-1'\]"),
    ):
        with pytest.raises(SetupError, match=said):
            own_setup(catalog, asked)
    path = tmp_path / "mine.yaml"
    for text in ("modles: 1", "n_max: -1", "n_max: 0", "rho: 0", "rho: 0.5", "rho: .nan", "phases: []"):
        path.write_text(text)
        with pytest.raises(ValidationError, match=text.partition(":")[0]):
            read_setup(path)


@pytest.mark.parametrize(
    "text",
    ["regions: []", "configurations: []", "serve: {}", "serve: {qwen3-32b: []}", "variants: {qwen3-32b: []}"],
)
def test_nothing_is_not_everything(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"slices: false\n{text}\n")
    with pytest.raises(ValidationError) as caught:
        read_setup(path)
    said = describe(caught.value)
    field, _, value = text.removesuffix("}" if "qwen" in text else "").rpartition(": ")
    field = field.replace(": {", ".")
    assert said == f"{path}:2: {field}: expected at least one, or leave it out to mean all (got '{value}')"


def test_options_win_over_a_set_up(paper: Catalog) -> None:
    scope = paper_setup("core", paper).scope
    assert scope.with_limits() == scope
    changed = scope.with_limits("vllm", 2, 8.0)
    assert (changed.runtime, changed.n_max, changed.rho) == ("vllm", 2, 8.0)
