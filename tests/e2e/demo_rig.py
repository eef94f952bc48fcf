"""`coral demo` as a process, to be watched, told to end and killed."""

import json
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tests.e2e.rig import HANG_S, STATE_DIR, coral, end_all, local_nodes, until


class Demo:
    """A demo of the test's own, with a broker of its own."""

    def __init__(self, folder: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        self.state_dir = folder / "state"
        self._folder, self._options, self._starts = folder, options, 0
        self._env = {**(env or {}), STATE_DIR: str(self.state_dir), "CORAL_BROKER": "local"}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def _out(self) -> Path:
        return self._folder / f"out{self._starts}"

    @property
    def _err(self) -> Path:
        return self._folder / f"err{self._starts}"

    def start(self) -> None:
        self._starts += 1
        self.process = coral("demo", "--json", *self._options, env=self._env, out=self._out, err=self._err)

    def start_as_a_script_does(self) -> None:
        """With `&`: a shell without job control has its background processes ignore SIGINT."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.start()
        finally:
            signal.signal(signal.SIGINT, before)

    def until_it_has_its_folder(self) -> None:
        self.until((self.state_dir / "demo").exists, "its folder")

    def until_it_serves(self, hang_s: float = HANG_S) -> None:
        self.until(lambda: " serving" in self._err.read_text(), "a plan that serves", hang_s)

    def until_it_has_local_nodes(self) -> None:
        self.until(lambda: local_nodes(self.state_dir), "a node of the local cloud")

    def until(self, seen: Callable[[], object], what: str, hang_s: float = HANG_S) -> None:
        """Look on until `seen` holds, as long as the demo runs."""

        def still_seen() -> object:
            assert self.process is not None
            assert self.process.poll() is None, self._err.read_text()
            return seen()

        until(still_seen, what, hang_s)

    def let_run(self, seconds: float) -> None:
        """Let it go on for so long."""
        assert self.process is not None
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
            raise AssertionError(self._err.read_text())

    def hear(self, number: signal.Signals) -> None:
        """Signal it."""
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: signal.Signals) -> int:
        self.hear(number)
        assert self.process is not None
        return self.process.wait(HANG_S)

    def said(self) -> str:
        """What it wrote for people since it was started last."""
        return self._err.read_text()

    def summary(self) -> dict[str, object]:
        said: dict[str, object] = json.loads(self._out.read_text().splitlines()[-1])
        return said

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.end(signal.SIGKILL)
        end_all(self.state_dir)
