"""Revisions, the store and its cache, on folders of a few bytes."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from agents import revisions
from agents.engine import EngineError
from agents.files import write_atomically
from agents.revisions import NOTES, known_revision, read_notes
from agents.weights import Store, revision_of

FILES = {"config.json": b"{}", "model-1.safetensors": b"one" * 1000, "model-2.safetensors": b"two" * 1000}


def model(folder: Path, **changed: bytes) -> Path:
    folder.mkdir(parents=True)
    for name, content in (FILES | {name.replace("_", "."): value for name, value in changed.items()}).items():
        (folder / name).write_bytes(content)
    return folder


def stored(store: Path, folder: Path) -> str:
    """Put a model into the store, as an operator does: its notes travel with it."""
    revision = revision_of(folder)
    shutil.copytree(folder, store / revision)
    return revision


# --- revisions -------------------------------------------------------------------------------------
def test_a_revision_names_content_wherever_it_lies(tmp_path: Path) -> None:
    one, two = model(tmp_path / "one"), model(tmp_path / "two")
    assert revision_of(one) == revision_of(two)
    assert len(revision_of(one)) == 64


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "config.json").write_bytes(b"[]"),
        lambda folder: (folder / "config.json").rename(folder / "config2.json"),
        lambda folder: (folder / "more.bin").write_bytes(b""),
        lambda folder: (folder / "model-1.safetensors").unlink(),
    ],
)
def test_any_change_is_another_revision(tmp_path: Path, change: object) -> None:
    folder = model(tmp_path / "m")
    before = revision_of(folder)
    assert callable(change)
    change(folder)
    assert revision_of(folder) != before


def test_what_is_ours_or_hidden_is_no_part_of_it(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    before = revision_of(folder)
    (folder / "coral-reference-auto.json").write_text("{}")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").write_text("")
    assert revision_of(folder) == before


def test_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model(tmp_path / "m")
    before = revision_of(folder)
    monkeypatch.setattr(revisions, "sha256_of", lambda path: pytest.fail(f"{path} was read again"))
    assert revision_of(folder) == before


def test_only_the_changed_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model(tmp_path / "m")
    revision_of(folder)
    (folder / "config.json").write_bytes(b"changed")
    read: list[str] = []
    sha256_of = revisions.sha256_of

    def counted(path: Path) -> str:
        read.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr(revisions, "sha256_of", counted)
    revision_of(folder)
    assert read == ["config.json"]


def test_notes_go_elsewhere_when_the_folder_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, spare = model(tmp_path / "m"), tmp_path / "spare"

    def refusing(path: Path, text: str) -> None:
        if path.parent == folder:
            raise PermissionError(13, "read-only")
        write_atomically(path, text)

    monkeypatch.setattr(revisions, "write_atomically", refusing)
    before = revision_of(folder, spare)
    assert not (folder / NOTES).exists()
    assert known_revision(folder, spare) == before


def test_torn_notes_are_no_notes(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    before = revision_of(folder)
    (folder / NOTES).write_text('{"files": {"config.json": {"si')
    assert known_revision(folder) is None
    assert revision_of(folder) == before


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(FileNotFoundError, match="expected those of a model"):
        revision_of(tmp_path / "m")


# --- finding ---------------------------------------------------------------------------------------
async def test_the_configured_folder_comes_first(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    store = Store({"tiny": folder}, None, tmp_path / "cache")
    assert await store.find("tiny", None) == folder
    assert await store.find("tiny", revision_of(folder)) == folder


async def test_another_revision_is_pulled_if_the_store_has_it(tmp_path: Path) -> None:
    revision = stored(tmp_path / "store", model(tmp_path / "new", config_json=b"new"))
    store = Store({"tiny": model(tmp_path / "old")}, tmp_path / "store", tmp_path / "cache")
    assert await store.find("tiny", revision) is None
    pulled = await store.pull("tiny", revision)
    assert pulled == tmp_path / "cache" / revision
    assert await store.find("tiny", revision) == pulled


@pytest.mark.parametrize(
    ("models", "revision", "why"),
    [
        ({}, None, "checkpoint tiny: no path is configured, and no revision to pull"),
        ({}, "0" * 64, "no path is configured, and .* has no such folder"),
        ({"tiny": "m"}, "0" * 64, "m has revision .*, and .* has no such folder"),
        ({"tiny": "nowhere"}, None, "No such file or directory: .*nowhere"),
    ],
)
async def test_what_a_node_cannot_have(
    tmp_path: Path, models: dict[str, str], revision: str | None, why: str
) -> None:
    model(tmp_path / "m")
    folders = {name: tmp_path / path for name, path in models.items()}
    with pytest.raises(EngineError, match=why) as told:
        await Store(folders, tmp_path / "store", tmp_path / "cache").find("tiny", revision)
    assert told.value.refusal == "unknown_model"


async def test_a_cache_that_was_tampered_with(tmp_path: Path) -> None:
    revision = stored(tmp_path / "store", model(tmp_path / "m"))
    store = Store({}, tmp_path / "store", tmp_path / "cache")
    (await store.pull("tiny", revision) / "config.json").write_bytes(b"other")
    with pytest.raises(EngineError, match="was changed since it was pulled; remove it"):
        await store.find("tiny", revision)


async def test_revisions_for_heartbeats(tmp_path: Path) -> None:
    """Configured ones once they were read, pulled ones at once."""
    folder, other = model(tmp_path / "m"), model(tmp_path / "o", config_json=b"other")
    pulled = stored(tmp_path / "store", other)
    store = Store({"tiny": folder}, tmp_path / "store", tmp_path / "cache")
    assert store.revisions() == ()
    await store.find("tiny", None)
    await store.pull("other", pulled)
    assert store.revisions() == tuple(sorted((revision_of(folder), pulled)))


# --- pulling ---------------------------------------------------------------------------------------
async def test_a_pull_leaves_the_revision_and_nothing_else(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    (folder / "coral-reference-auto.json").write_text("{}")
    revision = stored(tmp_path / "store", folder)
    told: list[str] = []
    store = Store({}, tmp_path / "store", tmp_path / "cache")
    pulled = await store.pull("tiny", revision, progress=told.append)
    assert {path.name for path in pulled.iterdir()} == {*FILES, NOTES, "coral-reference-auto.json"}
    assert known_revision(pulled) == revision
    assert not (tmp_path / "cache" / f"{revision}.draft").exists()
    assert told[0].endswith("of 0.0 GB")


async def test_a_reference_made_later_follows(tmp_path: Path) -> None:
    revision = stored(tmp_path / "store", model(tmp_path / "m"))
    store = Store({}, tmp_path / "store", tmp_path / "cache")
    pulled = await store.pull("tiny", revision)
    (tmp_path / "store" / revision / "coral-reference-auto.json").write_text("{}")
    assert await store.find("tiny", revision) == pulled
    assert (pulled / "coral-reference-auto.json").exists()


async def test_a_corrupt_file_is_named(tmp_path: Path) -> None:
    revision = stored(tmp_path / "store", model(tmp_path / "m"))
    bad = tmp_path / "store" / revision / "model-2.safetensors"
    bad.write_bytes(b"tow" * 1000)
    store = Store({}, tmp_path / "store", tmp_path / "cache")
    with pytest.raises(EngineError, match=f"{bad} has digest") as told:
        await store.pull("tiny", revision)
    assert told.value.refusal == "unknown_model"
    assert not list((tmp_path / "cache").glob("*.draft"))
    bad.write_bytes(FILES["model-2.safetensors"])
    assert (await store.pull("tiny", revision)).name == revision


async def test_a_store_without_notes_is_found_corrupt_all_the_same(tmp_path: Path) -> None:
    revision = stored(tmp_path / "store", model(tmp_path / "m"))
    (tmp_path / "store" / revision / NOTES).unlink()
    (tmp_path / "store" / revision / "config.json").unlink()
    with pytest.raises(EngineError, match=f"has revision .* not what revision {revision} has"):
        await Store({}, tmp_path / "store", tmp_path / "cache").pull("tiny", revision)


async def test_a_pull_goes_on_with_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after its first file and in the midst of its second."""
    revision = stored(tmp_path / "store", model(tmp_path / "m"))
    fsync = os.fsync
    # The first file, its note, the second file.
    monkeypatch.setattr("os.fsync", Failing(fsync, after=3))
    store = Store({}, tmp_path / "store", tmp_path / "cache")
    with pytest.raises(EngineError, match="cannot copy") as told:
        await store.pull("tiny", revision)
    assert told.value.refusal is None
    draft = tmp_path / "cache" / f"{revision}.draft"
    assert list(read_notes(draft).files) == ["config.json"]
    assert (draft / "model-1.safetensors.part").exists()
    kept = (draft / "config.json").stat().st_mtime_ns
    monkeypatch.setattr("os.fsync", fsync)
    pulled = await store.pull("tiny", revision)
    assert (pulled / "config.json").stat().st_mtime_ns == kept
    assert not list(pulled.glob("*.part"))


class Failing:
    """Calls `function`, and fails at the `after`-th call: a disk that gives up."""

    def __init__(self, function: object, after: int) -> None:
        self._function = function
        self._left = after

    def __call__(self, *args: object) -> object:
        self._left -= 1
        if self._left <= 0:
            raise OSError(5, "Input/output error")
        assert callable(self._function)
        return self._function(*args)


async def test_ranks_of_a_node_pull_once(tmp_path: Path) -> None:
    revision = stored(tmp_path / "store", model(tmp_path / "m"))
    told: list[list[str]] = [[], [], []]
    paths = await asyncio.gather(
        *(
            Store({}, tmp_path / "store", tmp_path / "cache").pull("tiny", revision, progress=each.append)
            for each in told
        )
    )
    assert set(paths) == {tmp_path / "cache" / revision}
    assert sum(bool(each) for each in told) == 1


async def test_a_cancelled_pull_lets_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread has ended and its lock is free when the cancellation is through."""
    revision = stored(tmp_path / "store", model(tmp_path / "m"))
    started, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    store = Store({}, tmp_path / "store", tmp_path / "cache")

    def held(_: str) -> None:
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()

    pull = asyncio.create_task(store.pull("tiny", revision, progress=held))
    await started.wait()
    pull.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await pull
    assert (tmp_path / "cache" / f"{revision}.draft").exists()
    assert (await store.pull("tiny", revision)).name == revision


async def test_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revision = stored(tmp_path / "store", model(tmp_path / "m"))
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(EngineError, match=r"has 0\.0 GB free, expected 0\.0 GB for .* and 1\.1 GB to spare"):
        await Store({}, tmp_path / "store", tmp_path / "cache").pull("tiny", revision)
