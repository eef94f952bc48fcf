"""`coral profile fit`."""

from pathlib import Path

from typer.testing import CliRunner

from schemas.performance import Efficiencies
from schemas.yamlfile import load_yaml
from streams.cli import app


def test_a_folder_of_ones_own_may_hold_a_part_of_the_tables(tmp_path: Path) -> None:
    lines = [f"A100,2,{size},{5 + size / 3e5}" for size in (2**k for k in range(8, 28))]
    (tmp_path / "collectives.csv").write_text("\n".join(["gpu,gpus,bytes,us", *lines]) + "\n")
    out = tmp_path / "mine.yaml"
    result = CliRunner().invoke(app, ["profile", "fit", "--data", str(tmp_path), "--out", str(out)])
    assert result.exit_code == 0, result.output
    a100 = load_yaml(Efficiencies, out).of("A100")
    assert a100.all_reduce[0].evidence.points == 13
    assert a100.matmul.evidence.assumed is not None
    assert "A100 kernel all_reduce over 2, aiconfigurator: 7 held out, median error" in result.output


def test_a_bad_folder_is_refused_with_file_line_and_field(tmp_path: Path) -> None:
    (tmp_path / "collectives.csv").write_text("gpu,gpus,bytes,us\nA100,2,8,nan\n")
    result = CliRunner().invoke(app, ["profile", "fit", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "collectives.csv, line 2, us: 'nan', expected a number above 0" in result.output
