"""Files that `coral plan` reads: what they may say, and what is told of what they may not."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from schemas.codec import describe
from schemas.faults import FileError
from streams.plan_files import (
    Known,
    read_availability,
    read_demand,
    read_prices,
    read_running,
)

EAST, PHI = "aws/us-east-2", "phi-4-14b"
KNOWN = Known(
    levels=((PHI, "interactive"), (PHI, "batch"), ("qwen3-32b", "interactive")),
    phases=("prefill", "decode"),
    configurations=("1xL4", "1xL40S"),
    regions=(EAST, "gcp/us-central1"),
)
READERS = {
    "demand": read_demand,
    "availability": read_availability,
    "prices": read_prices,
    "running": read_running,
}
PLACE = f"region: {EAST}, configuration: 1xL4"
FAULTS = {
    "demand": [
        ("demand: [{model: gpt-5, requests_per_s: 1}]", "demand.0.model: 'gpt-5', expected one of"),
        (f"demand: [{{model: {PHI}, slo_class: bulk, requests_per_s: 1}}]", "demand.0.slo_class: 'bulk'"),
        (f"demand: [{{model: {PHI}, requests_per_s: -1}}]", "demand.0.requests_per_s"),
        (f"demand: [{{model: {PHI}, requests_per_s: .nan}}]", "demand.0.requests_per_s"),
        (f"demand: [{{model: {PHI}, rates: {{decode: .inf}}}}]", "demand.0.rates.decode"),
        (f"demand: [{{model: {PHI}, rates: {{both: 1}}}}]", "demand.0.rates: 'both', expected one of"),
        (f"demand: [{{model: {PHI}}}]", "expected either requests_per_s or rates"),
        (f"demand: [{{model: {PHI}, requests: 1}}]", "demand.0.requests: unknown key"),
        (
            f"demand: [{{model: {PHI}, requests_per_s: 1}}, {{model: {PHI}, requests_per_s: 2}}]",
            "demand.1: phi-4-14b/interactive is given already in line 1",
        ),
        ("requests: []", "demand: Field required"),
        ("demand: {", "expected"),
    ],
    "availability": [
        (
            f"availability: [{{region: {EAST}, configuration: 3xL4, nodes: 1}}]",
            "availability.0.configuration: '3xL4'",
        ),
        (
            "availability: [{region: aws/mars, configuration: 1xL4, nodes: 1}]",
            "availability.0.region: 'aws/mars'",
        ),
        ("availability: [{region: mars, configuration: 1xL4, nodes: 1}]", "availability.0.region"),
        (f"availability: [{{{PLACE}, nodes: -1}}]", "availability.0.nodes"),
        (f"availability: [{{{PLACE}, nodes: 1.5}}]", "availability.0.nodes"),
        (
            f"availability: [{{{PLACE}, nodes: 1}}, {{{PLACE}, nodes: 2}}]",
            "availability.1: 1xL4 in aws/us-east-2",
        ),
    ],
    "prices": [
        (f"prices: [{{{PLACE}, usd_per_hour: 0}}]", "prices.0: usd_per_hour: 0, expected above 0"),
        (f"prices: [{{{PLACE}, usd_per_hour: -1}}]", "prices.0.usd_per_hour"),
        (f"prices: [{{{PLACE}, usd_per_hour: .nan}}]", "prices.0.usd_per_hour"),
        (f"prices: [{{{PLACE}, usd_per_hour: 1e9}}]", "prices.0.usd_per_hour"),
        (
            f"prices: [{{region: {EAST}, configuration: 1xB200, usd_per_hour: 1}}]",
            "prices.0.configuration: '1xB200'",
        ),
    ],
    "running": [
        (f"running: [{{template: abc, region: {EAST}, count: 0}}]", "running.0.count"),
        (
            f"running: [{{template: abc, region: {EAST}, count: 1, pinned: 2}}]",
            "running.0.pinned: 2, expected",
        ),
        ("running: [{template: abc, region: aws/mars, count: 1}]", "running.0.region: 'aws/mars'"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [pytest.param(kind, text, said, id=text[:60]) for kind, cases in FAULTS.items() for text, said in cases],
)
def test_what_cannot_be_is_named(tmp_path: Path, kind: str, text: str, said: str) -> None:
    path = tmp_path / f"{kind}.yaml"
    path.write_text(text)
    with pytest.raises((ValidationError, FileError)) as raised:
        READERS[kind](path, KNOWN)
    line = describe(raised.value) if isinstance(raised.value, ValidationError) else str(raised.value)
    assert said in line
    assert f"{kind}.yaml:1: " in line or text.endswith("{")  # which ends in the line after


def test_each_fault_of_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "stock.yaml"
    path.write_text(
        "availability:\n"
        f"  - {{{PLACE}, nodes: 1}}\n"
        "  - region: aws/mars\n"
        "    configuration: 3xL4\n"
        "    nodes: 1\n"
        f"  - {{{PLACE}, nodes: 2}}\n"
    )
    with pytest.raises(FileError) as raised:
        read_availability(path, KNOWN)
    lines = str(raised.value).splitlines()
    assert [line.partition("stock.yaml")[2].partition(",")[0] for line in lines] == [
        ":4: availability.1.configuration: '3xL4'",
        ":3: availability.1.region: 'aws/mars'",
        f":6: availability.2: 1xL4 in {EAST}/*/on-demand is given already in line 2",
    ]


def test_what_is_left_out_is_the_usual(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(
        f"demand: [{{model: {PHI}, requests_per_s: 3}}, {{model: qwen3-32b, rates: {{decode: 5}}}}]"
    )
    first, second = read_demand(path, KNOWN).lines
    assert (first.slo_class, first.requests_per_s) == ("interactive", 3)
    assert (second.slo_class, second.rates) == ("interactive", {"decode": 5})
    path.write_text(f"availability: [{{region: {EAST}, configuration: 1xL4, nodes: 2}}]")
    (line,) = read_availability(path, KNOWN).lines
    assert (line.pool.key, line.nodes) == (f"{EAST}/*/on-demand", 2)
    path.write_text("availability: []")
    assert read_availability(path, KNOWN).lines == ()
    path.write_text(f"prices: [{{region: {EAST}, market: reserved, configuration: 1xL4, usd_per_hour: 0}}]")
    (price,) = read_prices(path, KNOWN).lines
    assert price.usd_per_hour == 0


def test_json_will_do_as_well(tmp_path: Path) -> None:
    path = tmp_path / "running.json"
    path.write_text(f'{{"running": [{{"template": "abc", "region": "{EAST}", "count": 2, "pinned": 1}}]}}')
    (line,) = read_running(path, KNOWN).lines
    assert (line.count, line.pinned) == (2, 1)
    path.write_text(f'{{"demand": [{{"model": "{PHI}", "requests_per_s": 1e-07}}]}}')  # as Python writes it
    (demand,) = read_demand(path, KNOWN).lines
    assert demand.requests_per_s == 1e-7
