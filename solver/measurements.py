"""The measurements that ship, or a folder of the same form (`schemas/data/measured/README.md`)."""

import csv
import gzip
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from schemas.architecture import Architecture
from schemas.catalog import Variant
from solver.shapes import Flags, Floats, Shape

Words = NDArray[np.str_]

SHIPPED = Path(__file__).parents[1] / "schemas" / "data" / "measured"

WORDS = ("gpu", "phase", "model", "precision", "vllm", "measured", "fabric", "collective")
OPERATIONS = (
    *("attn_pre_proj_ms", "attn_rope_ms", "attn_post_proj_ms", "mlp_up_proj_ms", "mlp_act_ms"),
    *("mlp_down_proj_ms", "input_layernorm_ms", "post_attention_layernorm_ms", "add_ms"),
)
COLUMNS = {
    "gemm": ("gpu", "weight_bits", "rows", "columns", "inner", "us"),
    "attention": ("gpu", "phase", "head_dim", "window", "sequences", "tokens", "heads", "kv_heads", "us"),
    "experts": ("gpu", "weight_bits", "tokens", "hidden", "ffn", "experts", "top_k", "tp", "us"),
    "collectives": ("gpu", "gpus", "bytes", "us"),
    "operations": ("gpu", "model", "tp", "tokens", *OPERATIONS),
    "layers": ("model", "gpu", "tp", "phase", "tokens", "ms"),
    "kv_blocks": ("model", "gpu", "tp", "layers", "blocks_of_16"),
    "steps": ("model", "gpu", "tp", "prompt_tokens", "sequences", "output_tokens", "prompt_ms", "token_ms"),
    "serving": (
        *("model", "gpu", "precision", "vllm", "tp", "attention_dp", "expert_parallel"),
        *("input_tokens", "output_tokens", "concurrency", "ttft_ms", "tpot_ms", "measured"),
    ),
}
"""The files that are read, with their columns; all but `WORDS` are positive numbers (`window` may be 0)."""
HELD_MODELS = ("Llama-2-70b-hf", "Llama-2-7b-hf", "Meta-Llama-3-70B")
"""Of Vidur's: about a third of its points."""


@dataclass(frozen=True)
class Table:
    """Columns of equal length."""

    numbers: dict[str, Floats]
    words: dict[str, Words]

    def __getitem__(self, column: str) -> Floats:
        return self.numbers[column]

    def __len__(self) -> int:
        return len(next(iter((self.words or self.numbers).values())))

    def where(self, keep: Flags) -> "Table":
        return Table(
            {name: column[keep] for name, column in self.numbers.items()},
            {name: column[keep] for name, column in self.words.items()},
        )

    def of(self, **words: str) -> "Table":
        """The rows in which each of these columns has this word."""
        keep = np.ones(len(self), dtype=np.bool_)
        for column, word in words.items():
            keep &= self.words[column] == word
        return self.where(keep)

    def each(self, *columns: str) -> Iterator[tuple[tuple[str | float, ...], "Table"]]:
        """Groups of rows that agree in these columns, in order."""
        keys = list(zip(*(self._column(c).tolist() for c in columns), strict=True))
        for key in sorted(set(keys)):
            yield key, self.where(np.array([k == key for k in keys], dtype=np.bool_))

    def _column(self, name: str) -> Floats | Words:
        return self.words[name] if name in self.words else self.numbers[name]


@dataclass(frozen=True)
class Measured:
    """All tables by name, and the architectures of the models in them."""

    tables: dict[str, Table]
    architectures: dict[str, Architecture]
    held_models: tuple[str, ...] = HELD_MODELS

    def __getitem__(self, name: str) -> Table:
        return self.tables[name]

    def with_table(self, name: str, table: Table) -> "Measured":
        """The same with another table in a table's place."""
        return replace(self, tables={**self.tables, name: table})

    def shape(self, model: str, weight_bits: float = 16, expert_bits: float | None = None) -> Shape:
        """A model in a precision; a plain FFN of two matrices counts as a gated one with as many weights."""
        variant = Variant(
            name="measured", checkpoint=model, weight_bits=weight_bits, expert_bits=expert_bits, gpus=()
        )
        return Shape(self.architectures[model], variant)


def load(folder: Path = SHIPPED) -> Measured:
    """Read a folder of measurements; a file may be gzip-compressed or plain, and may be missing.

    Raises:
        OSError: the folder or a file cannot be read.
        ValueError: a column is missing or a value impossible; names file, line, field, value and expectation.
    """
    if not folder.is_dir():
        raise ValueError(
            f"{folder}: no such folder, expected one with {', '.join(COLUMNS)} as .csv or .csv.gz"
        )
    tables = {name: _table(folder, name, columns) for name, columns in COLUMNS.items()}
    if not any(len(table) for table in tables.values()):
        raise ValueError(f"{folder}: holds none of {', '.join(COLUMNS)} as .csv or .csv.gz")
    own = folder / "models.csv"
    return Measured(tables, _architectures(own if own.exists() else SHIPPED / "models.csv"))


def _file(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / f"{name}.csv.gz", folder / f"{name}.csv") if p.exists()), None)


def _table(folder: Path, name: str, columns: tuple[str, ...]) -> Table:
    content: dict[str, list[str]] = {column: [] for column in columns}
    numbers: dict[str, list[float]] = {column: [] for column in columns if column not in WORDS}
    path = _file(folder, name)
    if path is not None:
        for line, row in _rows(path, columns):
            for column in columns:
                if column in WORDS:
                    content[column].append(row[column])
                else:
                    numbers[column].append(_number(path, line, column, row[column]))
    return Table(
        {column: np.array(values, dtype=np.float64) for column, values in numbers.items()},
        {column: np.array(content[column], dtype=np.str_) for column in columns if column in WORDS},
    )


def place_of(folder: Path, name: str, row: int) -> str:
    """File and line of a table's row, counted from 0: for what is found when lines are no more known."""
    path = _file(folder, name) or folder
    return next(f"{path}, line {line}" for i, (line, _) in enumerate(_rows(path, COLUMNS[name])) if i == row)


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        yield from _read_rows(path, columns)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: {error}, expected a whole gzip file") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8, expected text") from error
    except csv.Error as error:
        raise ValueError(f"{path}: {error}, expected CSV with commas") from error


def _read_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    opened: Callable[..., TextIO] = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if missing := [c for c in columns if c not in (reader.fieldnames or ())]:
            raise ValueError(
                f"{path}, line 1: no column {missing[0]!r}, expected the columns {', '.join(columns)}"
            )
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(
                    f"{path}, line {reader.line_num}: expected {len(reader.fieldnames or ())} fields"
                )
            yield reader.line_num, row


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and (value > 0 or (column == "window" and value == 0))):
        raise ValueError(f"{path}, line {line}, {column}: {text!r}, expected a number above 0")
    return value


def _architectures(path: Path) -> dict[str, Architecture]:
    columns = ("model", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_dim", "ffn_matrices")
    found = {}
    for line, row in _rows(path, columns):
        try:
            found[row["model"]] = _architecture(row)
        except ValidationError as error:
            wrong = error.errors()[0]
            field = ".".join(map(str, wrong["loc"])) or "row"
            raise ValueError(f"{path}, line {line}, {field}: {wrong['msg']}") from error
        except ValueError as error:
            raise ValueError(f"{path}, line {line}, {error}") from error
    return found


def _architecture(row: dict[str, str]) -> Architecture:
    facts: dict[str, int] = {}
    for name, text in row.items():
        if name != "model" and text:
            if not text.isdecimal():
                raise ValueError(f"{name}: {text!r}, expected a whole number")
            facts[name] = int(text)
    matrices = facts.pop("ffn_matrices", 0)
    if matrices not in (2, 3):
        raise ValueError(f"ffn_matrices: {matrices}, expected 2 or 3")
    if "ffn_dim" in facts:
        facts["ffn_dim"] = facts["ffn_dim"] * matrices // 3
    tied = bool(facts.pop("tied_embeddings", 0))
    return Architecture(**facts, tied_embeddings=tied)  # type: ignore[arg-type]
