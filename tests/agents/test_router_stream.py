"""What a router hears in a stream, however it is cut into chunks."""

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from agents.router_ask import parse
from agents.router_stream import StreamTap, Usage, usage_of

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TOKENS = [b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % n for n in range(3)]
TRICKY = b'data: {"choices":[{"delta":{"content":"\\"usage\\":{"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4,"total_tokens":11}}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = b"".join([ROLE, *TOKENS, TRICKY, USAGE, DONE])


def listen(chunks: list[bytes], *, strip: bool = True) -> tuple[StreamTap, bytes, int]:
    """The tap, what it let through, and with how many chunks fed the first token was there."""
    first = [0]
    fed = 0
    tap = StreamTap(lambda: first.__setitem__(0, fed), strip=strip)
    out = b""
    for chunk in chunks:
        fed += 1
        out += tap.feed(chunk)
    return tap, out + tap.end(), first[0]


def test_event_by_event() -> None:
    tap, out, first = listen([ROLE, *TOKENS, TRICKY, USAGE, DONE])
    assert out == WHOLE.replace(USAGE, b"")
    assert first == 2, "the event with the role is no token"
    assert tap.usage == Usage(7, 0, 4)
    assert not tap.failed


@given(cuts=st.lists(st.integers(1, len(WHOLE) - 1), max_size=8, unique=True), strip=st.booleans())
def test_however_it_is_cut(cuts: list[int], strip: bool) -> None:
    edges = [0, *sorted(cuts), len(WHOLE)]
    tap, out, first = listen([WHOLE[a:b] for a, b in itertools.pairwise(edges)], strip=strip)
    assert out == (WHOLE.replace(USAGE, b"") if strip else WHOLE)
    assert tap.tokens == 4
    assert first > 0


def test_lines_that_end_in_the_other_way() -> None:
    tap, out, _ = listen([WHOLE.replace(b"\n", b"\r\n")])
    assert out == WHOLE.replace(USAGE, b"")
    assert tap.tokens == 4


def test_without_usage_chunks_are_counted() -> None:
    tap, out, _ = listen([*TOKENS, DONE])
    assert (tap.tokens, tap.usage) == (3, None)
    assert out == b"".join([*TOKENS, DONE])


def test_comments_are_no_tokens() -> None:
    assert listen([b": ping\n\n", *TOKENS])[2] == 2


def test_an_error_is_heard() -> None:
    assert listen([TOKENS[0], b'data: {"error": {"message": "dead"}}\n\n', DONE])[0].failed


def test_an_end_without_a_blank_line_is_passed_on() -> None:
    assert listen([TOKENS[0], b"data: cut"])[1] == TOKENS[0] + b"data: cut"


def test_usage_that_makes_no_sense_is_none() -> None:
    for usage in ('"x"', "null", '{"prompt_tokens": -1}', '{"prompt_tokens": "7"}', "[]"):
        assert usage_of(f'{{"usage": {usage}}}'.encode()) is None
    assert usage_of(b"no json") is None
    cached = {"prompt_tokens": 5, "completion_tokens": None, "prompt_tokens_details": {"cached_tokens": 9}}
    assert usage_of(json.dumps({"usage": cached}).encode()) == Usage(5, 5, 0)


@given(
    raw=st.sampled_from(['{"model":"m","stream":true}', ' {"stream":true,\n"model":"{"}', '{"model":"m"}'])
)
def test_a_stream_is_asked_for_its_usage(raw: str) -> None:
    ask = parse(raw.encode())
    body = json.loads(ask.whole())
    assert body.pop("stream_options", None) == ({"include_usage": True} if ask.stream else None)
    assert body == json.loads(raw)
