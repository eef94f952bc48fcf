"""Every example of the guide to plans runs as it is printed."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_guides_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_from_file_location("allocation_report", ROOT / "scripts" / "allocation_report.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORAL_STATE_DIR", str(tmp_path / "state"))
    ran: list[str] = []

    def run(command: str) -> str:
        ran.append(command)
        printed: str = script.printed(command)
        return printed

    page = script.shown((ROOT / "docs" / "allocation.md").read_text(), tmp_path, run)
    assert [command.split()[1] for command in ran] == ["plan", "plan", "plan", "explain", "plan", "diff"]
    assert {"Plan for core", "Plan for mine"} <= set(page.splitlines())
    assert page.count("Plan for core-full-0\n") == 3
