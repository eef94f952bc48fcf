"""Measured points as CSV: what is read, and with which words a file is refused, all of it at once."""

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.catalog import Catalog, load_catalog
from solver.profile_csv import COLUMNS, OURS, read, write
from solver.profiles import Point
from solver.strict_csv import Problem, TableError

GOOD: dict[str, object] = {
    "model": "qwen3-32b",
    "variant": "bf16",
    "gpu": "A100",
    "tp": 2,
    "pp": 1,
    "engine": "vllm-0.32.0",
    "phase": "both",
    "source": "a made-up lab",
    "date": "20261129-181500",
    "duration": 320.0,
    "completed": 200,
    "failed": 0,
    "request_rate": "inf",
    "max_concurrency": 4,
    "total_input_tokens": 200 * 1024,
    "total_output_tokens": 200 * 200,
    "request_throughput": 200 / 320,
    "mean_ttft_ms": 400.0,
    "mean_tpot_ms": 29.0,
}
"""Four in flight for 0.4 + 199 x 0.029 = 6.2 s each: 0.65 requests a second."""


SHIPPED = load_catalog()


def row(**changed: object) -> dict[str, object]:
    return {**GOOD, **changed}


def text(*rows: dict[str, object]) -> bytes:
    return write(rows or [GOOD]).encode()


def problems(data: bytes, catalog: Catalog) -> list[Problem]:
    with pytest.raises(TableError) as refused:
        read(data, "mine.csv", catalog)
    assert str(refused.value).count("\n") == len(refused.value.problems) - 1
    return list(refused.value.problems)


def problem(catalog: Catalog, **changed: object) -> Problem:
    """The one thing that is wrong with a row, on line 2."""
    (only,) = problems(text(row(**changed)), catalog)
    assert only.line == 2
    return only


# --- what is read ----------------------------------------------------------------------------------
def test_a_row_becomes_a_point(catalog: Catalog) -> None:
    (point,) = read(text(), "mine.csv", catalog)
    assert (point.model, point.variant, point.gpu, point.tp, point.pp) == ("qwen3-32b", "bf16", "A100", 2, 1)
    assert (point.input_tokens, point.output_tokens) == (1024, 200)
    assert (point.max_concurrency, point.request_rate) == (4, None)
    assert (point.request_throughput, point.ttft_ms, point.tpot_ms) == (0.625, 400, 29)
    assert (point.engine, point.phase, point.source) == ("vllm-0.32.0", "both", "a made-up lab")
    assert point.date == "2026-11-29"
    assert point.in_flight == pytest.approx(3.86, rel=0.01)


def test_other_columns_blank_lines_a_mark_and_odd_spellings_do_not_matter(catalog: Catalog) -> None:
    plain = read(text(), "mine.csv", catalog)
    header, line = text().decode().splitlines()
    odd = read(f"\ufeff{header},p99_ttft_ms\r\n\r\n{line},\r\n".encode(), "m", catalog)
    assert (list(odd), list(odd.values())) == (list(plain), [3])
    assert read(text(row(tp="2.0", max_concurrency="4.0", date=" 2026-11-29 ")), "m", catalog) == plain


def test_a_phase_lacks_what_it_does_not_do(catalog: Catalog) -> None:
    # A prefill instance answers one token; 4 in flight for 1.28 s.
    prefill = row(phase="prefill", mean_ttft_ms=1200.0, mean_tpot_ms=None, total_output_tokens=200)
    prefill |= {"duration": 64.0, "request_throughput": 200 / 64}
    decode = row(phase="decode", mean_ttft_ms=None)
    one, other = read(text(prefill, decode), "mine.csv", catalog)
    assert (one.ttft_ms, one.tpot_ms) == (1200, None)
    assert (other.ttft_ms, other.tpot_ms) == (None, 29)


def test_an_open_loop_has_a_rate(catalog: Catalog) -> None:
    (point,) = read(text(row(request_rate=0.7, max_concurrency=None)), "mine.csv", catalog)
    assert (point.max_concurrency, point.request_rate) == (None, 0.7)


def test_the_document_names_every_column_and_its_example_is_read(catalog: Catalog) -> None:
    page = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text()
    named = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert [name for name in named if name in COLUMNS] == list(COLUMNS)
    (example,) = re.findall(r"```csv\n(.*?)```", page, flags=re.DOTALL)
    assert len(read(example.encode(), "docs/profiles.md", catalog)) >= 2


# --- what is refused -------------------------------------------------------------------------------
@pytest.mark.parametrize("column", list(COLUMNS))
def test_a_missing_column_is_named_with_its_meaning(catalog: Catalog, column: str) -> None:
    rows = list(csv.DictReader(io.StringIO(text().decode())))
    rest = io.StringIO()
    out = csv.DictWriter(rest, [name for name in COLUMNS if name != column], extrasaction="ignore")
    out.writeheader()
    out.writerows(rows)
    (only,) = problems(rest.getvalue().encode(), catalog)
    assert (only.line, only.field) == (1, column)
    assert COLUMNS[column] in only.expected


def test_a_misspelt_column_is_guessed(catalog: Catalog) -> None:
    (only,) = problems(text().replace(b"mean_ttft_ms", b"mean_ttft_s"), catalog)
    assert only == (
        1,
        "mean_ttft_ms",
        "missing (there is 'mean_ttft_s')",
        f"a column of {COLUMNS['mean_ttft_ms']}",
    )


@pytest.mark.parametrize("field", ["mean_ttft_ms", "mean_tpot_ms", "request_throughput", "duration"])
@pytest.mark.parametrize(
    "value", ["nan", "NaN", "inf", "-inf", "-3", "0", "", "fast", "1_000", "3 ms", "0x10"]
)
def test_a_figure_that_is_none_is_named(catalog: Catalog, field: str, value: str) -> None:
    assert problem(catalog, **{field: value}) == (2, field, repr(value), COLUMNS[field])


@pytest.mark.parametrize("field", ["tp", "pp", "completed", "failed", "total_input_tokens"])
@pytest.mark.parametrize("value", ["-1", "1.5", "nan", "inf", "", "two"])
def test_a_count_that_is_none_is_named(catalog: Catalog, field: str, value: str) -> None:
    found = problems(text(row(**{field: value})), catalog)
    assert (2, field, repr(value), COLUMNS[field]) in found


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("model", "qwen3-33b", "one of phi-4-14b"),
        ("variant", "int4", "one of bf16, fp8"),
        ("gpu", "A100-SXM", "A100"),
        ("phase", "mixed", "prefill, decode, or both"),
        ("tp", 3, "a degree that divides the heads of qwen3-32b"),
        ("pp", 65, "at most the 64 layers"),
        ("engine", "", OURS["engine"]),
        ("source", "", OURS["source"]),
        ("date", "yesterday", "such as 2026-11-29"),
        ("date", "2026-13-29", "such as 2026-11-29"),
        ("max_concurrency", "", "all at once is no steady load"),
        ("max_concurrency", "-4", "above 0"),
        ("request_rate", "0", "above 0"),
        ("failed", 20, "at most 5% of 220"),
        ("request_throughput", 37.5, "completed / duration = 0.625 requests/s"),
    ],
)
def test_what_cannot_be_is_named_with_what_was_expected(
    catalog: Catalog, field: str, value: object, expected: str
) -> None:
    found = problem(catalog, **{field: value})
    assert found.field == field
    assert expected in found.expected


@pytest.mark.parametrize("field", ["mean_ttft_ms", "mean_tpot_ms"])
def test_seconds_for_milliseconds_and_the_reverse(catalog: Catalog, field: str) -> None:
    right = GOOD[field]
    assert isinstance(right, float)
    found = problem(catalog, **{field: right / 1000})
    assert found.field == field
    assert found.expected.endswith("is it in seconds?")
    found = problem(catalog, **{field: right * 1000})
    assert found.field == field
    assert found.expected.endswith("is it in microseconds?")


@st.composite
def loads(draw: st.DrawFn) -> dict[str, object]:
    """Rows that could have been measured: throughput follows from times and requests in flight."""
    ttft_ms, tpot_ms = draw(st.floats(150, 3000)), draw(st.floats(20, 90))
    clients, completed = draw(st.integers(1, 64)), draw(st.integers(64, 500))
    throughput = clients * draw(st.floats(0.6, 1.0)) / (ttft_ms + 199 * tpot_ms) * 1000
    return row(
        mean_ttft_ms=ttft_ms,
        mean_tpot_ms=tpot_ms,
        max_concurrency=clients,
        completed=completed,
        total_input_tokens=1024 * completed,
        total_output_tokens=200 * completed,
        request_throughput=throughput,
        duration=completed / throughput,
    )


@given(loads(), st.sampled_from(["mean_ttft_ms", "mean_tpot_ms"]), st.sampled_from([1000.0, 0.001]))
def test_units_survive_the_way_to_the_file_and_back_and_wrong_ones_never_do(
    measured: dict[str, float], field: str, factor: float
) -> None:
    (point,) = read(text(dict(measured)), "mine.csv", SHIPPED)
    assert point.ttft_ms == pytest.approx(measured["mean_ttft_ms"], rel=1e-6)
    assert point.tpot_ms == pytest.approx(measured["mean_tpot_ms"], rel=1e-6)
    assert point.request_throughput == pytest.approx(measured["request_throughput"], rel=1e-6)
    assert (point.input_tokens, point.output_tokens) == (1024, 200)
    (only,) = problems(text({**measured, field: factor * measured[field]}), SHIPPED)
    assert only.field == field


def toy(catalog: Catalog) -> Catalog:
    """A catalog with a model too small for the hardware to tell."""
    model = catalog.models[0]
    small = model.architecture.model_copy(update={"layers": 1, "full_attention_layers": 1, "hidden": 64})
    return catalog.model_copy(update={"models": (model.model_copy(update={"architecture": small}),)})


def test_both_times_in_seconds_are_found_whatever_the_model(catalog: Catalog) -> None:
    """Little's law: requests in flight are throughput x time."""
    given = row(model=catalog.models[0].name, gpu="L4", tp=1, mean_ttft_ms=0.4, mean_tpot_ms=0.029)
    (only,) = problems(text(given), toy(catalog))
    assert only.field == "mean_tpot_ms"
    assert "requests in flight" in only.value
    assert only.expected.endswith("are both times in milliseconds?")


def test_ttft_alone_in_seconds_is_found_whatever_the_model(catalog: Catalog) -> None:
    """A first token takes no less than a step."""
    given = row(model=catalog.models[0].name, gpu="L4", tp=1, mean_ttft_ms=0.4)
    assert len(read(text({**given, "mean_ttft_ms": 6.0}), "mine.csv", toy(catalog))) == 1
    (only,) = problems(text(given), toy(catalog))
    expected = "at least a 5th of TPOT, 5.8: a first token takes a step too; is it in seconds?"
    assert only == (2, "mean_ttft_ms", "0.4", expected)


def test_a_hundred_faults_are_enough_and_the_rest_is_counted(catalog: Catalog) -> None:
    bad = text(*[row(gpu="A1000", tp=0)] * 250, GOOD).replace(b"mean_tpot_ms", b"tpot")
    with pytest.raises(TableError) as refused:
        read(bad, "mine.csv", catalog)
    assert len(refused.value.problems) == 1 + 100, "those of the missing column in every line do not count"
    last = str(refused.value).splitlines()[-1]
    assert last == "mine.csv: 101 faults so far; 201 more lines were not looked at"


def test_a_log_of_requests_is_refused_at_once(catalog: Catalog) -> None:
    header, line = text().splitlines()
    (only,) = problems(b"\n".join([header, *[line] * 10_001]), catalog)
    assert (only.line, only.field, only.value) == (10_002, "row", "10001 points")
    assert "one a load, not one a request" in only.expected


def test_a_load_may_be_given_once(catalog: Catalog) -> None:
    again = row(mean_ttft_ms=401.0, date="2026-11-30")
    (only,) = problems(text(GOOD, row(engine="vllm-0.33.0"), again), catalog)
    assert (only.line, only.field, only.value) == (4, "row", "the load of line 2 again")


def test_everything_wrong_is_said_at_once_in_the_order_of_the_lines(catalog: Catalog) -> None:
    bad = text(row(gpu="A1000", mean_ttft_ms="nan"), GOOD, row(tp=0, max_concurrency=8))
    found = problems(bad, catalog)
    assert [(p.line, p.field) for p in found] == [(2, "gpu"), (2, "mean_ttft_ms"), (4, "tp")]
    lines = str(TableError("mine.csv", found)).splitlines()
    assert lines[0].startswith("mine.csv:2: gpu: 'A1000', expected one of ")


def test_what_is_wrong_in_the_lines_is_said_beside_a_missing_column(catalog: Catalog) -> None:
    bad = text(row(gpu="A1000", mean_ttft_ms="nan")).replace(b"mean_tpot_ms", b"tpot")
    found = problems(bad, catalog)
    assert [(p.line, p.field) for p in found] == [(1, "mean_tpot_ms"), (2, "gpu"), (2, "mean_ttft_ms")]


def test_lines_are_counted_through_cells_of_several_lines(catalog: Catalog) -> None:
    found = problems(text(row(source="one\nlab"), row(max_concurrency=8, tp="x")), catalog)
    assert [(p.line, p.field) for p in found] == [(4, "tp")]


@pytest.mark.parametrize(
    ("data", "line", "field"),
    [
        (b"", 1, "header"),
        (b"\n\n", 1, "header"),
        (text().splitlines()[0], 2, "row"),
        (text() + b"qwen3-32b,bf16\n", 3, "row"),
        (text() + b"\xff\xfe\n", 3, "row"),
        (text() + b'"unclosed\n', 3, "row"),
        (text().replace(b"variant", b"model", 1), 1, "model"),
    ],
)
def test_what_is_no_table_is_named(catalog: Catalog, data: bytes, line: int, field: str) -> None:
    assert (line, field) in [(p.line, p.field) for p in problems(data, catalog)]


@given(st.binary(max_size=400))
def test_no_bytes_do_worse_than_be_refused(data: bytes) -> None:
    empty = Catalog(gpus=(), configurations=(), models=())
    for content in (data, text().splitlines()[0] + b"\n" + data):
        with pytest.raises(TableError):
            read(content, "noise", empty)


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        (("ttft_ms",), "ttft_ms: none, expected one in phase both"),
        (("tpot_ms",), "tpot_ms: none, expected one in phase both"),
        (("max_concurrency", "request_rate"), "got neither"),
    ],
)
def test_a_point_that_lacks_what_makes_it_one_is_refused(
    catalog: Catalog, lacking: tuple[str, ...], said: str
) -> None:
    (point,) = read(text(), "mine.csv", catalog)
    with pytest.raises(ValueError, match=said):
        Point.model_validate({**point.model_dump(), **dict.fromkeys(lacking)})
