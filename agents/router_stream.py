"""What a router learns from an answer on its way: that its first token is here, and its usage. Pure.

This runs for every chunk of every stream. So a chunk is searched for a few marks and passed on; only the one
that holds the usage is read as JSON.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pydantic_core import from_json

_END = b"\n\n"
_MARK = b'"usage":'
_USAGE = (b'"usage":{', b'"usage": {')
"""Cannot be a part of a text: there, quotation marks are escaped."""
_NO_CHOICES = (b'"choices":[]', b'"choices": []')
_ERROR = b'data: {"error"'


@dataclass(frozen=True)
class Usage:
    """Tokens of a request, as its engine counted them."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int


def usage_of(body: bytes) -> Usage | None:
    """The usage in a body or event of the OpenAI API; None if there is none or it makes no sense."""
    try:
        usage = from_json(body)["usage"]
        details = usage.get("prompt_tokens_details") or {}
        counts = (
            usage["prompt_tokens"],
            details.get("cached_tokens") or 0,
            usage.get("completion_tokens") or 0,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        return None
    return Usage(counts[0], min(counts[1], counts[0]), counts[2])


class StreamTap:
    """Listens to a stream of events (`agents.proxy.Tap`).

    Args:
        on_first: called once, when the first token is here.
        strip: leave the event with the usage out: the router asked for it, the client did not.
    """

    def __init__(self, on_first: Callable[[], None], *, strip: bool) -> None:
        self.chunks = 0
        self.failed = False
        """The engine ended the stream with an error."""
        self._on_first: Callable[[], None] | None = on_first
        self._strip = strip
        self._usage = b""
        self._part = b""

    @property
    def usage(self) -> Usage | None:
        return usage_of(self._usage) if self._usage else None

    @property
    def tokens(self) -> int:
        """Output tokens: the engine's count, or else the chunks but the last, which says `[DONE]`."""
        usage = self.usage
        return max(0, self.chunks - 1) if usage is None else usage.output_tokens

    def feed(self, chunk: bytes) -> bytes:
        if self._part or not chunk.endswith(_END):
            chunk = self._whole_events(chunk)
        self.chunks += 1
        if self._on_first is not None and _has_token(chunk):
            self._on_first()
            self._on_first = None
        if _MARK in chunk or _ERROR in chunk:
            return self._look(chunk)
        return chunk

    def end(self) -> bytes:
        part, self._part = self._part, b""
        return part

    def _whole_events(self, chunk: bytes) -> bytes:
        """An event that is not all here waits for its rest; readers cannot use the half of one either."""
        data = (self._part + chunk).replace(b"\r\n", b"\n")
        cut = data.rfind(_END)
        cut = 0 if cut < 0 else cut + len(_END)
        self._part = data[cut:]
        return data[:cut]

    def _look(self, chunk: bytes) -> bytes:
        kept = []
        for event in chunk.split(_END)[:-1]:
            self.failed |= event.startswith(_ERROR)
            has_usage = any(mark in event for mark in _USAGE)
            if has_usage:
                self._usage = event.removeprefix(b"data:")
            if not (self._strip and has_usage and any(mark in event for mark in _NO_CHOICES)):
                kept.append(event + _END)
        return b"".join(kept)


def _has_token(chunk: bytes) -> bool:
    """A chat opens with an event that names the role and has no text; a comment has none either."""
    if chunk.count(_END) > 1:
        return True
    return chunk.startswith(b"data:") and not (
        b'"role":' in chunk and (b'"content":""' in chunk or b'"content": ""' in chunk)
    )
