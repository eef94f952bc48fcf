"""`coral demo` for two minutes: what the README promises is what its summary says."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.events import DemandClosed, NodeReported
from streams import logfile
from tests.e2e.rig import HANG_S, STATE_DIR, ask, coral, end_all, members

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

SECONDS = 120
PROMISED = {
    "events",
    "windows",
    "solves",
    "plans",
    "stages_started",
    "stages_ready",
    "stages_drained",
    "stages_failed",
    "unmet_demand",
    "usd_per_hour",
    "plan_reasons",
    "window_to_plan_ms",
    "replay_equal",
}
LIFE = ["starting", "ready", "draining", "drained"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("demo")
    yield made
    end_all(made)
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def summary(folder: Path) -> dict[str, Any]:
    """The last line of one run's output, its log kept."""
    out, err = folder / "out", folder / "err"
    env = {STATE_DIR: str(folder / "state")}
    process = coral("demo", "--seconds", str(SECONDS), "--json", env=env, out=out, err=err)
    assert process.wait(SECONDS + HANG_S) == 0, err.read_text()[-5000:]
    said: dict[str, Any] = json.loads(out.read_text().splitlines()[-1])
    latency = said["window_to_plan_ms"]
    print(f"window to plan: p50 {latency['p50']} ms, p99 {latency['p99']} ms of {latency['count']}")
    print({name: said[name] for name in sorted(PROMISED - {"usd_per_hour", "unmet_demand"})})
    assert members(folder) == [], "a demo that ended left processes behind"
    return said


@pytest.fixture(scope="module")
def exported(summary: dict[str, Any]) -> Path:
    return Path(summary["log"])


def test_the_summary_says_what_it_promises(summary: dict[str, Any]) -> None:
    assert summary.keys() >= PROMISED
    assert summary["replay_equal"] is True, summary["replay_difference"]
    for name in ("events", "windows", "solves", "plans"):
        assert summary[name] > 0, name
    for name in ("stages_started", "stages_ready", "stages_drained"):
        assert summary[name] >= 1, name
    assert summary["window_to_plan_ms"]["count"] >= 1
    assert len(summary["usd_per_hour"]) >= 2, "the cost never moved"


def test_plans_move_with_demand_prices_and_availability(summary: dict[str, Any]) -> None:
    reasons = summary["plan_reasons"]
    assert reasons.get("demand_up", 0) >= 1, reasons
    assert reasons.get("demand_down", 0) >= 1, reasons
    assert reasons.get("price", 0) + reasons.get("availability", 0) >= 1, reasons


def test_demand_is_met_or_the_shortfall_is_named(summary: dict[str, Any]) -> None:
    for short in summary["unmet_demand"]:
        assert 0 < short["share"] <= 1
        assert short["service"]
        assert short["binding"]


def test_a_stage_lives_from_start_to_drained(exported: Path) -> None:
    seen: dict[tuple[object, ...], list[str]] = {}
    with exported.open() as lines:
        for entry in logfile.read(lines):
            event = entry.record().event
            if isinstance(event, NodeReported):
                for stage in event.report.stages:
                    key = (event.report.node, stage.instance, stage.attempt, stage.stage, stage.rank)
                    states = seen.setdefault(key, [])
                    if stage.state not in states[-1:]:
                        states.append(stage.state)
    assert LIFE in seen.values(), seen


def test_the_exported_log_replays_to_the_same_plans(summary: dict[str, Any], exported: Path) -> None:
    replayed = ask("replay", str(exported), "--json", env={})
    assert replayed.returncode == 0, replayed.stderr
    report = json.loads(replayed.stdout)
    assert report["difference"] is None
    assert report["records"] == summary["records"]
    assert report["published"] == len(_published(exported))
    assert report["digests"] >= report["published"] >= summary["plans"]


def _published(exported: Path) -> list[str]:
    lines = (json.loads(line) for line in exported.read_text().splitlines())
    return [
        json.loads(line["value"])["plan"]
        for line in lines
        if {"name": "ce_type", "value": "coral.Published"} in line["headers"]
    ]


def test_one_changed_byte_is_found(exported: Path, tmp_path: Path) -> None:
    lines = exported.read_text().splitlines()
    at, tampered = next(
        (number, changed) for number, line in enumerate(lines) if (changed := _one_digit_on(line)) != line
    )
    assert sum(a != b for a, b in zip(lines[at], tampered, strict=True)) == 1
    copy = tmp_path / "tampered.jsonl"
    copy.write_text("\n".join([*lines[:at], tampered, *lines[at + 1 :]]) + "\n")
    replayed = ask("replay", str(copy), env={})
    assert replayed.returncode == 1
    named = r"^offset \d+: the history at \d+ was \w+, the replay has \w+$"
    assert re.search(named, replayed.stderr, re.MULTILINE), replayed.stderr


def _one_digit_on(line: str) -> str:
    """The line with the last digit of what a closed window says was offered changed; any other as it is."""
    entry = json.loads(line)
    if {"name": "ce_type", "value": f"coral.{DemandClosed.__name__}"} not in entry["headers"]:
        return line
    return re.sub(r'(\\"offered\\":\d*)(\d)', lambda m: m[1] + str((int(m[2]) + 1) % 10), line, count=1)
