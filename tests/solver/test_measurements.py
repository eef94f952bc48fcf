"""Folders of measurements: bad ones are refused with file, line and field."""

from pathlib import Path

import pytest

from solver.measurements import SHIPPED, load

HEAD = "gpu,gpus,bytes,us\n"


def test_what_ships_is_small_and_whole() -> None:
    measured = load()
    assert all(len(measured[name]) for name in measured.tables)
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 700_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu,gpus,us\nA100,2,1\n", r"collectives.csv, line 1: no column 'bytes'"),
        (
            HEAD + "A100,2,8,1\nA100,2,8,nan\n",
            r"collectives.csv, line 3, us: 'nan', expected a number above 0",
        ),
        (HEAD + "A100,2,8,0\n", r"line 2, us: '0', expected a number above 0"),
        (HEAD + "A100,2,-8,1\n", r"line 2, bytes: '-8', expected"),
        (HEAD + "A100,two,8,1\n", r"line 2, gpus: 'two', expected"),
        (HEAD + "A100,2,8\n", r"line 2: expected 4 fields"),
        (HEAD + "A100,2,8,1,5\n", r"line 2: expected 4 fields"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "collectives.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_folders_without_any_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds none of gemm, "):
        load(tmp_path)
    with pytest.raises(ValueError, match="no such folder"):
        load(tmp_path / "nowhere")


def test_groups_come_in_order_and_hold_all_rows() -> None:
    table = load()["collectives"]
    groups = list(table.each("gpu", "gpus"))
    assert [key for key, _ in groups] == sorted(key for key, _ in groups)
    assert sum(len(group) for _, group in groups) == len(table)
