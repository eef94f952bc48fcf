"""A guard: a small process for one rank, in a session of its own. It owns the engine and outlives the agent.

Run as `python -m agents.guard FOLDER`; the folder is all it shares with the agent (`agents.guard_files`). Its
life is told by `Guard`: check, gather with the instance's other guards, start the engine, admit it, serve,
drain, end. Laws:

1. The instance is the unit. Whatever ends one rank out of turn (a process of the engine, its guard, a stuck
   engine, a stop by an agent) ends all of them at once, and every guard knows why.
2. Open requests never hang: the door finishes them, or cuts them with an error.
3. An engine ends in order only from the head: no more requests, the head's main process, then the others'.
4. The last word is `ended`, and only once no process of the rank lives, its ports are free and its devices'
   memory is. A guard that is killed takes its engine along (`agents.watcher`); its agent sees to the rest.
"""

import asyncio
import logging
import os
import sys
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import uvloop

from agents import reference
from agents.door import Door
from agents.engine import End, EngineError, Progress
from agents.guard_alarms import (
    Alarm,
    StoppedError,
    on_signals,
    ordered,
    removed,
    signalled,
    unless,
    until,
    within,
)
from agents.guard_engine import EngineProcesses, refusal_of
from agents.guard_files import Folder, GuardSpec
from agents.guard_keys import free_port, port_is_free, read_keys
from agents.guard_mirror import Mirror
from agents.guard_start import FREE_S, Holders, Weights, check_devices, check_engine, device_holders
from agents.instance import Circle
from agents.probe import Probe
from agents.reference import Reference
from agents.vllm import facts, launch

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
SECOND_S = 3.0
"""How long whoever saw a process die may take to say so."""
FLUSH_S = 1.0
"""How long requests that were cut may take to tell their clients."""
BUSY_S = 10.0
"""How long a device may still be held by what ended before."""
PORTS_S = 10.0
VERIFY_S = 300.0
"""The reference check's first request may have to wait for a compilation."""


class Guard:
    """The guard of one rank.

    Args:
        holders: who holds the rank's devices.
    """

    def __init__(self, folder: Folder, spec: GuardSpec, holders: Holders) -> None:
        self._folder = folder
        self._spec = spec
        self._rank = spec.engine
        self._holders = holders
        self._mirror = Mirror(folder)
        self._signal = on_signals()
        self._began_s = time.monotonic()
        self._engine: EngineProcesses | None = None
        self._probe: Probe | None = None
        self._door: Door | None = None
        self._base_url = ""
        self._ports: list[tuple[str, int]] = []
        """Taken by the engine: address and port."""

    # --- the whole life ------------------------------------------------------------------------------
    async def live(self) -> None:
        """Be the guard, to the end."""
        mirroring = asyncio.create_task(self._mirror.run(self._seen))
        end = await self._until_ended()
        await self._settle()
        mirroring.cancel()
        log.info("ended: %s", end.reason or "as it was told")
        nothing = {"phase": None, "text": "", "endpoint": None, "in_flight": 0, "pids": (), "segments": ()}
        self._mirror.say(state="ended", reason=end.reason, refusal=end.refusal, **nothing)
        with suppress(FileNotFoundError):  # its folder was removed
            self._mirror.write()

    async def _until_ended(self) -> End:
        async with AsyncExitStack() as held:
            try:
                await self._together(await held.enter_async_context(self._circle()), held)
            except StoppedError:
                return End()
            except EngineError as error:
                return End(str(error), error.refusal)
            except Exception as error:
                log.exception("the guard failed")
                return End(f"{type(error).__name__}: {error}")
        return End()

    async def _together(self, circle: Circle, held: AsyncExitStack) -> None:
        """All that is done with the other ranks' guards; whatever goes wrong here, they hear it."""
        try:
            model, checked, port = await unless(self._prepare(circle), self._alarms(circle))
            await self._launch(model, port, held)
            await unless(self._come_up(circle, checked), self._alarms(circle))
            await unless(self._until_told(circle), self._alarms(circle))
            await self._end_in_order(circle)
        except Exception as error:
            why = str(error) or "stopped by its agent"
            if self._door is not None:
                self._door.cut(f"the instance ended: {why}")
            await asyncio.gather(circle.abort(f"{self._name}: {why}"), self._kill())
            raise
        await self._kill()

    @property
    def _name(self) -> str:
        return "the head" if self._rank.head else f"stage {self._rank.key.stage}"

    # --- before the engine ---------------------------------------------------------------------------
    def _circle(self) -> Circle:
        return Circle(
            self._rank,
            read_keys(self._spec.keys),
            pick_port=lambda: free_port(self._rank.address),
            silent_after_s=self._spec.pace.silent_after_s,
        )

    async def _prepare(self, circle: Circle) -> tuple[Path, Reference | None, int]:
        """The weights, what to check answers against, and the port where all ranks meet."""
        self._mirror.tell(Progress("loading", "checks the node"))
        await check_engine(self._spec.node, self._rank)
        await check_devices(self._holders, self._rank, BUSY_S)
        weights = Weights(self._spec)
        folder, revision = await weights.get(self._mirror.may_pull, self._mirror.tell)
        self._began_s += weights.queued_s
        self._mirror.say(pull_s=weights.pull_s)
        checked = weights.reference(folder, revision) if self._rank.head else None
        self._mirror.tell(Progress("loading", "waits for the other ranks"))
        port = await circle.gather({**facts(self._spec.node, self._rank), "revision": revision})
        return folder, checked, port

    # --- the engine ----------------------------------------------------------------------------------
    async def _launch(self, model: Path, master_port: int, held: AsyncExitStack) -> None:
        http_port = free_port(LOOPBACK)
        kv_port = free_port(self._rank.address)
        ports = {"http_port": http_port, "master_port": master_port, "kv_port": kv_port}
        command = launch(self._spec.node, self._rank, model, **ports)
        log.info("starts %s", " ".join(command.argv))
        self._mirror.tell(Progress("loading", "starts vLLM"))
        self._engine = await EngineProcesses.start(command, self._folder.tag, self._folder.engine_log)
        if self._rank.head:
            self._ports = [(LOOPBACK, http_port), (self._rank.address, master_port)]
            self._base_url = f"http://{LOOPBACK}:{http_port}"
            self._probe = await held.enter_async_context(Probe(self._base_url))

    async def _come_up(self, circle: Circle, checked: Reference | None) -> None:
        if self._probe is None:
            await circle.told_up()
        else:
            verified = await self._probe.admit(
                self._mirror.tell, lambda url: self._verify(url, checked), log=self._folder.engine_log
            )
            self._door = await Door.open(self._rank.address, self._base_url)
            self._mirror.say(endpoint=self._door.endpoint, verified=verified)
            await circle.tell_up()
        assert self._engine is not None  # noqa: S101  launched
        self._engine.up = True
        self._mirror.say(state="ready", phase=None, text="", start_s=time.monotonic() - self._began_s)

    async def _verify(self, url: str, checked: Reference | None) -> bool:
        if checked is None:
            return False
        model = self._rank.instance.service.model
        answers = await reference.ask(url, model, checked.prompts, timeout_s=VERIFY_S)
        if wrong := reference.compare(checked, answers):
            raise EngineError(wrong)
        return True

    async def _until_told(self, circle: Circle) -> None:
        """Serve until the agent wants the head drained; elsewhere until the head's engine has ended."""
        await (self._mirror.drain.wait() if self._rank.head else circle.told_to_end())

    async def _end_in_order(self, circle: Circle) -> None:
        assert self._engine is not None  # noqa: S101  launched
        pace = self._spec.pace
        self._mirror.say(state="draining")
        if self._probe is not None and self._door is not None:
            emptying = within(
                self._empty(self._door, self._probe), self._rank.instance.drain_deadline_ms / 1000
            )
            if not await unless(emptying, self._alarms(circle)):
                self._door.cut("the drain deadline has passed")
        self._engine.terminate()
        exit_s = pace.head_exit_s if self._rank.head else pace.rank_exit_s
        await unless(within(self._engine.exited(), exit_s), self._calls())
        if self._rank.head:
            await circle.end_others()

    async def _empty(self, door: Door, probe: Probe) -> None:
        await door.drain()
        await probe.quiet(self._spec.pace.quiet_s)

    async def _kill(self) -> None:
        """End what is left of the engine, and close the door behind it."""
        if self._engine is not None:
            while not await self._engine.end():
                log.warning("processes of the engine outlast SIGKILL")
        if self._door is not None:
            door, self._door = self._door, None
            await within(until(lambda: door.in_flight == 0), FLUSH_S)
            await door.close()

    async def _settle(self) -> None:
        """Wait until ports and devices are free; a stranger that takes one is the next start's to name."""
        if not await within(until(lambda: all(port_is_free(*port) for port in self._ports)), PORTS_S):
            log.warning("after the end one of %s is taken", self._ports)
        if self._engine is not None:
            try:
                await check_devices(self._holders, self._rank, FREE_S)
            except EngineError as error:
                log.warning("after the end: %s", error)

    def _alarms(self, circle: Circle) -> list[Alarm]:
        """What ends the instance out of turn."""
        alarms = [*self._calls(), circle.broken(), removed(self._mirror.removed)]
        if self._engine is not None:
            alarms.append(self._lost(self._engine))
        if self._probe is not None and self._door is not None:
            alarms.append(self._stuck(self._probe))
        if self._mirror.status.state == "starting":  # what is not up yet has nothing to drain
            alarms.append(ordered(self._mirror.drain))
        return alarms

    def _calls(self) -> list[Alarm]:
        """All that may still disturb an engine that was told to end: processes and ranks may go now."""
        return [ordered(self._mirror.stop), signalled(self._signal)]

    async def _lost(self, engine: EngineProcesses) -> str:
        why = await engine.lost()
        if self._mirror.status.state == "starting" and (refusal := refusal_of(why)):
            raise EngineError(why, refusal)
        return why

    async def _stuck(self, probe: Probe) -> str:
        why = await probe.stuck(self._spec.node.stuck_after_s)
        await asyncio.sleep(SECOND_S)  # a process that died is the better reason
        return why

    def _seen(self) -> dict[str, Any]:
        """What of the status changes by itself."""
        seen: dict[str, Any] = {"in_flight": 0 if self._door is None else self._door.in_flight}
        if self._engine is not None:
            seen |= {"pids": self._engine.pids, "segments": self._engine.segments}
        return seen


async def _guard(folder: Folder) -> None:
    spec = folder.read_spec()
    await Guard(folder, spec, device_holders(spec.node)).live()
    os._exit(0)  # a thread may still hash weights that nobody wants any more


def main() -> int:
    """Guard the rank of the folder given, unless another guard does."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # whatever the agent had open is none of ours
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    folder = Folder(Path(sys.argv[1]))
    for _ in range(10):  # an agent that looks holds it for a moment
        with folder.held() as held:
            if held:
                uvloop.run(_guard(folder))
                return 0
        time.sleep(0.1)
    log.error("%s: another guard lives here", folder.path)
    return 1


if __name__ == "__main__":
    sys.exit(main())
