"""Bodies, however the network cuts them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.framing import LINE_BYTES, ByChunks, ByLength, Framing, ToTheEnd

Parts = list[bytes]
WIRE = b"5\r\nhello\r\n1;name=value\r\n \r\nA\r\n0123456789\r\n0\r\nTrailer: yes\r\n\r\n"
BODY = b"hello 0123456789"


def fed(framing: Framing, wire: bytes, cuts: list[int]) -> bytes:
    edges = [0, *sorted(cuts), len(wire)]
    return b"".join(framing.feed(wire[a:b]) for a, b in itertools.pairwise(edges))


@given(cuts=st.lists(st.integers(1, len(WIRE) - 1), unique=True))
def test_chunks_come_together_however_they_are_cut(cuts: list[int]) -> None:
    framing = ByChunks()
    assert fed(framing, WIRE, cuts) == BODY
    assert framing.ended


@given(parts=st.lists(st.binary(min_size=1, max_size=50), max_size=6), cut=st.integers(0, 400))
def test_any_chunks(parts: Parts, cut: int) -> None:
    wire = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    framing = ByChunks()
    assert fed(framing, wire, [min(cut, len(wire))]) == b"".join(parts)
    assert framing.ended


def test_a_chunk_is_had_as_soon_as_it_is_here() -> None:
    framing = ByChunks()
    assert framing.feed(b"5\r\nhe") == b"he"
    assert framing.feed(b"llo\r") == b"llo"
    assert framing.feed(b"\n3\r\nyou\r\n") == b"you"
    assert not framing.ended
    assert not framing.hung_up(), "it was cut short"


def test_what_follows_the_end_is_not_the_bodys() -> None:
    framing = ByChunks()
    assert framing.feed(b"2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK") == b"ok"
    length = ByLength(2)
    assert length.feed(b"ok too much") == b"ok"
    assert length.ended


@pytest.mark.parametrize("wire", [b"x\r\n", b"-5\r\n", b"2\r\nabc\r\n", b"\r\n", b"f" * (LINE_BYTES + 1)])
def test_what_is_no_chunk_says_so(wire: bytes) -> None:
    with pytest.raises(ValueError, match=r"chunk|invalid literal"):
        ByChunks().feed(wire)


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    framing = ToTheEnd()
    assert framing.feed(b"abc") == b"abc"
    assert not framing.ended
    assert framing.hung_up()
    assert framing.ended


def test_a_body_with_a_length_ends_with_it() -> None:
    assert ByLength(0).ended
    framing = ByLength(3)
    assert framing.feed(b"ab") == b"ab"
    assert not framing.hung_up()
    assert framing.feed(b"c") == b"c"
    assert framing.hung_up()
