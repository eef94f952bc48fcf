"""Snapshots: exact, verified, and passed over for an older one where they do not count."""

from dataclasses import replace

import pytest

from streams import snapshots
from streams.core.state import State
from streams.core.step import step
from streams.snapshots import Pile, Snapshot, SnapshotError, decode, encode
from tests.streams.logs import entries_of, scripted

ENTRIES = entries_of(scripted().records)
END = ENTRIES[-1].offset


def state_at(offset: int) -> State:
    state = State()
    for entry in ENTRIES[: offset + 1]:
        step(state, entry.record())
    return state


def messages(snapshot: Snapshot) -> list[object]:
    return [*snapshot.chunks, snapshot.manifest]


def pile(*found: Snapshot, lineage: int | None = 1, first: int = 0, last: int = END) -> Pile:
    made = Pile(lineage, first, last)
    for snapshot in found:
        made.add([*snapshot.chunks, snapshot.manifest])
    return made


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "CHUNK_CHARS", 100)


@pytest.mark.parametrize("offset", [0, 10, END])
def test_a_state_comes_back_exactly(offset: int) -> None:
    state = state_at(offset)
    back = decode(encode(state, "1"))
    assert back == state
    assert back.model_dump_json() == state.model_dump_json()


@pytest.mark.parametrize("offset", range(0, END, 7))
def test_folding_on_from_a_snapshot_gives_the_history_of_the_whole(offset: int) -> None:
    state = decode(encode(state_at(offset), "1"))
    for entry in ENTRIES[offset + 1 :]:
        step(state, entry.record())
    assert state == state_at(END)


@pytest.mark.usefixtures("small_chunks")
def test_chunks_come_in_any_order() -> None:
    whole = encode(state_at(END), "1")
    assert whole.manifest.chunks > 3
    assert decode(replace(whole, chunks=whole.chunks[::-1])) == state_at(END)


@pytest.mark.usefixtures("small_chunks")
def test_a_missing_chunk_is_named() -> None:
    whole = encode(state_at(END), "1")
    with pytest.raises(SnapshotError, match=r"chunks \[2\] of"):
        decode(replace(whole, chunks=(*whole.chunks[:2], *whole.chunks[3:])))


@pytest.mark.parametrize(
    "change",
    [{"state": "0" * 64}, {"history": "0" * 64}, {"offset": 3}, {"lineage": 2}],
)
def test_a_wrong_manifest_does_not_count(change: dict[str, object]) -> None:
    whole = encode(state_at(END), "1")
    with pytest.raises(SnapshotError, match="not what its manifest says"):
        decode(replace(whole, manifest=whole.manifest.model_copy(update=change)))


@pytest.mark.parametrize("data", ["", "AAAA", "no base64!"])
def test_damaged_chunks_do_not_count(data: str) -> None:
    whole = encode(state_at(END), "1")
    damaged = whole.chunks[0].model_copy(update={"data": data})
    with pytest.raises(SnapshotError):
        decode(replace(whole, chunks=(damaged, *whole.chunks[1:])))


class TestPick:
    def test_the_newest_or_the_oldest(self) -> None:
        found = pile(*(encode(state_at(offset), "1") for offset in (5, 20, 10)))
        newest, oldest = found.pick(), found.pick(oldest=True)
        assert newest is not None
        assert oldest is not None
        assert (newest.offset, oldest.offset) == (20, 5)

    def test_nothing_there(self) -> None:
        assert pile().pick() is None

    def test_a_damaged_one_is_passed_over(self) -> None:
        good, bad = encode(state_at(5), "1"), encode(state_at(9), "1")
        found = pile(good, replace(bad, manifest=bad.manifest.model_copy(update={"state": "0"}))).pick()
        assert found is not None
        assert found.offset == 5

    def test_another_log_does_not_count(self) -> None:
        assert pile(encode(state_at(5), "1"), lineage=2).pick() is None

    def test_beyond_the_end_does_not_count(self) -> None:
        assert pile(encode(state_at(5), "1"), last=4).pick() is None

    @pytest.mark.parametrize(("first", "counts"), [(6, True), (7, False)])
    def test_it_must_reach_up_to_what_is_kept(self, first: int, counts: bool) -> None:
        assert (pile(encode(state_at(5), "1"), lineage=None, first=first).pick() is not None) is counts
