"""Where the head and the body of an answer end among the bytes of a connection (RFC 9112). Pure.

What is no HTTP raises ValueError. Heads are passed on to clients, so nothing is let through that somebody
behind us could read in another way: a hidden line, or a second opinion of where the body ends.
"""

import re
from functools import lru_cache
from typing import NamedTuple, Protocol

from multidict import CIMultiDict

HEAD_BYTES = 64 * 1024
"""A longer head is no HTTP."""
INTERIM = 16
"""More interim answers before the one that counts are no HTTP."""
LINE_BYTES = 64 * 1024
"""A longer line between chunks is no HTTP."""
_CRLF = b"\r\n"
_HEAD_END = b"\r\n\r\n"
_BEGINS = b"HTTP/1."
_TEXT = r"[^\x00-\x08\x0a-\x1f\x7f]*"
_STATUS = re.compile(rf"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: {_TEXT})?")
_FIELD = re.compile(rf"([!#$%&'*+.^_`|~0-9A-Za-z-]+):({_TEXT})")
_LENGTH = re.compile(r"[0-9]{1,18}")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")


# --- heads -------------------------------------------------------------------------------------------
class Head(NamedTuple):
    """The head of an answer; `length` as it tells it, None without one."""

    status: int
    headers: CIMultiDict[str]
    keeps_alive: bool
    """Whether another request may follow on the connection."""
    chunked: bool
    length: int | None


class HeadReader:
    """Finds the head of an answer; any interim ones before it are passed over."""

    def __init__(self) -> None:
        self._read = bytearray()
        self._interim = 0

    def feed(self, data: bytes) -> tuple[Head, bytes] | None:
        """The head, once it is whole, and what has come after it."""
        seen = max(0, len(self._read) + 1 - len(_HEAD_END))
        self._read += data
        while (end := self._read.find(_HEAD_END, seen)) >= 0:
            if end > HEAD_BYTES:
                break
            head = read_head(bytes(self._read[:end]))
            del self._read[: end + len(_HEAD_END)]
            if head.status >= 200:
                return head, bytes(self._read)
            self._pass_over(head.status)
            seen = 0
        if len(self._read) > HEAD_BYTES:
            raise ValueError(f"a head of more than {HEAD_BYTES} bytes")
        if not _BEGINS.startswith(begun := bytes(self._read[: len(_BEGINS)])):
            raise ValueError(f"{begun!r}, expected HTTP/1")
        return None

    def _pass_over(self, status: int) -> None:
        self._interim += 1
        if self._interim > INTERIM:
            raise ValueError(f"more than {INTERIM} interim answers")
        if status == 101:
            raise ValueError("101: an upgrade that nobody asked for")


def read_head(head: bytes) -> Head:
    """Read a head, without the empty line that ends it."""
    first, *lines = head.decode("utf-8", "surrogateescape").split("\r\n")
    begun = _STATUS.fullmatch(first)
    if begun is None:
        raise ValueError(f"{first[:80]!r}, expected HTTP/1.1 and a status of 100 to 599")
    headers = CIMultiDict(map(_field, lines))
    kept = ",".join(headers.getall("Connection", ())).lower()
    return Head(
        status=int(begun[2]),
        headers=headers,
        keeps_alive="close" not in kept if begun[1] == "1" else "keep-alive" in kept,
        chunked=_is_chunked(headers),
        length=_length(headers),
    )


def _field(line: str) -> tuple[str, str]:
    found = _FIELD.fullmatch(line)
    if found is None:
        raise ValueError(f"header {line[:80]!r}")
    name, value = found.groups()
    return name, value.strip(" \t")


def _is_chunked(headers: CIMultiDict[str]) -> bool:
    codings = headers.getall("Transfer-Encoding", [])
    if codings and [coding.lower() for coding in codings] != ["chunked"]:
        raise ValueError(f"Transfer-Encoding: {str(codings)[:80]}, expected chunked")
    return bool(codings)


def _length(headers: CIMultiDict[str]) -> int | None:
    """The length; where it is told several times, `headers` have it once from now on."""
    told = set(headers.getall("Content-Length", ()))
    if not told:
        return None
    if len(told) > 1 or not _LENGTH.fullmatch(length := told.pop()):
        raise ValueError(f"Content-Length: {headers.getall('Content-Length')}, expected one number")
    headers["Content-Length"] = length
    return int(length)


# --- bodies ------------------------------------------------------------------------------------------


class Framing(Protocol):
    """Tells a body from what surrounds and follows it."""

    ended: bool
    overrun: bool
    """Bytes came that lie behind the body's end."""

    def feed(self, data: bytes) -> bytes:
        """What of the body is in the next bytes of the connection."""

    def hung_up(self) -> bool:
        """The connection has ended: whether the body has, too."""


def framing_of(head: Head, method: str) -> Framing:
    """The framing of the body that follows this head in an answer to `method` (RFC 9112, section 6.3)."""
    if method == "HEAD" or head.status in {204, 304}:
        return ByLength(0)
    if head.chunked:  # whatever it says of a length
        return ByChunks()
    return ToTheEnd() if head.length is None else ByLength(head.length)


class ByLength:
    """So many bytes."""

    def __init__(self, left: int) -> None:
        self.ended = left == 0
        self.overrun = False
        self._left = left

    def feed(self, data: bytes) -> bytes:
        part = data[: self._left]
        self._left -= len(part)
        self.ended = self._left == 0
        self.overrun = len(part) < len(data)
        return part

    def hung_up(self) -> bool:
        return self.ended


class ToTheEnd:
    """All until the connection ends."""

    overrun = False

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
        self.overrun = False
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
        self.overrun = self.ended and at < len(data)
        return found[0] if len(found) == 1 else b"".join(found)

    def hung_up(self) -> bool:
        return self.ended

    def _keep(self, rest: bytes) -> None:
        if len(rest) > LINE_BYTES:
            raise ValueError("a line between chunks has no end")
        self._rest = rest

    def _size(self, line: bytes) -> None:
        self._left = _size_of(line)
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
    if end > 0 and data.endswith(_CRLF) and len(data) == end + 4 + _short_size_of(data[:end]):
        return data[end + 2 : -2]
    return b""


def _size_of(line: bytes) -> int:
    """Of a chunk, whose first line this is."""
    size = _SIZE.fullmatch(line)
    if size is None:
        raise ValueError(f"a chunk of {line[:80]!r} bytes")
    return int(size[1], 16)


_short_size_of = lru_cache(1024)(_size_of)
"""Events of a stream have few sizes. What is remembered must be short: lines may have extensions."""
