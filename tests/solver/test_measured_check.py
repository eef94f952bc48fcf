"""Measurements to fit on: what ships passes, and a wrong unit or name in any column is told with its row."""

import numpy as np
import pytest

from schemas.catalog import load_catalog
from solver.measured_check import impossible
from solver.measurements import Measured, Table, load

GPUS = {gpu.name: gpu for gpu in load_catalog().gpus}
TIMES = [
    ("gemm", "us"),
    ("attention", "us"),
    ("experts", "us"),
    ("collectives", "us"),
    ("operations", "mlp_up_proj_ms"),
    ("layers", "ms"),
    ("steps", "prompt_ms"),
    ("steps", "token_ms"),
    ("serving", "ttft_ms"),
    ("serving", "tpot_ms"),
]


@pytest.fixture(scope="module")
def shipped() -> Measured:
    return load()


def changed(measured: Measured, table: str, column: str, by: float) -> Measured:
    t = measured[table]
    return measured.with_table(table, Table({**t.numbers, column: t[column] * by}, t.words))


def test_what_ships_is_plausible(shipped: Measured) -> None:
    assert list(impossible(shipped, GPUS)) == []


@pytest.mark.parametrize(("table", "column"), TIMES)
def test_a_thousandth_is_told(shipped: Measured, table: str, column: str) -> None:
    wrong = list(impossible(changed(shipped, table, column, 0.001), GPUS))
    assert {(w.table, w.column) for w in wrong} >= {(table, column)}
    assert any("is it in" in w.expected for w in wrong)
    assert len(wrong) <= 40


@pytest.mark.parametrize(("table", "column"), [t for t in TIMES if t != ("serving", "ttft_ms")])
def test_a_thousandfold_is_told(shipped: Measured, table: str, column: str) -> None:
    wrong = list(impossible(changed(shipped, table, column, 1000.0), GPUS))
    assert {w.table for w in wrong} == {table}
    assert column in {w.column for w in wrong}


@pytest.mark.parametrize(
    ("table", "column", "word", "expected"),
    [
        ("layers", "gpu", "A1000", "one of T4"),
        ("layers", "model", "gpt-9", "one of llama1_30b"),
        ("layers", "phase", "prefill", "one of prompt, decode"),
    ],
)
def test_a_word_that_nobody_knows_is_told(
    shipped: Measured, table: str, column: str, word: str, expected: str
) -> None:
    t = shipped[table]
    words = t.words[column].copy().astype("<U40")
    words[7] = word
    (wrong,) = impossible(shipped.with_table(table, Table(t.numbers, {**t.words, column: words})), GPUS)
    assert wrong[:4] == (table, 7, column, repr(word))
    assert wrong.expected.startswith(expected)


def test_half_a_gpu_is_told(shipped: Measured) -> None:
    t = shipped["collectives"]
    half = Table({**t.numbers, "gpus": np.full(len(t), 2.5)}, t.words)
    assert next(impossible(shipped.with_table("collectives", half), GPUS))[1:4] == (0, "gpus", "2.5")
