"""`coral profile fit`."""

import gzip
from pathlib import Path

import pytest
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


def test_times_in_another_unit_are_refused_with_file_line_and_field(tmp_path: Path) -> None:
    lines = [f"A100,2,{size},{(5 + size / 3e5) / 1000}" for size in (2**k for k in range(8, 28))]
    (tmp_path / "collectives.csv").write_text("\n".join(["gpu,gpus,bytes,us", *lines]) + "\n")
    out = tmp_path / "mine.yaml"
    result = CliRunner().invoke(app, ["profile", "fit", "--data", str(tmp_path), "--out", str(out)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"coral: {tmp_path}/collectives.csv, line 2, us: 0.005")
    assert "expected at least 0.2 us, by arithmetic and bandwidth; is it in ms?" in result.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        (
            "collectives.csv.gz",
            gzip.compress(b"gpu,gpus,bytes,us\nA100,2,8,9\n", mtime=0)[:-12],
            "expected a whole gzip file",
        ),
        ("collectives.csv.gz", b"gpu,gpus,bytes,us\n", "expected a whole gzip file"),
        ("collectives.csv", b"gpu,gpus,bytes,us\nA\xff,2,8,9\n", "is not UTF-8, expected text"),
        ("collectives.csv", b'gpu,gpus,bytes,us\n"' + b"x" * 200_000, "expected CSV with commas"),
        (
            "collectives.csv",
            b"gpu,gpus,bytes,us\nA1000,2,8,9\n",
            ", line 2, gpu: 'A1000', expected one of T4",
        ),
    ],
    ids=["cut short", "no gzip", "no text", "no CSV", "unknown GPU"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    result = CliRunner().invoke(app, ["profile", "fit", "--data", str(tmp_path)])
    assert result.exit_code == 2, result.output
    assert str(tmp_path / name) in result.stderr
    assert said in result.stderr


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("m,x,8,1,1,8,8,2", "layers: 'x', expected a whole number"),
        ("m,1,8,1,1,8,8,4", "ffn_matrices: 4, expected 2 or 3"),
        ("m,1,8,3,2,8,8,2", "heads is 3, expected a multiple of kv_heads, 2"),
        ("m,0,8,1,1,8,8,2", "layers: "),
    ],
)
def test_a_model_that_cannot_be_is_named(tmp_path: Path, row: str, said: str) -> None:
    (tmp_path / "collectives.csv").write_text("gpu,gpus,bytes,us\nA100,2,8,9\n")
    header = "model,layers,hidden,heads,kv_heads,head_dim,ffn_dim,ffn_matrices,full_attention_layers,vocab"
    (tmp_path / "models.csv").write_text(f"{header}\n{row},1,9\n")
    result = CliRunner().invoke(app, ["profile", "fit", "--data", str(tmp_path)])
    assert result.exit_code == 2, result.output
    assert "models.csv, line 2, " in result.stderr
    assert said in result.stderr
