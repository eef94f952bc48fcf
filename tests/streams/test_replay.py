"""The log leads to the same decisions again, or the first difference is named."""

import io
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.base import Frozen
from schemas.events import Leading, Published
from schemas.plans import Plan
from streams import logfile
from streams.core.effects import Publish
from streams.core.state import State
from streams.core.step import step
from streams.log import Entry
from streams.logfile import LogFileError
from streams.replay import Replay, replay
from tests.streams.logs import entries_of, scripted

ENTRIES = entries_of(scripted().records)


def plans_of(entries: list[Entry]) -> list[Plan]:
    state = State()
    effects = [effect for entry in entries for effect in step(state, entry.record())]
    return [effect.plan for effect in effects if isinstance(effect, Publish)]


def changed(kind: type[Frozen], change: Callable[[dict[str, object]], None], which: int = -1) -> list[Entry]:
    """The log with one record of a kind said differently."""
    entries = list(ENTRIES)
    at = [i for i, entry in enumerate(entries) if isinstance(entry.record().event, kind)][which]
    said = json.loads(entries[at].value or b"")
    change(said)
    old = entries[at]
    entries[at] = Entry(old.offset, old.timestamp_ms, json.dumps(said).encode(), old.headers)
    return entries


def test_the_same_log_gives_the_same_digest_and_plans() -> None:
    report = replay(ENTRIES)
    assert report.equal
    assert report.difference is None
    assert report.records == len(ENTRIES)
    assert (report.leaders, report.malformed) == (2, 1)
    assert report.published > 2
    assert report.decided >= report.published
    assert report.digests == report.leaders + report.published
    assert report.unchecked == 0
    assert replay(ENTRIES).history == report.history


def test_a_digest_of_another_history_is_found() -> None:
    report = replay(changed(Leading, lambda said: said.update(history="0" * 64)))
    assert not report.equal
    assert report.difference is not None
    assert "history at" in report.difference


def test_a_plan_that_was_not_decided_so_is_found() -> None:
    report = replay(changed(Published, lambda said: said.update(digest="f" * 16)))
    assert report.difference is not None
    assert f"was {'f' * 16}" in report.difference


def test_a_record_that_was_altered_shows_at_the_next_digest() -> None:
    entries = list(ENTRIES)
    old = entries[2]
    entries[2] = Entry(old.offset, old.timestamp_ms + 1, old.value, old.headers)
    assert not replay(entries).equal


def test_a_missing_record_is_named() -> None:
    report = replay([entry for entry in ENTRIES if entry.offset not in (5, 6)])
    assert report.difference == "offset 7: offsets 5 to 6 are missing from the log"


def test_a_missing_head_is_named() -> None:
    report = replay(ENTRIES[3:])
    assert report.difference == "offset 3: offsets 0 to 2 are missing from the log"


def test_from_a_snapshot_only_what_follows_is_checked() -> None:
    state = State()
    half = len(ENTRIES) // 2
    for entry in ENTRIES[:half]:
        step(state, entry.record())
    run = Replay(state)
    for entry in ENTRIES[half:]:
        run.follow(entry)
    report = run.report()
    assert report.equal
    assert report.first_offset == half
    assert report.history == replay(ENTRIES).history


class TestPlansOnTheTopic:
    def compared(self, plans: list[Plan], *, complete: bool = True) -> str | None:
        run = Replay()
        for entry in ENTRIES:
            run.follow(entry)
        run.compare(plans, complete=complete)
        return run.report().difference

    def test_are_those_decided(self) -> None:
        plans = plans_of(ENTRIES)
        assert self.compared([*plans, plans[-1]]) is None

    def test_of_another_lineage_or_of_later_are_passed_over(self) -> None:
        plans = plans_of(ENTRIES)
        other = plans[0].model_copy(update={"lineage": 9})
        later = plans[-1].model_copy(update={"sequence": plans[-1].sequence + 1})
        assert self.compared([*plans, other, later]) is None

    def test_altered_is_found(self) -> None:
        plans = plans_of(ENTRIES)
        altered = plans[0].model_copy(update={"at_ms": 1})
        found = self.compared([altered, *plans[1:]])
        assert found is not None
        assert altered.id in found

    def test_lost_is_found_where_all_should_be_there(self) -> None:
        assert self.compared([]) is not None
        assert self.compared([], complete=False) is None


def test_a_file_replays_as_the_log_does() -> None:
    file = io.StringIO()
    assert logfile.write(file, ENTRIES) == len(ENTRIES)
    file.seek(0)
    read = list(logfile.read(file))
    assert read == ENTRIES
    assert replay(read) == replay(ENTRIES)


@settings(max_examples=50, deadline=None)
@given(
    st.builds(
        Entry,
        offset=st.integers(0, 2**60),
        timestamp_ms=st.integers(-1, 2**60),
        value=st.none() | st.binary(),
        headers=st.lists(st.tuples(st.text(), st.binary())).map(tuple),
    )
)
def test_every_byte_survives_the_file(entry: Entry) -> None:
    assert list(logfile.read([logfile.line_of(entry)])) == [entry]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 1: "),
        ("[]", "line 1: "),
        ('{"offset": 1}', "line 1: timestamp_ms is missing"),
        ('{"offset": "1", "timestamp_ms": 0, "value": null, "headers": []}', "'1' is no whole number"),
        ('{"offset": 1, "timestamp_ms": 0, "value": 7, "headers": []}', "value: '7' is no text"),
        ('{"offset": 1, "timestamp_ms": 0, "value_b64": "*", "headers": []}', "line 1: "),
        ('{"offset": 1, "timestamp_ms": 0, "value": "", "headers": [1]}', "line 1: "),
    ],
)
def test_a_line_that_is_no_record_is_named(line: str, told: str) -> None:
    with pytest.raises(LogFileError, match=told.replace("'", ".")):
        list(logfile.read([line]))


def test_offsets_that_go_back_are_refused() -> None:
    lines = [logfile.line_of(entry) for entry in (ENTRIES[1], ENTRIES[0])]
    with pytest.raises(LogFileError, match="line 2: offset 0 comes after 1"):
        list(logfile.read(lines))
