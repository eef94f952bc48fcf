"""Which prompts begin alike, and where such a beginning was last sent. Pure.

An engine keeps the KV cache of prompts it has seen; a prompt that begins like one of them is answered sooner
there. A prompt is cut into blocks where prompts are alike: at the end of each message, and every
`BLOCK_CHARACTERS` within a longer text. The hash of a block covers everything before it, so two prompts share
a hash just where they share a beginning, and the next turn of a conversation shares all of the last one.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

BLOCK_CHARACTERS = 1024
"""About 256 tokens, 16 of vLLM's blocks."""
WORTH_CHARACTERS = 256
"""A shorter beginning is no affinity: many clients say `hi`, and there is little to compute again."""
MOST_BLOCKS = 64
"""Beginnings are told apart up to so many blocks; what follows goes with them."""
REMEMBERED = 200_000
"""Beginnings that a router remembers, some 40 MB; the longest unused is forgotten first."""
PLACES = 8
"""Places of one instance on the ring; few will do, since loads are bounded by weight."""


@dataclass(frozen=True)
class Beginnings:
    """What a prompt has in common with others.

    `hashes` go from short to long; `hashes[i]` covers the part `shares[i]` of the prompt, from 0 to 1.
    """

    hashes: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    conversation: int | None = None
    """Hash of the name that the client gave its conversation."""


def beginnings(service: str, texts: Iterable[str], conversation: str | None = None) -> Beginnings:
    """Cut a prompt.

    Args:
        service: model and SLO class: an instance of another one is no use.
        texts: the messages of a chat with their roles, or the one text of a completion.
        conversation: what the client calls it (OpenAI's `prompt_cache_key`).
    """
    hashes: list[int] = []
    ends: list[int] = []
    state, length = blake2b(service.encode(), digest_size=8), 0
    for text in texts:
        for block in _blocks(text):
            length += len(block)
            if len(hashes) < MOST_BLOCKS:
                state.update(block.encode("utf-8", "surrogatepass"))
                hashes.append(int.from_bytes(state.digest()))
                ends.append(length)
    worth = [(h, end / length) for h, end in zip(hashes, ends, strict=True) if end >= WORTH_CHARACTERS]
    named = None if conversation is None else _hash(f"{service}\0{conversation}")
    return Beginnings(tuple(h for h, _ in worth), tuple(share for _, share in worth), named)


def _blocks(text: str) -> Iterator[str]:
    for start in range(0, len(text), BLOCK_CHARACTERS):
        yield text[start : start + BLOCK_CHARACTERS]


class Memory:
    """Where each beginning was last sent: hash -> the key of an instance."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._owners: OrderedDict[int, str] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._owners)

    def owner(self, beginning: int) -> str | None:
        owner = self._owners.get(beginning)
        if owner is not None:
            self._owners.move_to_end(beginning)
        return owner

    def remember(self, hashes: Iterable[int], owner: str) -> None:
        for beginning in hashes:
            self._owners[beginning] = owner
            self._owners.move_to_end(beginning)
        while len(self._owners) > self._most:
            self._owners.popitem(last=False)


class Ring:
    """Consistent hashing (Karger et al., STOC 1997): every router places a hash alike, and an instance that
    comes or goes moves only what is placed on it."""

    def __init__(self, keys: Sequence[str]) -> None:
        places = sorted((place, index) for index, key in enumerate(keys) for place in _places(key))
        self._places = [place for place, _ in places]
        self._indices = [index for _, index in places]

    def after(self, beginning: int) -> Iterator[int]:
        """Indices of keys in the order in which the ring has them from there; most come more than once."""
        start = bisect_left(self._places, beginning)
        yield from self._indices[start:]
        yield from self._indices[:start]


@lru_cache(maxsize=8192)
def _places(key: str) -> tuple[int, ...]:
    return tuple(_hash(f"{key}#{place}") for place in range(PLACES))


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def texts_of(body: dict[str, Any]) -> Iterator[str]:
    """The texts of a request of the OpenAI API, as far as they are text: a chat's messages, or the prompt."""
    messages = body.get("messages")
    if isinstance(messages, list):
        for message in messages:
            if isinstance(message, dict):
                yield f"\0{message.get('role')}\0{_content(message.get('content'))}"
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        yield prompt
    elif isinstance(prompt, list):
        yield " ".join(map(str, prompt))


def _content(content: object) -> str:
    if isinstance(content, list):
        return "\0".join(str(part.get("text", part)) for part in content if isinstance(part, dict))
    return str(content)
