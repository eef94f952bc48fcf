"""The timing of the simulated engine: continuous batching over a template's latency table.

One clock ticks for the whole instance, as one step of a pipeline gives every running request one token. So
a step costs one wake-up of the loop, however many streams there are.
"""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from schemas.problems import LatencyTable


def step_ms(table: LatencyTable, batch: int) -> float:
    """Milliseconds of one decode step: linear between the table's points, flat outside of them."""
    at = bisect_left(table.batch, batch)
    if at == 0:
        return table.step_ms[0]
    if at == len(table.batch):
        return table.step_ms[-1]
    low, high = table.batch[at - 1], table.batch[at]
    share = (batch - low) / (high - low)
    return table.step_ms[at - 1] + share * (table.step_ms[at] - table.step_ms[at - 1])


class Steps:
    """Lets at most the table's largest batch run together; further requests wait, as in vLLM."""

    def __init__(self, table: LatencyTable) -> None:
        self._table = table
        self._room = asyncio.Semaphore(table.batch[-1])
        self._running = 0
        self._step: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def request(self, prompt_tokens: int) -> AsyncIterator[None]:
        """A place in the batch; entered once the prompt is prefilled. Prefills do not slow decoding here."""
        async with self._room:
            await asyncio.sleep(prompt_tokens * self._table.prefill_ms_per_token / 1000)
            self._running += 1
            try:
                yield
            finally:
                self._running -= 1

    async def token(self) -> None:
        """Wait for the end of the step that runs, which gives this request its next token."""
        if self._step is None or self._step.done():
            self._step = asyncio.create_task(asyncio.sleep(step_ms(self._table, self._running) / 1000))
        # The step is everybody's: a request that goes away must not cancel it.
        await asyncio.shield(self._step)
