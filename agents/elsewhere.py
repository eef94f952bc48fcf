"""How a door that takes nothing new says so: a marked 503, which routers answer by asking another instance.

Nothing was done for such a request, so it may go elsewhere whatever it is.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

HEADER: Final = "x-coral-elsewhere"
ELSEWHERE: Final = {HEADER: "1", "retry-after": "1"}
STATUS: Final = 503
CODE: Final = "draining"
DRAINING: Final = "this instance is draining; send the request elsewhere"


class InFlight:
    """Counts the requests that a door has accepted and not finished."""

    def __init__(self) -> None:
        self.count = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """A request, from its first to its last byte."""
        self.count += 1
        self._none.clear()
        try:
            yield
        finally:
            self.count -= 1
            if self.count == 0:
                self._none.set()

    async def none(self) -> None:
        """Wait until there is none."""
        await self._none.wait()
