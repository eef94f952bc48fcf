"""Offsets move strictly in order, whatever is delivered when."""

from hypothesis import given
from hypothesis import strategies as st

from streams.core.fold_offsets import AckPrefix, Cursor


def test_what_was_fetched_before_a_rebalance_is_seen() -> None:
    """faust-streaming/faust#221."""
    cursor = Cursor(5)
    assert cursor.is_seen(4)
    assert not cursor.is_seen(5)
    assert not cursor.missing_before(5)


def test_a_jump_names_what_is_missing() -> None:
    cursor = Cursor(5)
    assert cursor.missing_before(8) == range(5, 8)
    cursor.take(5)
    assert cursor.missing_before(8) == range(6, 8)
    cursor.take(7)
    assert not cursor.missing_before(8)


def test_only_the_prefix_is_acknowledged() -> None:
    """faust-streaming/faust#606: an event that is done behind one that is not, stays."""
    acks = AckPrefix(100)
    for offset, due_ms in ((100, 20), (101, 10), (102, 30), (103, 0)):
        acks.add(offset, due_ms)
    acks.settle(10)
    assert acks.position == 100
    acks.settle(20)
    assert acks.position == 102
    acks.settle(30)
    assert acks.position == 104


def test_offsets_that_the_log_skips_do_not_hold_it_up() -> None:
    acks = AckPrefix(0)
    acks.add(7)
    acks.add(9)
    acks.settle()
    assert acks.position == 10


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.lists(st.integers(0, 9), max_size=9))
def test_memory_is_one_entry_for_each_open_window(dues: list[int], closes: list[int]) -> None:
    """However many events wait; and the position is the first of all events that is not due."""
    acks = AckPrefix(0)
    for offset, due_ms in enumerate(dues):
        acks.add(offset, due_ms)
        assert len(acks) <= 10
    closed_ms = -1
    for closed_ms in sorted(closes):
        acks.settle(closed_ms)
    expected = next((n for n, due_ms in enumerate(dues) if due_ms > closed_ms), len(dues))
    assert acks.position == (expected if closes else 0)
