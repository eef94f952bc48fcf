"""Where a body of HTTP/1.1 ends among the bytes of a connection (RFC 9112, section 6.3). Pure.

A body that is no HTTP raises ValueError.
"""

from typing import Protocol

LINE_BYTES = 64 * 1024
"""A longer line between chunks is no HTTP."""
_CRLF = b"\r\n"


class Framing(Protocol):
    """Tells a body from what surrounds and follows it."""

    ended: bool

    def feed(self, data: bytes) -> bytes:
        """What of the body is in the next bytes of the connection."""

    def hung_up(self) -> bool:
        """The connection has ended: whether the body has, too."""


class ByLength:
    """So many bytes."""

    def __init__(self, left: int) -> None:
        self.ended = left == 0
        self._left = left

    def feed(self, data: bytes) -> bytes:
        data = data[: self._left]
        self._left -= len(data)
        self.ended = self._left == 0
        return data

    def hung_up(self) -> bool:
        return self.ended


class ToTheEnd:
    """All until the connection ends."""

    def __init__(self) -> None:
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        return data

    def hung_up(self) -> bool:
        self.ended = True
        return True


class ByChunks:
    """Chunk by chunk; their framing and the trailers after them are taken off."""

    def __init__(self) -> None:
        self.ended = False
        self._rest = b""
        self._left = 0
        """Bytes that the present chunk still lacks."""
        self._line = self._size
        """Reads the next line."""
        self._between = True
        """The next line begins a chunk."""

    def feed(self, data: bytes) -> bytes:
        if self._rest:
            data, self._rest = self._rest + data, b""
        elif self._between and (one := _only_chunk(data)):
            return one
        found: list[bytes] = []
        at = 0
        while not self.ended:
            if self._left:
                part = data[at : at + self._left]
                found.append(part)
                at += len(part)
                self._left -= len(part)
                if self._left:
                    break
            end = data.find(_CRLF, at)
            if end < 0:
                self._keep(data[at:])
                break
            self._line(data[at:end])
            at = end + 2
        return found[0] if len(found) == 1 else b"".join(found)

    def hung_up(self) -> bool:
        return self.ended

    def _keep(self, rest: bytes) -> None:
        if len(rest) > LINE_BYTES:
            raise ValueError("a line between chunks has no end")
        self._rest = rest

    def _size(self, line: bytes) -> None:
        self._left = int(line.partition(b";")[0], 16)
        if self._left < 0:
            raise ValueError(f"a chunk of {self._left} bytes")
        self._line = self._after if self._left else self._trailer
        self._between = False

    def _after(self, line: bytes) -> None:
        if line:
            raise ValueError(f"a chunk is followed by {line[:80]!r}")
        self._line = self._size
        self._between = True

    def _trailer(self, line: bytes) -> None:
        self.ended = not line


def _only_chunk(data: bytes) -> bytes:
    """The body's part in one whole chunk, as a token comes mostly; nothing if it is anything else."""
    end = data.find(_CRLF, 0, 8)
    if end > 0 and data.endswith(_CRLF) and len(data) == end + 4 + int(data[:end], 16):
        return data[end + 2 : -2]
    return b""
