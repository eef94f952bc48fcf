"""An interrupt that was dealt with does not end the process by a signal."""

import signal
import subprocess
import sys
from pathlib import Path

from streams.interrupts import INTERRUPTED

INTERRUPTED_WHILE_A_TEXT_IS_EVALUATED = """
import sys
from streams import interrupts
try:
    exec("raise KeyboardInterrupt")
except KeyboardInterrupt:
    {then}
sys.exit(interrupts.INTERRUPTED)
"""


def end(folder: Path, then: str) -> int:
    """As a module, which is how the quirk shows."""
    (folder / "interrupted.py").write_text(INTERRUPTED_WHILE_A_TEXT_IS_EVALUATED.format(then=then))
    command = [sys.executable, "-m", "interrupted"]
    return subprocess.run(command, cwd=folder, check=False).returncode


def test_the_exit_code_is_what_was_asked_for(tmp_path: Path) -> None:
    assert end(tmp_path, "pass") == -signal.SIGINT, "CPython has changed: `forget` may go"
    assert end(tmp_path, "interrupts.forget()") == INTERRUPTED
