"""The guard's side of its folder: takes the agent's orders, tells the agent what is new."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil
from pydantic import ValidationError

from agents.engine import Progress
from agents.guard_files import Folder, Order, Status
from agents.processes import started

log = logging.getLogger(__name__)

MIRROR_S = 0.25
"""Between two looks at the order, and between two statuses: what changes faster is not told each time."""
TOUCH_S = 1.0
REMOVED_S = 5.0


class Mirror:
    """What the agent wants, as events, and what it is told, as one status."""

    def __init__(self, folder: Folder) -> None:
        self.may_pull = asyncio.Event()
        self.drain = asyncio.Event()
        self.stop = asyncio.Event()
        self.removed = asyncio.Event()
        """The folder was: no agent will ever speak to this guard again."""
        self.status = Status(guard=started(psutil.Process()), spec=folder.spec_digest() or "")
        self._folder = folder
        self._order = Order()
        self._written: Status | None = None
        self._touched_s = 0.0
        self._missing_s: float | None = None
        self._troubles: dict[str, str | None] = {}
        """What is tried -> why it fails now."""

    def say(self, **news: Any) -> None:
        """Change these fields of the status."""
        self.status = self.status.model_copy(update=news)

    def tell(self, progress: Progress) -> None:
        """Say what is done while starting."""
        self.say(phase=progress.phase, text=progress.text)

    async def run(self, seen: Callable[[], Mapping[str, Any]]) -> None:
        """Reflect for ever. A disk that is full for a while costs words, not the engine.

        Args:
            seen: fields of the status that change by themselves.
        """
        while True:
            self._try("touch", self._touch)  # first and by itself: it says that we live, whatever else fails
            self._try("order", lambda: self._obey(self._folder.read_order()))
            self.say(**seen())
            self._try("status", self.write)
            await asyncio.sleep(MIRROR_S)

    def _try(self, name: str, work: Callable[[], None]) -> None:
        """Do it, and tell once what stands in the way, until that changes."""
        try:
            work()
            trouble = None
        except (OSError, ValidationError) as error:
            trouble = f"{name}: {error}"
        if trouble != self._troubles.get(name):
            log.warning("the agent is %s", "reached again" if trouble is None else f"not reached: {trouble}")
        self._troubles[name] = trouble

    def _touch(self) -> None:
        now_s = time.monotonic()
        if now_s - self._touched_s <= TOUCH_S:
            return
        try:
            self._folder.touch()
            self._touched_s, self._missing_s = now_s, None
        except FileNotFoundError:
            self._missing_s = now_s if self._missing_s is None else self._missing_s
            if now_s - self._missing_s > REMOVED_S:
                self.removed.set()
            raise

    def write(self) -> None:
        """Tell what is new now.

        Raises:
            OSError: it cannot be written.
        """
        if self.status != self._written:
            self._folder.write_status(self.status)
            self._written = self.status

    def _obey(self, order: Order) -> None:
        if order != self._order:
            log.info("told: %s", order)
            self._order = order
        wanted = ((order.may_pull, self.may_pull), (order.drain, self.drain), (order.stop, self.stop))
        for wish, event in wanted:
            if wish:
                event.set()
        if order.drain and self.status.state == "ready":
            self.say(state="draining")
