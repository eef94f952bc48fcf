"""How long a process lives that has no other end: until it is told to, or a part of it fails."""

import asyncio
import signal
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


def ending() -> tuple[signal.Signals, ...]:
    """The signals that tell this process to end, but for those that `nohup` and its like had it ignore.

    A shell has what it starts with `&` ignore SIGINT, and yet that ends it: people mean it.
    """
    lost = (signal.SIGHUP, signal.SIGQUIT)  # by default they end a process as SIGKILL does
    return (
        signal.SIGTERM,
        signal.SIGINT,
        *(number for number in lost if signal.getsignal(number) is not signal.SIG_IGN),
    )


def on_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Set by the first and by the second of these signals (`ending`)."""
    told, hurry = asyncio.Event(), asyncio.Event()

    def tell() -> None:
        (hurry if told.is_set() else told).set()

    for number in ending():
        asyncio.get_running_loop().add_signal_handler(number, tell)
    return told, hurry


@contextmanager
def interrupted() -> Iterator[None]:
    """Let the first of these signals cancel the task inside, which may clean up in peace.

    Raises:
        KeyboardInterrupt: it was so.
    """
    loop, task, told = asyncio.get_running_loop(), asyncio.current_task(), False
    assert task is not None  # noqa: S101  runs as one

    def tell() -> None:
        nonlocal told
        if not told:
            told = True
            task.cancel()

    numbers = ending()
    for number in numbers:
        loop.add_signal_handler(number, tell)
    try:
        yield
    except asyncio.CancelledError:
        if told:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


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
