"""`coral profile`: a simulated engine is measured, and once that is imported the model says the same."""

import asyncio
import csv
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from agents.simulated_door import Door
from schemas.catalog import Catalog, load_catalog
from schemas.faults import FileError
from schemas.performance import load_efficiencies
from schemas.problems import LatencyTable
from schemas.settings import load_settings
from solver.building import build_library
from solver.correction import correction_of
from solver.figures import Figures
from solver.profile_csv import write
from solver.profiles import Point, Profile, load_profile
from solver.roofline import Roofline, Slot
from solver.setups import Scope
from streams.cli import app
from streams.interrupts import INTERRUPTED

HANG_S = 120.0
BAD_INPUT = 2
TABLE = LatencyTable(batch=(1, 4), step_ms=(10.0, 20.0), prefill_ms_per_token=0.5, startup_s=1.0)
WHAT = ("--model", "gpt-oss-20b", "--gpu", "H100", "--served-as", "tiny", "--engine", "simulated-1")
SHORT = ("--input-tokens", "60", "--output-tokens", "12", "--warmup", "0.1")


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture
async def url() -> AsyncIterator[str]:
    door = Door.open("tiny", TABLE, "127.0.0.1")
    yield f"http://{door.endpoint}"
    await door.close()


def coral(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["profile", *arguments])


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[Process]:
    """`coral profile run` in a process of its own: it handles signals."""
    command = [sys.executable, "-m", "streams.cli", "profile", "run", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def run(*arguments: str) -> tuple[int | None, str, str]:
    async with running(*arguments) as process, asyncio.timeout(HANG_S):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


# --- the round trip --------------------------------------------------------------------------------
async def test_what_is_measured_is_what_the_model_says_once_it_is_imported(
    url: str, catalog: Catalog, tmp_path: Path
) -> None:
    file = tmp_path / "mine.csv"
    loads = ("--concurrency", "1,4", "--rate", "15", "--seconds", "0.8", "--source", "a test")
    code, out, err = await run("--url", url, *WHAT, *SHORT, *loads, "--out", str(file))
    assert code == 0, err
    assert "1 in flight: " in out
    measured = rows(file)
    assert [r["max_concurrency"] for r in measured] == ["1", "4", ""]
    assert [r["request_rate"] for r in measured] == ["inf", "inf", "15"]
    for row in measured:
        # Sleeps never end early, so an engine that sleeps is never faster than its table.
        assert float(row["mean_ttft_ms"]) >= 0.5 * 50
        assert float(row["mean_tpot_ms"]) >= 9.0
        assert int(row["total_output_tokens"]) == 12 * int(row["completed"])
    assert float(measured[1]["mean_tpot_ms"]) > float(measured[0]["mean_tpot_ms"])

    imported = coral("import", str(file))
    assert imported.exit_code == 0, imported.output
    assert "TPOT measured" in imported.output
    profile = load_profile([tmp_path / "mine.profile.yaml"], catalog)
    assert profile is not None
    assert f"3 points, digest {profile.digest}" in imported.output
    for point, row in zip(profile.points, measured, strict=True):
        assert point.tpot_ms == float(row["mean_tpot_ms"])
        assert point.source == "a test"
    alone, crowd, _ = profile.points
    assert modelled_ms(catalog, profile, alone) == pytest.approx((alone.ttft_ms, alone.tpot_ms))
    assert modelled_ms(catalog, profile, crowd)[1] == pytest.approx(crowd.tpot_ms)
    _the_library_follows(catalog, profile)


def modelled_ms(catalog: Catalog, profile: Profile, point: Point) -> tuple[float, float]:
    """TTFT of a lone prompt and TPOT at the point's load, by the corrected roofline."""
    model = catalog.model(point.model)
    efficiencies, variant = load_efficiencies(), model.variants[0]
    correction = correction_of(profile, catalog, efficiencies, model, variant)
    lengths = {"mean_input_tokens": point.input_tokens, "mean_output_tokens": point.output_tokens}
    level = model.levels[0]
    level = level.model_copy(update={"workload": level.workload.model_copy(update=lengths)})
    gpus = {gpu.name: gpu for gpu in catalog.gpus}
    roofline = Roofline(model, variant, level, gpus, efficiencies, "both", correction)
    slot, layers = Slot(point.gpu, 1, first=True, last=True, send_gb_s=0.0), float(model.architecture.layers)
    alone = point.max_concurrency == 1
    batch = np.array([[1.0 if alone else point.decoding]])
    step = roofline.decode_step(point.gpu, 1, batch) if alone else roofline.round(point.gpu, 1, batch).step
    seconds = np.asarray(roofline.seconds(slot, layers, step)).item()
    return 1000 * float(roofline.prefill_s(slot, layers)), 1000 * seconds


def _the_library_follows(catalog: Catalog, profile: Profile) -> None:
    node = catalog.configuration("1xH100")
    scope = Scope((("gpt-oss-20b", "interactive"),), (node,), variants={}, n_max=1)
    plain, measured = (
        build_library(Figures(catalog, load_efficiencies(), given), scope) for given in (None, profile)
    )
    assert (plain.inputs.profile, measured.inputs.profile) == (None, profile.digest)
    assert plain.digest != measured.digest
    # The simulated engine is slower than an H100, and so is the node that is planned with now; measured on a
    # busy machine it may even be too slow for its promise, and then there is no template.
    fast, slow = (sum(c.throughput for c in each.candidates) for each in (plain, measured))
    assert slow < fast


async def test_a_stop_keeps_what_was_measured(url: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    loads = ("--concurrency", "1,2", "--seconds", "1", "--out", str(file))
    async with running("--url", url, *WHAT, *SHORT, *loads) as process, asyncio.timeout(HANG_S):
        while not file.exists():  # noqa: ASYNC110  the process tells nobody
            await asyncio.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert process.returncode == INTERRUPTED, err
    assert b"Traceback" not in err
    assert rows(file)[0]["max_concurrency"] == "1"
    assert b"points" in out
    assert coral("import", str(file), "--out", str(tmp_path / "p.json")).exit_code == 0


async def test_a_stop_before_anything_was_measured_writes_nothing(tmp_path: Path) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()  # until the client goes
        writer.close()
        left.set()

    asked, left = asyncio.Event(), asyncio.Event()
    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with running("--url", url, *WHAT, "--out", str(tmp_path / "m.csv")) as process:
        async with asyncio.timeout(HANG_S):
            await asked.wait()
            process.send_signal(signal.SIGTERM)
            await process.communicate()
            await left.wait()
    server.close()
    assert process.returncode == INTERRUPTED
    assert not (tmp_path / "m.csv").exists()


async def test_a_measurement_that_no_such_gpu_could_give_is_told_at_once(url: str, tmp_path: Path) -> None:
    """Somebody names the wrong model: its weights cannot be read as fast as that."""
    what = ("--model", "llama-3-70b", "--variant", "bf16", "--gpu", "L4", "--engine", "e")
    loads = ("--served-as", "tiny", "--concurrency", "1", "--seconds", "0.3")
    file = tmp_path / "mine.csv"
    code, _, err = await run("--url", url, *what, *SHORT, *loads, "--out", str(file))
    assert code == 1, err
    assert "coral profile import would refuse it:\n" in err
    assert "mean_tpot_ms" in err
    assert len(rows(file)) == 1


# --- what is refused -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("--model", "gpt-9"), "--model: 'gpt-9', expected one of "),
        (("--variant", "int2"), "--variant: 'int2', expected one of mxfp4"),
        (("--model", "qwen3-32b"), "--variant: none, expected one of bf16, fp8"),
        (("--gpu", "T1000"), "--gpu: 'T1000', expected one of "),
        (("--tp", "3"), "--tp: 3, expected a degree that divides the heads of gpt-oss-20b"),
        (("--pp", "99"), "--pp: 99, expected at most the 24 layers"),
        (("--phase", "mixed"), "--phase: 'mixed', expected one of prefill, decode, both"),
        (("--concurrency", "1,x"), "--concurrency: 'x', expected whole numbers above 0"),
        (("--concurrency", "1.5"), "--concurrency: '1.5', expected whole numbers above 0"),
        (("--concurrency", "4,4"), "--concurrency: '4,4', expected each number once"),
        (("--concurrency", ""), "expected at least one load"),
        (("--rate", "-1"), "--rate: '-1', expected numbers above 0"),
        (("--rate", "nan"), "--rate: 'nan', expected numbers above 0"),
        (("--seconds", "0"), "--seconds: 0.0, expected a finite number above 0"),
        (("--timeout", "nan"), "--timeout: nan, expected a finite number above 0"),
        (("--warmup", "-1"), "--warmup: -1.0, expected a finite number of at least 0"),
        (("--source", ""), "--source: '', expected 1 to 200 characters"),
        (("--url", "here:80"), "--url: 'here:80', expected an http or https URL with a host"),
        (("--url", "http://127.0.0.1:9"), "ClientConnectorError, expected a stream for model 'tiny'"),
    ],
)
def test_an_option_that_cannot_be_is_named(tmp_path: Path, changed: tuple[str, str], said: str) -> None:
    told = coral("run", "--url", "http://127.0.0.1:9", *WHAT, *changed, "--out", str(tmp_path / "mine.csv"))
    assert told.exit_code == BAD_INPUT, told.output
    assert said in told.stderr
    assert told.stderr.count("\n") == 1
    assert not (tmp_path / "mine.csv").exists()


def test_no_file_is_overwritten_by_a_run(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("hours of work")
    told = coral("run", "--url", "http://127.0.0.1:9", *WHAT, "--out", str(file))
    assert told.exit_code == BAD_INPUT
    assert "exists, expected a new file" in told.stderr
    assert file.read_text() == "hours of work"


def test_all_that_is_wrong_with_a_file_is_a_line_each(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    page = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text()
    example = page.partition("```csv\n")[2].partition("```")[0]
    file.write_text(example.replace("L40S", "L40-S").replace(",400,26\n", ",nan,26\n"))
    told = coral("import", str(file))
    assert told.exit_code == BAD_INPUT
    lines = told.stderr.splitlines()
    assert [line.partition(": ")[0] for line in lines[1:]] == [f"{file}:2", f"{file}:3"]
    assert lines[0].startswith(f"coral: {file}:2: gpu: 'L40-S', expected one of ")
    assert list(tmp_path.iterdir()) == [file]


def test_a_profile_has_a_name_that_says_what_it_is(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("")
    told = coral("import", str(file), "--out", str(tmp_path / "profile.txt"))
    assert told.exit_code == BAD_INPUT
    assert "expected a name that ends in .yaml or .json" in told.stderr


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    page = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text()
    file.write_text(page.partition("```csv\n")[2].partition("```")[0])
    told = coral("import", str(file), "--out", str(file / "p.yaml"))
    assert told.exit_code == BAD_INPUT
    assert told.stderr.startswith(f"coral: --out: {file}: ")


# --- settings --------------------------------------------------------------------------------------
POINT = Point(
    model="gpt-oss-20b",
    variant="mxfp4",
    gpu="H100",
    tp=1,
    pp=1,
    engine="e",
    phase="both",
    input_tokens=60.0,
    output_tokens=12.0,
    request_throughput=6.0,
    max_concurrency=1.0,
    request_rate=None,
    ttft_ms=30.0,
    tpot_ms=10.0,
    source="made up",
    date="2026-11-29",
)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"gpu": "T1000"}, "points.0.gpu: 'T1000', expected one of "),
        ({"tp": 3}, "points.0.tp: 3, expected a degree that divides the heads of gpt-oss-20b"),
        ({"pp": 25}, "points.0.pp: 25, expected at most the 24 layers of gpt-oss-20b"),
        ({"ttft_ms": 0.03}, "points.0.ttft_ms: 0.03, expected .* is it in seconds"),
        ({"tpot_ms": 0.01}, "points.0.tpot_ms: 0.01, expected .* is it in seconds"),
        ({"tpot_ms": 10_000.0}, "points.0.tpot_ms: 10000, expected .* is it in microseconds"),
        ({"ttft_ms": 1.0}, "points.0.ttft_ms: 1, expected at least a 5th of TPOT, 2"),
        ({"request_throughput": 0.1}, "points.0.tpot_ms: 0.014 requests in flight by throughput x time"),
        ({"model": "gpt-9"}, "points.0.model: gpt-9/mxfp4 is not in the catalog, expected one of "),
    ],
)
def test_a_profile_that_cannot_be_is_refused_when_it_is_read_too(
    catalog: Catalog, tmp_path: Path, changed: dict[str, object], said: str
) -> None:
    file = tmp_path / "p.json"
    file.write_text(Profile(points=(POINT.model_copy(update=changed),)).model_dump_json())
    with pytest.raises(ValueError, match=said) as refused:
        load_profile([file], catalog)
    assert str(file) in str(refused.value)


def test_two_profiles_may_not_have_a_point_in_common(catalog: Catalog, tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file in files:
        file.write_text(Profile(points=(POINT,)).model_dump_json())
    with pytest.raises(ValueError, match="given twice"):
        load_profile(files, catalog)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("points: []\n", ":1: points: none, expected at least one"),
        ("points:\n- gpu: A100\n", ":2: points.0.model: missing"),
        ("points:\n- &a [*a]\n", ":2: body: an alias within what it stands for"),
        ("pionts: []\n", ":1: pionts: unknown key, expected one of points"),
        ("", ":1: body: empty, expected"),
        ("points: {\n", "body: "),
    ],
)
def test_a_file_that_is_no_profile_is_refused_with_line_and_field(
    catalog: Catalog, tmp_path: Path, written: str, said: str
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(written)
    with pytest.raises(FileError, match=str(file)) as refused:
        load_profile([file], catalog)
    assert said in str(refused.value)


def test_a_load_may_be_in_a_profile_once(catalog: Catalog, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    again = POINT.model_copy(update={"date": "2026-11-30"}).model_dump()
    file.write_text(json.dumps({"points": [POINT.model_dump(), again]}))
    with pytest.raises(FileError, match=r"points\.1: given twice, expected each load once"):
        load_profile([file], catalog)


def test_a_time_that_no_factor_reaches_is_not_imported(tmp_path: Path) -> None:
    """A prefill as small as this is overhead alone; a part of that is no measurement of it."""
    row = {"model": "qwen3-0.6b", "variant": "bf16", "gpu": "H100", "tp": 1, "pp": 1, "engine": "e"}
    row |= {"phase": "both", "source": "made up", "date": "2026-11-29", "duration": 100.0, "failed": 0}
    row |= {"completed": 500, "request_rate": "inf", "max_concurrency": 1, "request_throughput": 5.0}
    row |= {"total_input_tokens": 500 * 100, "total_output_tokens": 500 * 100}
    file = tmp_path / "mine.csv"
    file.write_text(write([{**row, "mean_ttft_ms": 0.2, "mean_tpot_ms": 0.6}]))
    told = coral("import", str(file))
    assert told.exit_code == BAD_INPUT
    (line,) = told.stderr.splitlines()
    assert line.startswith(f"coral: {file}:2: mean_ttft_ms: 0.2, expected more than ")
    assert line.endswith("which its fixed parts are modelled to take; is it in seconds?")
    assert list(tmp_path.iterdir()) == [file]


def test_settings_name_profiles(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("profiles: [a.yaml, b.yaml]\n")
    assert load_settings(file).profiles == [Path("a.yaml"), Path("b.yaml")]
    assert load_settings().profiles == []


def test_the_order_of_points_does_not_matter_to_the_digest() -> None:
    other = POINT.model_copy(update={"tp": 2})
    assert Profile(points=(POINT, other)).digest == Profile(points=(other, POINT)).digest
