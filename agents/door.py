"""The instance's `/v1` door at its head's guard: the only way in from other machines.

vLLM listens on loopback, in development mode, where anything can be asked of it. The door shows `/v1/*` and
`/health` of it and nothing else, byte for byte and chunk by chunk. It knows what vLLM does not tell clients:
that the instance drains, or that it has died under an open request.
"""

from typing import Self


class Door:
    """Serves at `endpoint` (host:port) what an engine serves on loopback, until it is closed."""

    endpoint: str

    @classmethod
    async def open(cls, address: str, upstream: str) -> Self:
        """Listen on a free port of `address`.

        Args:
            address: of this node, as routers reach it.
            upstream: the engine's base URL, such as `http://127.0.0.1:41234`.

        Raises:
            OSError: the address is not this machine's.
        """
        raise NotImplementedError

    @property
    def in_flight(self) -> int:
        """Requests accepted and not finished."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Answer newcomers 503 with `x-coral-elsewhere: 1` from now on; return when nothing is in flight.

        The door stays and goes on refusing until it is closed. May be called twice.
        """
        raise NotImplementedError

    def cut(self, reason: str) -> None:
        """End every open request with an error now, and answer newcomers as in `drain`.

        A stream gets an error event and its end, an answer not begun a 502 in OpenAI's shape, an answer
        begun and not streamed a broken connection.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Free the port and every connection; what is still open is cut."""
        raise NotImplementedError
