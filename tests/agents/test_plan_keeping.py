"""The last plan on the disk, for those who start without Kafka."""

import logging
from pathlib import Path

import pytest

from agents.plan_keeping import KeptPlan
from schemas.plans import Plan
from tests.agents.making import plan


def read(path: Path) -> list[Plan]:
    taken: list[Plan] = []
    KeptPlan(path, taken.append).read()
    return taken


def test_the_plan_on_the_disk_is_taken_at_once(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert read(path) == []
    path.write_text(plan(3).model_dump_json())
    assert read(path) == [plan(3)]


@pytest.mark.parametrize("broken", ["", "{", '{"fleet": "x"}'])
def test_what_cannot_be_read_is_said_and_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    """It is a copy; Kafka has the plan."""
    path = tmp_path / "plan.json"
    path.write_text(broken)
    with caplog.at_level(logging.WARNING):
        assert read(path) == []
    assert str(path) in caplog.text
