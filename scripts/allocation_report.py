"""Run the examples of docs/allocation.md again.

Its YAML blocks are files, named by their first line; of a block that begins with `$ coral`, what follows is
what the command prints, at the width of the page.

    python scripts/allocation_report.py             # prints the page
    python scripts/allocation_report.py --write     # writes it

Libraries are built in a folder of their own, so it takes a minute.
"""

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from streams.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "allocation.md"
FILE = re.compile(r"^```yaml\n# (\S+\.yaml).*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^```\n\$ (coral .*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WIDTH = 165


def main() -> None:
    page = PAGE.read_text()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"CORAL_STATE_DIR": str(Path(folder) / "state"), "COLUMNS": str(WIDTH)}
        os.chdir(folder)
        page = shown(page, Path(folder), printed)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page)
    else:
        sys.stdout.write(page)


def shown(page: str, folder: Path, run: Callable[[str], str]) -> str:
    """The page with its files written to a folder and its examples run there, in their order."""
    for name, text in FILE.findall(page):
        (folder / name).write_text(text)
    return EXAMPLE.sub(lambda found: f"```\n$ {found[1]}\n{run(found[1])}```", page)


def printed(command: str) -> str:
    """What a command prints, without what pads its lines.

    Raises:
        RuntimeError: it fails.
    """
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    if result.exit_code:
        raise RuntimeError(f"{command}: {result.output}")
    lines = [line.rstrip() for line in result.stdout.strip().splitlines()]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
