"""`coral explain node`: text for people, JSON for programs, one line for what cannot be."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from schemas.settings import load_settings
from solver.explanation import Explanation
from streams.cli import app
from streams.demo.script import DATA

ASKED = ("--model", "qwen3-32b", "--gpu", "2xL40S", "--layers", "12", "--phase", "decode")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CORAL_")]:
        monkeypatch.delenv(name)


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(app, ("explain", "node", *arguments))


def test_a_person_reads_the_limit_and_the_numbers() -> None:
    result = explain(*ASKED)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "qwen3-32b bf16, interactive, decode: 12 layers, the middle of 6 stages"
    named = [line.split()[0] for line in lines[2:]]
    assert {"binds", "throughput", "step", "alone", "memory", "limits", "next"} <= set(named)


def test_a_program_reads_the_same_as_json() -> None:
    printed = explain(*ASKED, "--json").stdout
    assert Explanation.model_validate_json(printed).model_dump_json() == printed.strip()
    found = json.loads(printed)
    assert (found["layers"], found["stages"], found["unit"]) == (12, 6, "tokens/s")
    assert found["binds"] in {*found["step"]["alone_ms"], *(bound["limit"] for bound in found["bounds"])}
    assert found["binds"] in explain(*ASKED).stdout


def test_what_gives_nothing_says_what_is_missing() -> None:
    result = explain("--model", "qwen3-32b", "--gpu", "1xL4", "--layers", "64")
    assert "binds       kv-space: even the smallest batch is beyond it" in result.stdout


def test_options_choose_variant_class_stages_place_degree_and_files() -> None:
    chosen = (
        "--variant",
        "fp8",
        "--slo-class",
        "interactive",
        "--stages",
        "7",
        "--place",
        "last",
        "--tp",
        "1",
    )
    found = json.loads(explain(*ASKED, *chosen, "--json").stdout)
    assert (found["variant"], found["stages"], found["place"]) == ("fp8", 7, "last")
    assert (found["tp"], found["replicas"]) == (1, 2)
    files = (
        "--catalog",
        DATA / "vllm" / "catalog.yaml",
        "--efficiencies",
        DATA / "vllm" / "efficiencies.yaml",
    )
    other = explain("--model", "tiny", "--gpu", "1xPRETENDED", "--layers", "4", *map(str, files))
    assert other.exit_code == 0, other.output


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("--model", "gpt-9"), "--model: 'gpt-9', expected one of "),
        (("--gpu", "3xL40S"), "--gpu: '3xL40S', expected one of "),
        (("--gpu", "8xT4"), "--gpu: T4, expected a GPU that a variant of qwen3-32b runs on"),
        (("--phase", "train"), "--phase: 'train', expected one of prefill, decode, both"),
        (("--variant", "int3"), "--variant: 'int3', expected one of "),
        (("--slo-class", "batch"), "--slo-class: 'batch', expected one of interactive"),
        (("--place", "middlemost"), "--place: 'middlemost', expected one of alone, first, middle, last"),
        (("--layers", "65"), "layers: 65, expected 1 to 64"),
        (("--stages", "1"), "stages: 1, expected 2 to 53"),
        (("--tp", "3"), "tp: 3, expected one of 1, 2"),
        (("--catalog", "nowhere.yaml"), "--catalog: nowhere.yaml: No such file or directory, expected "),
        (
            ("--efficiencies", "nowhere.yaml"),
            "--efficiencies: nowhere.yaml: No such file or directory, expected ",
        ),
        (("--efficiencies", "/"), "--efficiencies: /: Is a directory, expected "),
        (
            ("--efficiencies", str(DATA / "vllm" / "efficiencies.yaml")),
            "no GPU 'L40S', expected one of PRETENDED",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changed: tuple[str, str], said: str) -> None:
    result = explain(*ASKED, *changed)
    assert result.exit_code == 2
    assert result.stderr.startswith("coral: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_it_goes_by_the_settings() -> None:
    """No option given, nothing else asked: the catalog and efficiencies that ship."""
    shipped = load_settings()
    files = ("--catalog", str(shipped.catalog), "--efficiencies", str(shipped.efficiencies))
    assert explain(*ASKED, "--json").stdout == explain(*ASKED, *files, "--json").stdout


def test_a_catalog_may_be_named() -> None:
    assert explain(*ASKED, "--catalog", "shipped").stdout == explain(*ASKED).stdout
    assert explain(*ASKED, "--catalog", "paper").exit_code == 0


@pytest.mark.parametrize(
    ("name", "given"), [("CATALOG", "/no"), ("EFFICIENCIES", "/no"), ("PROFILES", '["/no"]')]
)
def test_a_setting_whose_file_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, given: str
) -> None:
    monkeypatch.setenv(f"CORAL_{name}", given)
    result = explain(*ASKED)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"coral: {name.lower()}: /no: No such file or directory, expected ")


def test_files_that_hurt_are_refused_at_once(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.yaml"
    rows = ["a: &a [x, x]"] + [
        f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    bomb.write_text("\n".join(rows))
    for option in ("--efficiencies", "--catalog"):
        result = explain(*ASKED, option, str(bomb))
        assert result.exit_code == 2
        assert result.stderr.startswith(f"coral: {bomb}:7: body: aliases add")
