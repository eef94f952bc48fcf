"""`coral templates`, `coral explain template`, `coral evaluate sensitivity`: text for people, JSON for
programs, one line for what cannot be."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from schemas.catalog import PAPER_CATALOG, SHIPPED_CATALOG, load_catalog
from solver.explain_template import TemplateExplanation
from streams.cli import app

BAD_INPUT, PARTLY_EMPTY = 2, 3
SETUP = """\
catalog: paper
serve: {gpt-oss-20b: [interactive], qwen3-32b: [interactive]}
variants: {qwen3-32b: [bf16]}
configurations: [1xL4, 1xL40S, 2xL40S]
slices: false
phases: [prefill]
runtime: coral
n_max: 2
"""
PREFILL = "qwen3-32b/interactive/prefill"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("CORAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def coral(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def told(*arguments: str, code: int = 0) -> Any:
    """What a command gives as JSON."""
    result = coral(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def refused(*arguments: str) -> str:
    result = coral(*arguments)
    assert result.exit_code == BAD_INPUT, result.output
    assert result.stderr.startswith("coral: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a set-up, and the library of it."""
    made = tmp_path_factory.mktemp("templates")
    (made / "setup.yaml").write_text(SETUP)
    result = build(made, "coral.templates")
    assert result.exit_code == 0, result.output
    return made


def build(folder: Path, name: str, *options: str) -> Result:
    files = ("--setup", str(folder / "setup.yaml"), "-o", str(folder / name))
    return coral("templates", "build", *files, "--cores", "1", *options)


def test_a_build_says_what_it_took_and_what_it_made(folder: Path) -> None:
    found = json.loads(build(folder, "coral.templates", "--fresh", "--json").stdout)
    assert found["combinations"] == sum(s["considered"] for s in found["services"])
    assert found["valid"] >= found["kept"] == sum(s["kept"] for s in found["services"]) > 0
    assert (found["cores"], found["taken_over"], found["empty"]) == (1, [], {})
    assert found["seconds"] > 0
    assert 0 < found["peak_memory_gb"] < 100
    assert set(found["best_per_usd"]) == {PREFILL, "gpt-oss-20b/interactive/prefill"}
    shown = told("templates", "show", str(folder / "coral.templates"))
    assert shown["digest"] == found["digest"]
    text = coral("templates", "show", str(folder / "coral.templates")).stdout
    assert found["digest"] in text
    assert PREFILL in text


def test_what_has_not_changed_is_taken_over(folder: Path) -> None:
    again = json.loads(build(folder, "coral.templates", "--json").stdout)
    assert sorted(key.split("/")[0] for key in again["taken_over"]) == ["gpt-oss-20b", "qwen3-32b"]
    anew = json.loads(build(folder, "coral.templates", "--json", "--fresh").stdout)
    assert (anew["taken_over"], anew["digest"]) == ([], again["digest"])


def test_a_file_that_is_no_library_is_not_overwritten(folder: Path) -> None:
    dear = folder / "dear.yaml"
    dear.write_text("no library")
    result = build(folder, "dear.yaml")
    assert result.exit_code == BAD_INPUT
    assert result.stderr.startswith("coral: --out: dear.yaml: not a library file")
    assert dear.read_text() == "no library"
    assert build(folder, "dear.yaml", "--fresh").exit_code == 0


def test_the_best_have_ids_and_prices_of_the_regions_asked_for(folder: Path) -> None:
    file = str(folder / "coral.templates")
    found = told("templates", "best", file, "--service", PREFILL, "--count", "3")["best"][PREFILL]
    assert len(found) == 3
    assert [row["per_usd"] for row in found] == sorted((row["per_usd"] for row in found), reverse=True)
    assert all(sum(stage["layers"] for stage in row["stages"]) == 64 for row in found)
    iowa = told("templates", "best", file, "--region", "gcp/us-central1")["best"]
    assert all("L40S" not in row["nodes"] for rows in iowa.values() for row in rows)
    assert found[0]["id"] in coral("templates", "best", file).stdout


def test_two_libraries_differ_by_inputs_and_templates(folder: Path) -> None:
    assert build(folder, "vllm.templates", "--runtime", "vllm").exit_code == 0
    first, second = str(folder / "coral.templates"), str(folder / "vllm.templates")
    found = told("templates", "diff", first, second)
    assert found["inputs"] == ["runtime: vllm, expected coral"]
    (row,) = (row for row in found["services"] if row["service"] == PREFILL)
    assert row["best_per_usd"][0] >= row["best_per_usd"][1] > 0
    same = told("templates", "diff", first, first)
    assert same["inputs"] == []
    assert not any(r["only_first"] + r["only_second"] + r["other_throughput"] for r in same["services"])
    assert "runtime: vllm, expected coral" in coral("templates", "diff", first, second).stdout


def test_a_template_is_taken_apart(folder: Path) -> None:
    for name in ("coral.templates", "vllm.templates"):
        if not (folder / name).exists():
            build(folder, name, "--runtime", name.split(".")[0])
        file = str(folder / name)
        (best, *_) = told("templates", "best", file, "--service", PREFILL)["best"][PREFILL]
        printed = coral("explain", "template", best["id"], "--library", file, "--json").stdout
        found = TemplateExplanation.model_validate_json(printed)
        least = min(stage.throughput for stage in found.stages)
        assert found.stages[found.bottleneck].throughput == least
        assert least == pytest.approx(found.throughput, rel=1e-6)
        assert all(stage.with_one_more <= stage.throughput for stage in found.stages)
        assert {one.configuration for one in found.one_more_node} == {"1xL4", "1xL40S", "2xL40S"}
        text = coral("explain", "template", best["id"], "--library", file).stdout
        for word in ("slowest", "binds", "one more", "1 more node"):
            assert word in text


def test_the_controllers_library_is_looked_in_by_default(folder: Path) -> None:
    assert "none is in .coral/libraries" in refused("explain", "template", "abc")
    libraries = Path(".coral/libraries")
    libraries.mkdir(parents=True)
    (libraries / "one.templates").write_bytes((folder / "coral.templates").read_bytes())
    file = str(folder / "coral.templates")
    best = told("templates", "best", file, "--service", PREFILL)["best"][PREFILL][0]["id"]
    assert json.loads(coral("explain", "template", best, "--json").stdout)["id"] == best
    (libraries / "one.templates").write_bytes(b"cut short")
    said = refused("explain", "template", "abc")
    assert "up to date (0 looked through); one.templates: not a library file" in said
    assert (
        "abc: no template's id, expected one in a library that is up to date (1 looked through)"
        in refused("explain", "template", "abc", "--library", file)
    )


def test_a_library_of_another_catalog_is_refused_by_name(folder: Path) -> None:
    said = refused("templates", "best", str(folder / "coral.templates"), "--catalog", str(SHIPPED_CATALOG))
    assert said == refused("templates", "best", str(folder / "coral.templates"), "--catalog", "shipped")
    digest = load_catalog(PAPER_CATALOG).model_copy(update={"prices": ()}).digest
    assert f"coral.templates: built from another catalog: {digest}, expected " in said


def test_a_library_that_is_partly_empty_is_written_and_told(folder: Path) -> None:
    result = build(folder, "empty.templates", "--n-max", "1", "--rho", "1")
    assert result.exit_code == PARTLY_EMPTY
    assert f"coral: {PREFILL} has no template: does-not-fit: no combination" in result.stderr
    assert told("templates", "show", str(folder / "empty.templates"))["kept"] == 0


def test_a_model_that_fits_nowhere_leaves_the_rest(folder: Path) -> None:
    (folder / "setup.yaml").write_text(SETUP.replace("1xL4, 1xL40S, 2xL40S", "1xL4"))
    result = build(folder, "part.templates", "--n-max", "1")
    (folder / "setup.yaml").write_text(SETUP)
    assert result.exit_code == PARTLY_EMPTY
    assert f"coral: {PREFILL} has no template: does-not-fit" in result.stderr
    shown = told("templates", "show", str(folder / "part.templates"))
    assert (list(shown["empty"]), shown["kept"]) == ([PREFILL], 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--setup", "nowhere.yaml"), "--setup: 'nowhere.yaml' is neither a file nor one of core, extended"),
        (("--setup", "core", "--runtime", "tpu"), "--runtime: 'tpu', expected vllm or coral"),
        (("--setup", "core", "--n-max", "-1"), "--n-max: -1, expected at least 1"),
        (("--setup", "core", "--n-max", "0"), "--n-max: 0, expected at least 1"),
        (("--setup", "core", "--rho", "0.5"), "--rho: 0.5, expected a finite number of at least 1"),
        (("--setup", "core", "--rho", "inf"), "--rho: inf, expected a finite number"),
        (("--setup", "core", "--cores", "0"), "--cores: 0, expected at least 1"),
        (("--setup", "core", "--catalog", "nowhere.yaml"), "nowhere.yaml"),
        (("--n-max", "7"), "n_max: 7 of 52 configurations make "),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(options: tuple[str, ...], said: str) -> None:
    assert said in refused("templates", "build", "-o", "x", *options)
    assert not Path("x").exists()


def test_a_file_that_cannot_be_written_is_named(folder: Path) -> None:
    result = build(folder, "nowhere/library")
    assert result.exit_code == BAD_INPUT
    assert result.stderr.startswith("coral: --out: ")


def test_a_set_ups_mistake_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("n_max: many\n")
    assert "n_max" in refused("templates", "build", "-o", "x", "--setup", str(path))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "nowhere"), "nowhere"),
        (("best", "FILE", "--count", "0"), "--count: 0, expected at least 1"),
        (("best", "FILE", "--service", "x/y/z"), "--service: 'x/y/z', expected one of "),
        (("best", "FILE", "--region", "aws/mars-1"), "--region: 'aws/mars-1', expected one of "),
        (("diff", "FILE", "setup.yaml"), "setup.yaml: not a library file"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(
    folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    places = {"FILE": str(folder / "coral.templates"), "setup.yaml": str(folder / "setup.yaml")}
    assert said in refused("templates", *(places.get(a, a) for a in arguments))


def test_larger_limits_are_studied_until_they_give_no_more(folder: Path, tmp_path: Path) -> None:
    asked = ("evaluate", "sensitivity", "--setup", str(folder / "setup.yaml"), "--model", "qwen3-32b")
    limits = ("--n-max", "1,2", "--rho", "4,12", "--cores", "1")
    plot = tmp_path / "plot.svg"
    found = told(*asked, *limits, "--plot", str(plot))
    assert [(t["n_max"], t["rho"]) for t in found["trials"]] == [(1, 4), (1, 12), (2, 4), (2, 12)]
    efficiency = [t["per_usd"] for t in found["trials"]]
    assert efficiency[0] <= efficiency[1] <= efficiency[3]
    assert found["plateau"] is not None
    assert plot.read_text().startswith("<?xml")
    for changed, said in (
        (("--n-max", "1,x"), "--n-max: '1,x', expected numbers of at least 1"),
        (("--n-max", "1.5"), "--n-max: '1.5', expected whole numbers"),
        (("--rho", "0.5"), "--rho: '0.5', expected numbers of at least 1"),
        (("--phase", "train"), "--phase: 'train', expected one of prefill, decode, both"),
        (("--model", "gpt-9"), "--model: 'gpt-9', expected one of "),
        (("--runtime", "tpu"), "--runtime: 'tpu', expected vllm or coral"),
    ):
        assert said in refused(*asked, *changed)
