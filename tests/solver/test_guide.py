"""The guide to the solver names every module, and none that is gone."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_module_of_the_solver_has_its_row() -> None:
    page = (ROOT / "docs" / "solver.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+\.py)`", row.split("|")[1])]
    there = {path.name for path in (ROOT / "solver").glob("*.py")} - {"__init__.py"}
    assert sorted(named) == sorted(there)
