"""Doing something unless an alarm comes first, and other waits of a guard."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from agents.engine import EngineError
from agents.lifespan import ending

T = TypeVar("T")

Alarm = Coroutine[Any, Any, str | None]
"""Waits for what ends the instance, and says why: None if its agent wants it ended."""


class StoppedError(Exception):
    """The agent wants the instance ended now."""


async def unless(work: Coroutine[Any, Any, T], alarms: Iterable[Alarm]) -> T:
    """Do `work`, unless an alarm comes first.

    Raises:
        StoppedError: the agent wants it ended.
        EngineError: why the instance cannot go on; or `work` raised it.
    """
    working = asyncio.create_task(work)
    watching = [asyncio.create_task(alarm) for alarm in alarms]
    try:
        await asyncio.wait([working, *watching], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)  # one event may wake both, and the work knows more about it
        for alarm in watching:
            if alarm.done() and not working.done():
                _raise(alarm.result())
        return await working
    finally:
        for task in (working, *watching):
            task.cancel()
        await asyncio.gather(working, *watching, return_exceptions=True)


def _raise(reason: str | None) -> None:
    raise StoppedError if reason is None else EngineError(reason)


async def ordered(wish: asyncio.Event) -> None:
    """An alarm: the agent's order to end."""
    await wish.wait()


async def removed(folder: asyncio.Event) -> str:
    """An alarm: whoever removes the folder of a guard wants nothing of it any more."""
    await folder.wait()
    return "its folder was removed"


async def signalled(number: asyncio.Future[signal.Signals]) -> str:
    """An alarm: somebody wants this process to end."""
    return f"its guard was told to end by {(await asyncio.shield(number)).name}"


def on_signals() -> asyncio.Future[signal.Signals]:
    """Done with the first signal from now on that tells a process to end."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[signal.Signals] = loop.create_future()

    def tell(number: signal.Signals) -> None:
        if not told.done():
            told.set_result(number)

    for number in ending():
        loop.add_signal_handler(number, tell, number)
    return told


async def within(work: Coroutine[Any, Any, object], seconds: float) -> bool:
    """Whether `work` was done in time; it is cancelled otherwise."""
    with suppress(TimeoutError):
        await asyncio.wait_for(work, seconds)
        return True
    return False


async def until(so: Callable[[], bool], every_s: float = 0.05) -> None:
    """Wait for what nobody tells."""
    while not so():  # noqa: ASYNC110
        await asyncio.sleep(every_s)
