"""What must be so before an engine starts: asked of the machine by its guard.

Whatever is not so is refused by name, so that the controller can plan around it.
"""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from agents import inventory, reference
from agents.engine import EngineError, EngineSpec, Progress
from agents.guard_files import GuardSpec
from agents.reference import Reference
from agents.vllm import VllmNode, engine_version
from agents.weights import Store

Holders = Callable[[EngineSpec], str | None]
"""Who holds a device of the rank, in words; None if nobody. Blocks for milliseconds."""
Tell = Callable[[Progress], None]

FREE_S = 60.0
"""How long a device may take to be free once our processes have ended."""
_POLL_S = 0.5


def device_holders(node: VllmNode) -> Holders:
    """Asks NVML; on a node without GPUs nobody ever holds one."""
    if node.platform == "cpu":
        return lambda _: None
    return lambda spec: inventory.busy(spec.rank.device_ids, lambda pid: pid == os.getpid())


async def check_engine(node: VllmNode, spec: EngineSpec) -> None:
    """See that the engine is there, in the version of the node and of the instance.

    Raises:
        EngineError: refusal `engine_missing` or `engine_version`.
    """
    found = await asyncio.to_thread(engine_version, node.command)
    for expected, whose in (
        (node.version, "this node registered"),
        (spec.instance.engine, "the instance has"),
    ):
        if expected is not None and found != expected:
            raise EngineError(f"{node.command} is {found}, {whose} {expected}", "engine_version")


async def check_devices(holders: Holders, spec: EngineSpec, within_s: float) -> None:
    """Wait until nobody holds the rank's devices.

    Raises:
        EngineError: somebody still does when the time is up (refusal `device_busy`).
    """
    until = time.monotonic() + within_s
    while (who := await asyncio.to_thread(holders, spec)) is not None:
        if time.monotonic() > until:
            raise EngineError(who, "device_busy")
        await asyncio.sleep(_POLL_S)


class Weights:
    """The weights of one rank: found, or pulled once the plan grants it."""

    def __init__(self, spec: GuardSpec) -> None:
        self.queued_s = 0.0
        """How long it waited for a pull slot."""
        self.pull_s: float | None = None
        where = spec.weights
        self._store = Store(where.models, where.store, where.cache)
        self._template = spec.engine.template

    async def get(self, may_pull: asyncio.Event, tell: Tell) -> tuple[Path, str]:
        """Their folder and revision.

        Args:
            may_pull: set once there is a pull slot; waited for only if there is something to pull.

        Raises:
            EngineError: refusal `unknown_model`.
        """
        checkpoint, revision = self._template.checkpoint, self._template.revision
        folder = await self._store.find(checkpoint, revision)
        if folder is not None:
            return folder, await self._store.revision(folder)
        assert revision is not None  # noqa: S101  else `find` had refused
        began = time.monotonic()
        tell(Progress("queued", "waits for a pull slot"))
        await may_pull.wait()
        self.queued_s = time.monotonic() - began
        tell(Progress("downloading", f"pulls {checkpoint}"))
        loop = asyncio.get_running_loop()
        folder = await self._store.pull(
            checkpoint,
            revision,
            progress=lambda text: _in(loop, lambda: tell(Progress("downloading", text))),
        )
        self.pull_s = time.monotonic() - began - self.queued_s
        return folder, revision

    def reference(self, folder: Path, revision: str) -> Reference | None:
        """What the head's answers are checked against; None where there is none and none is needed.

        Raises:
            EngineError: there is none that fits, and there must be (refusal `no_reference`).
        """
        try:
            return reference.load(folder, revision, reference.precision(self._template.vllm_args))
        except EngineError:
            if self._template.unverified == "allow":
                return None
            raise


def _in(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(what)
