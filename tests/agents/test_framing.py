"""Bodies, however the network cuts them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.framing import (
    HEAD_BYTES,
    INTERIM,
    LINE_BYTES,
    ByChunks,
    ByLength,
    Framing,
    HeadReader,
    ToTheEnd,
    framing_of,
    read_head,
)

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
    assert framing.overrun
    length = ByLength(2)
    assert length.feed(b"ok too much") == b"ok"
    assert length.ended
    assert length.overrun


@pytest.mark.parametrize(
    ("framing", "wire"), [(ByLength(0), b""), (ByLength(2), b"ok"), (ByChunks(), b"2\r\nok\r\n0\r\n\r\n")]
)
def test_what_comes_later_is_not_the_bodys_either(framing: Framing, wire: bytes) -> None:
    framing.feed(wire)
    assert (framing.ended, framing.overrun) == (True, False)
    assert framing.feed(b"2\r\nok\r\n") == b""
    assert framing.overrun


@pytest.mark.parametrize(
    "wire",
    [
        *(b"x\r\n", b"-5\r\n", b"2\r\nabc\r\n", b"\r\n", b"f" * (LINE_BYTES + 1)),
        *(b"0x5\r\nhello\r\n", b"1_0\r\n0123456789abcdef\r\n", b"+5\r\nhello\r\n", b" 5\r\nhello\r\n"),
        *(b"5\n\r\nhello\r\n", b";a\r\n", b"f" * 40 + b"\r\n"),
    ],
)
def test_what_is_no_chunk_says_so(wire: bytes) -> None:
    with pytest.raises(ValueError, match="chunk"):
        ByChunks().feed(wire)


def test_a_chunk_alone_may_have_extensions() -> None:
    framing = ByChunks()
    assert framing.feed(b"5;a\r\nhello\r\n") == b"hello"
    assert framing.feed(b"5 ;a\r\nworld\r\n") == b"world"


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


# --- heads -----------------------------------------------------------------------------------------
HEAD = b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 5"
INTERIM_HEAD = b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n"


def headed(*fields: bytes, status: bytes = b"200 OK") -> bytes:
    return b"\r\n".join([b"HTTP/1.1 " + status, *fields])


@given(cuts=st.lists(st.integers(1, len(INTERIM_HEAD + HEAD) + 3), unique=True, max_size=5))
def test_a_head_is_found_however_it_is_cut(cuts: list[int]) -> None:
    wire = INTERIM_HEAD + HEAD + b"\r\n\r\n"
    reader = HeadReader()
    *before, last = [reader.feed(wire[a:b]) for a, b in itertools.pairwise([0, *sorted(cuts), len(wire)])]
    assert set(before) <= {None}
    assert last is not None
    head, rest = last
    assert (head.status, dict(head.headers), rest) == (200, {"A": "b", "Content-Length": "5"}, b"")


def test_what_follows_a_head_is_had_with_it() -> None:
    found = HeadReader().feed(HEAD + b"\r\n\r\nhello")
    assert found is not None
    assert found[1] == b"hello"


@pytest.mark.parametrize(
    "wire",
    [
        INTERIM_HEAD * (INTERIM + 1),
        INTERIM_HEAD * 5000,
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        headed(b"A: " + b"x" * HEAD_BYTES) + b"\r\n\r\n",
        headed(b"A: " + b"x" * HEAD_BYTES),
        b"\x15\x03\x01\x00\x02\x02\x16",
        b"HTTP/2",
    ],
    ids=["many interim", "very many", "101", "too long", "no end", "TLS", "HTTP/2"],
)
def test_what_is_no_head_is_not_waited_for(wire: bytes) -> None:
    with pytest.raises(ValueError, match=r"head|interim|upgrade|HTTP"):
        HeadReader().feed(wire)


@pytest.mark.parametrize(
    "head",
    [
        *(
            headed(status=status)
            for status in (b"99", b"099 x", b"600 x", b"99999 x", b"2_00 x", b"-200 x", b"+20 x")
        ),
        *(headed(status=b"200 O" + bad + b"K") for bad in (b"\n", b"\r", b"\0")),
        *(headed(b"A: b" + bad + b"X-Evil: 1") for bad in (b"\n", b"\r", b"\0", b"\x7f")),
        *(headed(b"A" + bad + b"B: c") for bad in (b"\n", b"\r", b"\0", b" ", b"\t", b"\xe9")),
        *(headed(b"Content-Length : 5"), headed(b": b"), headed(b"A: b", b" c"), headed(b"A: b", b" C: d")),
        *(
            headed(b"Content-Length:" + bad)
            for bad in (b"", b"-5", b"+5", b"1_0", b"0x5", b"5, 5", b"9" * 40)
        ),
        *(headed(b"Content-Length: 5", b"content-length: " + other) for other in (b"9", b"", b"05")),
        *(headed(b"Transfer-Encoding: " + bad) for bad in (b"", b"gzip", b"xchunked", b"gzip, chunked")),
        headed(b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked"),
        *(b"HTTP/2.0 200 OK", b"HTTP/1.1  200 OK", b"\r\n" + HEAD, b"", b"SSH-2.0"),
    ],
)
def test_what_is_no_head_says_so(head: bytes) -> None:
    with pytest.raises(ValueError, match=r"header|expected"):
        read_head(head)


def test_equal_lengths_are_one() -> None:
    head = read_head(headed(b"Content-Length: 5", b"content-length:5\t"))
    assert head.headers.getall("Content-Length") == ["5"]


def test_any_bytes_but_control_characters_are_a_value() -> None:
    value = "\t !\xe9~".encode() + b"\xff"
    read = read_head(headed(b"A:" + value)).headers["A"]
    assert read.encode("utf-8", "surrogateescape") == value.strip()


@pytest.mark.parametrize(
    ("method", "head", "kind"),
    [
        ("POST", headed(b"Content-Length: 5"), ByLength),
        ("POST", headed(b"Content-Length: 3", b"Transfer-Encoding: Chunked"), ByChunks),
        ("POST", headed(), ToTheEnd),
    ],
)
def test_a_head_tells_where_its_body_ends(method: str, head: bytes, kind: type[Framing]) -> None:
    assert isinstance(framing_of(read_head(head), method), kind)


def test_some_answers_have_no_body_whatever_they_say() -> None:
    whole = headed(b"Content-Length: 5")
    for method, head in (
        ("HEAD", whole),
        ("POST", whole.replace(b"200", b"204")),
        ("GET", whole.replace(b"200", b"304")),
    ):
        assert framing_of(read_head(head), method).ended


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (headed(), True),
        (headed(b"Connection: keep-alive", b"Connection: Close"), False),
        (headed().replace(b"1.1", b"1.0"), False),
        (headed(b"Connection: Keep-Alive").replace(b"1.1", b"1.0"), True),
    ],
)
def test_a_head_tells_whether_its_connection_stays(head: bytes, kept: bool) -> None:
    assert read_head(head).keeps_alive is kept
