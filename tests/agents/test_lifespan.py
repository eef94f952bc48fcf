"""Which signals end a process, and how."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from agents.lifespan import ending, interrupted, on_signals, within

HANG_S = 30.0
ALL = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """And none ignored from the start, as a shell has it for what runs behind `&`."""
    before = {number: signal.getsignal(number) for number in ALL}
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ALL)
async def test_each_tells_and_the_second_one_hurries(number: signal.Signals) -> None:
    told, hurry = on_signals()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(told.wait(), HANG_S)
    assert not hurry.is_set()
    os.kill(os.getpid(), number)
    await asyncio.wait_for(hurry.wait(), HANG_S)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
async def test_what_nohup_has_ignored_stays_so(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)
    told, _ = on_signals()
    assert number not in ending()
    assert signal.getsignal(number) is signal.SIG_IGN
    os.kill(os.getpid(), number)
    await within(0.05, told.wait())
    assert not told.is_set()


@pytest.mark.parametrize("number", ALL)
def test_a_task_is_interrupted_once_and_may_clean_up(number: signal.Signals) -> None:
    cleaned = []

    async def work() -> None:
        with interrupted():
            try:
                os.kill(os.getpid(), number)
                await asyncio.sleep(HANG_S)
            finally:
                os.kill(os.getpid(), number)  # whoever asks twice gets no half of it
                await asyncio.sleep(0.05)
                cleaned.append(number)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert cleaned == [number]


def test_a_task_that_somebody_else_cancels_is_only_cancelled() -> None:
    async def work() -> None:
        with interrupted():
            await asyncio.sleep(HANG_S)

    async def cancel() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
