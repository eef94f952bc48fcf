"""How long a process lives that has no other end: until it is told to, or a part of it fails."""

import asyncio
import signal
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any


def on_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Set by the first and by the second SIGTERM or SIGINT."""
    told, hurry = asyncio.Event(), asyncio.Event()

    def tell() -> None:
        (hurry if told.is_set() else told).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, tell)
    return told, hurry


async def until(told: asyncio.Event, tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait for `told`, or for the first task to end; what that raised is raised."""
    waiting = asyncio.create_task(told.wait())
    try:
        await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        waiting.cancel()


async def within(seconds: float, wait: Coroutine[Any, Any, object]) -> None:
    """Wait, but not longer than that."""
    with suppress(TimeoutError):
        await asyncio.wait_for(wait, seconds)
