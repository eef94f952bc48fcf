"""`coral catalog`: what is wrong goes to stderr line by line, what is right is shown."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from schemas.catalog import PAPER_CATALOG, SHIPPED_CATALOG, load_catalog
from schemas.settings import load_settings
from streams.cli import app
from streams.control import run

BAD_INPUT = 2


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("CORAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def coral(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["catalog", *arguments])


@pytest.mark.parametrize("where", [(), ("shipped",), ("paper",), (str(SHIPPED_CATALOG),)])
def test_what_ships_is_valid(where: tuple[str, ...]) -> None:
    result = coral("validate", *where)
    assert result.exit_code == 0
    assert result.stdout.startswith("valid: 21 models, 25 GPUs, 43 configurations, 4 regions, ")


def test_every_mistake_has_its_line_and_the_code_is_2(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = "".join(part.read_text() for part in sorted(SHIPPED_CATALOG.glob("[g-m]*.yaml")))
    path.write_text(text.replace("memory_gb: 24", "memory_gb: -24").replace("ms: 1200", "ms: 1.2"))
    result = coral("validate", str(path))
    assert result.exit_code == BAD_INPUT
    *faults, last = result.stderr.splitlines()
    assert last == f"coral: {len(faults)} faults"
    assert all(fault.startswith(f"{path}:") for fault in faults)
    told = "\n".join(faults)
    assert "gpus.L4.memory_gb: Input should be greater than 0 (got '-24')" in told
    assert "gpus.A10G.memory_gb" in told


@pytest.mark.parametrize("command", ["validate", "show"])
def test_a_catalog_that_is_not_there(command: str) -> None:
    result = coral(command, "nowhere.yaml")
    assert result.exit_code == BAD_INPUT
    assert result.stderr == (
        "coral: PATH: nowhere.yaml: No such file or directory, expected a file or folder that can be read\n"
    )


def test_what_is_shown_must_be_valid_and_each_fault_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("gpus:\n  - { name: G }\nconfigurations: []\nmodels: [{ name: m }]\n")
    result = coral("show", str(path))
    assert result.exit_code == BAD_INPUT
    first, *rest = result.stderr.splitlines()
    assert first.startswith(f"coral: {path}:2: gpus.G.bandwidth_gb_s: missing")
    assert len(rest) > 5
    assert all(line.startswith(f"{path}:") for line in rest)


def test_a_file_that_cannot_be_read_is_not_told_to_lack_what_it_may_have(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("gpus: [\n")
    faults = coral("validate", str(path)).stderr.splitlines()
    assert len(faults) == 2, "the one, and how many"


def test_all_of_it_in_short() -> None:
    shown = coral("show").stdout
    for word in ("Models", "deepseek-v3", "GPUs", "H200", "aws/us-east-2", "azure-2023-conv"):
        assert word in shown


def test_a_model_a_gpu_and_prices() -> None:
    assert "Qwen/Qwen3-32B-FP8" in coral("show", "--model", "qwen3-32b").stdout
    assert "p4de.24xlarge" in coral("show", "--gpu", "A100").stdout
    assert "2/4 of g6.12xlarge" in coral("show", "paper", "--prices").stdout


def test_the_same_as_json() -> None:
    model = json.loads(coral("show", "--model", "deepseek-v3", "--json").stdout)
    assert model["sizes"][0]["kv_bytes_per_token"] == 70272
    gpu = json.loads(coral("show", "--gpu", "H100", "--json").stdout)
    assert len(gpu["configurations"]) == 4
    prices = json.loads(coral("show", "paper", "--prices", "--json").stdout)
    assert len(prices["prices"]) == 52
    whole = json.loads(coral("show", "--json").stdout)
    assert whole["digest"] == load_catalog().digest


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--model", "gpt-5"), "--model: 'gpt-5' is not in the catalog, expected one of phi-4-14b"),
        (("--gpu", "H900"), "--gpu: 'H900' is not in the catalog"),
        (("--gpu", "H100", "--prices"), "expected at most one"),
    ],
)
def test_what_cannot_be_shown(options: tuple[str, ...], said: str) -> None:
    result = coral("show", *options)
    assert result.exit_code == BAD_INPUT
    assert said in result.stderr


def test_nobody_plans_by_a_catalog_in_paper_mode() -> None:
    with pytest.raises(ValueError, match="paper mode"):
        run(load_settings(catalog=PAPER_CATALOG))
