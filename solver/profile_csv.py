"""Reading and writing measured points as CSV (docs/profiles.md): strict, and all that is wrong at once.

The columns are those of `vllm bench serve --save-result`, plus the ones of `OURS` that its `--metadata` adds.
All are required, so a misspelt one is a missing one; others are passed over.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from schemas.catalog import Catalog, Phase
from solver.plausible import Wrong, impossible, wrong_split
from solver.points import Point
from solver.strict_csv import Problem, Row, TableError, lines_of

OURS: Mapping[str, str] = {
    "model": "a model of the catalog",
    "variant": "a variant of that model in the catalog",
    "gpu": "a GPU of the catalog that the variant runs on",
    "tp": "tensor-parallel degree, a whole number of at least 1",
    "pp": "pipeline stages, a whole number of at least 1",
    "engine": "what served, with its version, such as vllm-0.32.0",
    "phase": "prefill, decode, or both",
    "source": "who measured, where",
}
VLLMS: Mapping[str, str] = {
    "date": "when, such as 2026-11-29 or 20261129-181500",
    "duration": "seconds that were measured, above 0",
    "completed": "requests served, a whole number of at least 1",
    "failed": "requests that failed, a whole number of at least 0",
    "request_rate": "requests offered a second, above 0; inf or empty in a closed loop",
    "max_concurrency": "requests kept in flight, above 0; empty in an open loop",
    "total_input_tokens": "prompt tokens of the requests served, at least one each",
    "total_output_tokens": "tokens that they were answered, at least one each",
    "request_throughput": "requests served a second, above 0",
    "mean_ttft_ms": "milliseconds to the first token, above 0; empty in phase decode",
    "mean_tpot_ms": "milliseconds per token after the first, above 0; empty in phase prefill",
}
"""Fields of the result that vLLM 0.32 saves (`vllm/benchmarks/serve.py`)."""
COLUMNS: Mapping[str, str] = {**OURS, **VLLMS}
"""Name -> what is expected in it."""

MOST_POINTS = 10_000
"""More is a log of requests, or another mistake: it would take minutes to be told so line by line."""
MOST_PROBLEMS = 100
"""After which nobody reads on."""
_MOST_FAILED = 0.05
_SAME_RATE = 0.05
"""By how much `request_throughput` may differ from `completed / duration`."""


def read(data: bytes, name: str, catalog: Catalog) -> dict[Point, int]:
    """Read a CSV file of measured points, each with its line.

    Args:
        name: what errors call the file.

    Raises:
        TableError: something is missing, unknown, impossible or given twice.
    """
    lines = lines_of(data, name)
    if not lines:
        raise TableError(name, [Problem(1, "header", "an empty file", f"the columns {', '.join(COLUMNS)}")])
    header, rows = lines[0][1], lines[1:]
    problems = _wrong_in_header(header)
    absent = {problem.field for problem in problems}
    if not rows:
        problems.append(Problem(2, "row", "none", "at least one measured point"))
    if len(rows) > MOST_POINTS:
        expected = f"at most {MOST_POINTS}: one a load, not one a request"
        raise TableError(name, [Problem(rows[MOST_POINTS][0], "row", f"{len(rows)} points", expected)])
    points: dict[Point, int] = {}
    seen: dict[tuple[object, ...], int] = {}
    unread = 0
    for i, (line, cells) in enumerate(rows):
        wrong: list[Problem] = []
        point = _read_row(Row(line, header, cells, COLUMNS, wrong), catalog, seen)
        if point is not None:
            points[point] = line
        problems += [p for p in wrong if p.field not in absent]
        if len(problems) >= MOST_PROBLEMS:
            unread = len(rows) - i - 1
            break
    if problems:
        raise TableError(name, problems, unread)
    return points


def _read_row(row: Row, catalog: Catalog, seen: dict[tuple[object, ...], int]) -> Point | None:
    point = _point(row, catalog)
    if point is not None:
        first = seen.setdefault(point.load, row.line)
        if first != row.line:
            row.wrong("row", f"the load of line {first} again", "each load once: keep one, or their mean")
    return point


def write(rows: Sequence[Mapping[str, object]]) -> str:
    """CSV of rows that have all of `COLUMNS`, and the further columns of the first; None is empty."""
    columns = [*COLUMNS, *(name for name in rows[0] if name not in COLUMNS)]
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(columns)
    out.writerows([_cell(row[name]) for name in columns] for row in rows)
    return text.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _wrong_in_header(header: Sequence[str]) -> list[Problem]:
    problems = []
    for column, meaning in COLUMNS.items():
        if header.count(column) > 1:
            problems.append(Problem(1, column, f"{header.count(column)} columns", "one column of that name"))
        elif column not in header:
            near = get_close_matches(column, [h for h in header if h not in COLUMNS], n=1, cutoff=0.75)
            hint = f" (there is {near[0]!r})" if near else ""
            problems.append(Problem(1, column, f"missing{hint}", f"a column of {meaning}"))
    return problems


# --------------------------------------------------------------------------------------------------- rows


def _point(row: Row, catalog: Catalog) -> Point | None:
    """The point of a row, or None where something is wrong with it."""
    phase = row.text("phase", known=get_args(Phase))
    completed = row.whole("completed", 1)
    given: dict[str, Any] = {
        **_where(row, catalog),
        "phase": phase,
        "engine": row.text("engine"),
        "source": row.text("source"),
        "date": row.day("date"),
        "input_tokens": row.whole("total_input_tokens", completed) / completed,
        "output_tokens": row.whole("total_output_tokens", completed) / completed,
        "max_concurrency": row.rate("max_concurrency"),
        "request_rate": row.rate("request_rate"),
        "request_throughput": row.number("request_throughput"),
        "ttft_ms": None if phase == "decode" else row.number("mean_ttft_ms"),
        "tpot_ms": None if phase == "prefill" else row.number("mean_tpot_ms"),
    }
    duration, failed = row.number("duration"), row.whole("failed", 0)
    if row.well() and given["max_concurrency"] is None and given["request_rate"] is None:
        row.wrong("max_concurrency", "none", "one, or a finite request_rate: all at once is no steady load")
    if not row.well() or duration is None:
        return None
    point = Point(**given)
    _check_counts(row, point, completed, failed, duration)
    if row.well():
        _tell(row, impossible(point, catalog, duration))
    return point if row.well() else None


def _where(row: Row, catalog: Catalog) -> dict[str, object]:
    """What was measured, as far as the catalog knows it."""
    model_name, variant_name, gpu = row.text("model"), row.text("variant"), row.text("gpu")
    tp, pp = row.whole("tp", 1), row.whole("pp", 1)
    model = next((m for m in catalog.models if m.name == model_name), None)
    if model is None:
        row.wrong("model", repr(model_name), f"one of {', '.join(m.name for m in catalog.models)}")
    variant = None if model is None else next((v for v in model.variants if v.name == variant_name), None)
    if model is not None and variant is None:
        row.wrong("variant", repr(variant_name), f"one of {', '.join(v.name for v in model.variants)}")
    gpus = [g.name for g in catalog.gpus] if variant is None else list(variant.gpus)
    if gpu not in gpus:
        row.wrong("gpu", repr(gpu), f"one of {', '.join(gpus)}")
    if model is not None and variant is not None:
        _tell(row, wrong_split(model, variant, tp, pp))
    return {"model": model_name, "variant": variant_name, "gpu": gpu, "tp": tp, "pp": pp}


def _check_counts(row: Row, point: Point, completed: int, failed: int, duration: float) -> None:
    served = completed / duration
    if abs(point.request_throughput - served) > _SAME_RATE * served:
        expected = f"completed / duration = {served:.4g} requests/s"
        row.wrong("request_throughput", f"{point.request_throughput:.4g}", expected)
    if failed > _MOST_FAILED * (completed + failed):
        expected = f"at most {_MOST_FAILED:.0%} of {completed + failed}: what fails is not in the means"
        row.wrong("failed", str(failed), expected)


def _tell(row: Row, wrong: Iterable[Wrong]) -> None:
    """Note what is wrong with a point by the names of the columns."""
    for field, value, expected in wrong:
        row.wrong(f"mean_{field}" if f"mean_{field}" in COLUMNS else field, value, expected)
