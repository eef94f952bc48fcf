"""What is logged of a complaint that comes again and again."""

import logging

from agents.quiet import REMEMBERED, Repeats


def record(text: str, at_s: float, level: int = logging.ERROR, name: str = "aiokafka") -> logging.LogRecord:
    made = logging.LogRecord(name, level, __file__, 1, "%s", (text,), None)
    made.created = at_s
    return made


def test_the_same_complaint_is_said_once_a_minute_with_how_often_it_came() -> None:
    repeats = Repeats()
    said = []
    for tenth in range(1_300):
        complaint = record("no node 1", tenth / 10)
        if repeats.filter(complaint):
            said.append((tenth, complaint.getMessage()))
    assert said == [
        (0, "no node 1"),
        (600, "no node 1 (and 599 times more)"),
        (1200, "no node 1 (and 599 times more)"),
    ]


def test_another_text_another_logger_and_mere_information_pass() -> None:
    repeats = Repeats()
    same = [record("a", 0.0), record("b", 0.1), record("a", 0.2, name="faust")]
    assert all(repeats.filter(one) for one in same)
    assert all(repeats.filter(record("plan", 0.3, logging.INFO)) for _ in range(3))
    assert not repeats.filter(record("a", 0.4))


def test_it_remembers_so_many_and_no_more() -> None:
    repeats = Repeats()
    for number in range(REMEMBERED + 1):
        assert repeats.filter(record(f"offset {number}", 0.0))
    assert repeats.filter(record("offset 0", 0.0))  # forgotten
    assert not repeats.filter(record(f"offset {REMEMBERED}", 0.0))
