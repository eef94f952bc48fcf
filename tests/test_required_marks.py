"""CORAL_REQUIRE: a skip of a required mark is a failure (the hooks of conftest.py, on tests made here)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent

CASES = """
import pytest

@pytest.mark.kafka
def test_skips_itself():
    pytest.skip("no broker")

@pytest.fixture
def nothing():
    pytest.skip("no broker either")

@pytest.mark.kafka
def test_skipped_by_fixture(nothing):
    pass

@pytest.mark.vllm
def test_of_another_mark():
    pytest.skip("no vLLM")
"""
WHOLE_MODULE = 'import pytest\npytest.skip("not here", allow_module_level=True)\n'


def run(folder: Path, content: str, require: str) -> str:
    (folder / "conftest.py").write_text((REPO / "tests" / "conftest.py").read_text())
    (folder / "test_made.py").write_text(content)
    config = "[pytest]\nmarkers =\n    kafka\n    vllm\n"
    (folder / "pytest.ini").write_text(config)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        env=os.environ | {"PYTHONPATH": str(REPO), "CORAL_REQUIRE": require},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def test_skips_are_skips_without_it(tmp_path: Path) -> None:
    assert "3 skipped" in run(tmp_path, CASES, "")


def test_skips_of_required_marks_fail(tmp_path: Path) -> None:
    told = run(tmp_path, CASES, "kafka,chaos")
    assert "skipped, but CORAL_REQUIRE names kafka: Skipped: no broker" in told
    # A test whose fixture skips is reported as an error of its set-up.
    assert "1 failed, 1 skipped, 1 error" in told


@pytest.mark.parametrize(("require", "told"), [("", "1 skipped"), ("kafka", "1 error")])
def test_a_module_that_skips_itself(tmp_path: Path, require: str, told: str) -> None:
    assert told in run(tmp_path, WHOLE_MODULE, require)
