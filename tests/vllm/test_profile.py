"""`coral profile run` on real vLLM: what it measures is whole, imported, and what the model then says."""

import asyncio
import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from pydantic import BaseModel

from agents.kafka_probe import free_ports
from agents.load import Served
from agents.load_endpoint import Target, connect, prepare
from agents.vllm import VllmNode, launch
from schemas.catalog import Architecture, Catalog, Gpu, Model, Variant, load_catalog
from schemas.performance import Efficiencies, load_efficiencies
from solver.correction import compare
from solver.profiles import load_profile
from tests.agents.shapes import specs

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

START_S, HANG_S = 500.0, 300.0
INPUT, OUTPUT = 96, 24


@pytest.fixture(scope="module")
def url(cpu_node: VllmNode, tiny_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One vLLM with the whole tiny model, which the tests share."""
    log = tmp_path_factory.mktemp("profiled") / "vllm.log"
    http, master, kv = free_ports(3)
    (spec,) = specs([4], [("c1", (0,))])
    command = launch(cpu_node, spec, tiny_weights, http_port=http, master_port=master, kv_port=kv)
    with log.open("wb") as out:
        server = subprocess.Popen(
            command.argv,
            env=os.environ | command.environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        began = time.monotonic()
        while not healthy(f"http://127.0.0.1:{http}/health"):
            assert time.monotonic() - began < START_S, f"not healthy; see {log}"
            assert server.poll() is None, f"ended; see {log}"
            time.sleep(0.5)
        yield f"http://127.0.0.1:{http}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def healthy(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, trust_env=False).status_code == httpx.codes.OK
    return False


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A settings file whose catalog knows the tiny model, and this machine as if it were a GPU."""
    cpu = Gpu(
        name="CPU", memory_gb=8, bandwidth_gb_s=50, bf16_tflops=1, link="pcie", link_gb_s=10, source="a guess"
    )
    shape = Architecture(
        layers=4, hidden=64, heads=2, kv_heads=2, head_dim=32, ffn_dim=128, full_attention_layers=4, vocab=512
    )
    variant = Variant(name="f32", checkpoint="tiny", weight_bits=32, gpus=("CPU",))
    tiny = Model(name="tiny", architecture=shape, variants=(variant,), source="agents/tiny_model.py")
    # The layers' own time is next to nothing, so nearly all that is measured is put down to it.
    shipped = load_efficiencies().gpus[0]
    overhead = shipped.overhead.model_copy(update={"step_s": 0.0})
    figures = Efficiencies(gpus=(shipped.model_copy(update={"gpu": "CPU", "overhead": overhead}),))
    given = {
        "catalog": dump(Catalog(gpus=(cpu,), configurations=(), models=(tiny,)), tmp_path / "catalog.yaml"),
        "efficiencies": dump(figures, tmp_path / "efficiencies.yaml"),
    }
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(given))
    return file


def dump(model: BaseModel, file: Path) -> str:
    file.write_text(yaml.safe_dump(model.model_dump(mode="json", exclude_defaults=True)))
    return str(file)


async def coral(settings: Path, *arguments: str) -> str:
    """`coral profile`, in a process of its own; what it says."""
    command = [sys.executable, "-m", "streams.cli", "--config", str(settings), "profile", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(HANG_S):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_prompts_and_answers_are_as_long_as_asked_and_come_token_by_token(url: str) -> None:
    async with connect(None, HANG_S) as session:
        for chat in (False, True):
            ready = await prepare(session, Target(url, "tiny", INPUT, OUTPUT, chat))
            reply = await ready.asking()
            assert isinstance(reply, Served), reply
            assert reply.input_tokens == pytest.approx(INPUT, rel=0.2)
            assert reply.output_tokens == OUTPUT
            assert reply.ttft_s > 0
            assert reply.last_s > reply.first_s


async def test_measured_imported_and_corrected(url: str, settings: Path, tmp_path: Path) -> None:
    file = tmp_path / "tiny.csv"
    what = ("--url", url, "--model", "tiny", "--gpu", "CPU", "--concurrency", "1,4", "--out", str(file))
    lengths = ("--input-tokens", str(INPUT), "--output-tokens", str(OUTPUT))
    said = await coral(settings, "run", *what, *lengths, "--seconds", "5", "--warmup", "1")
    print(f"\n{said}")
    alone, crowd = csv.DictReader(file.read_text().splitlines())
    for row in (alone, crowd):
        assert row["engine"].startswith("vllm-0."), "asked at /version"
        assert row["failed"] == "0"
        assert int(row["total_output_tokens"]) == OUTPUT * int(row["completed"])
    assert float(crowd["output_throughput"]) > float(alone["output_throughput"])

    print(await coral(settings, "import", str(file)))
    catalog = load_catalog(settings.with_name("catalog.yaml"))
    profile = load_profile([file.with_suffix(".profile.yaml")], catalog)
    assert profile is not None
    figures = load_efficiencies(settings.with_name("efficiencies.yaml"))
    (model,) = catalog.models
    compared = compare(catalog, figures, model, model.variants[0], profile.points).points
    assert [(one.what, one.point.max_concurrency) for one in compared] == [
        ("TTFT", 1),
        ("TPOT", 1),
        ("TPOT", 4),
    ]
    for one in compared:  # a CPU is slower than the GPU whose efficiencies it was given
        assert one.factor > 1


async def test_vllms_own_benchmark_is_imported(
    url: str, cpu_node: VllmNode, tiny_weights: Path, settings: Path, tmp_path: Path
) -> None:
    """The command of docs/profiles.md: its result, with what `--metadata` adds, has all columns."""
    names = {"model": "tiny", "variant": "f32", "gpu": "CPU", "tp": "1", "pp": "1"}
    names |= {"engine": "vllm", "phase": "both", "source": "a test"}
    command = [str(cpu_node.command), "bench", "serve", "--base-url", url, "--model", "tiny"]
    command += ["--tokenizer", str(tiny_weights), "--dataset-name", "random", "--ignore-eos"]
    command += ["--random-input-len", str(INPUT), "--random-output-len", str(OUTPUT), "--num-prompts", "40"]
    command += ["--max-concurrency", "2", "--save-result", "--result-filename", str(tmp_path / "c2.json")]
    command += ["--metadata", *(f"{name}={value}" for name, value in names.items())]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=STDOUT, env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    )
    async with asyncio.timeout(HANG_S):
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    result = json.loads((tmp_path / "c2.json").read_text())
    file = tmp_path / "mine.csv"
    with file.open("w", newline="") as out:
        table = csv.DictWriter(out, [name for name in result if not isinstance(result[name], list)])
        table.writeheader()
        table.writerow({name: result[name] for name in table.fieldnames})
    print(await coral(settings, "import", str(file)))
