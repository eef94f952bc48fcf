"""Processes found by tag and ended whole; a watcher that leaves nothing of its tree behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from agents import processes, watcher

HANG_S = 30.0
VARIABLE = "CORAL_TEST_TAG"

TREE = """
import os, subprocess, sys, time
from multiprocessing import resource_tracker, shared_memory
segment = shared_memory.SharedMemory(create=True, size=4096)
if "untracked" in sys.argv:
    resource_tracker.unregister(segment._name, "shared_memory")  # who cleans up
if "closed" in sys.argv:
    segment.close()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("made", segment._name, child.pid, file=sys.stderr, flush=True)
if sys.argv[-1].isdecimal():
    os._exit(int(sys.argv[-1]))
time.sleep(600)
"""
"""A command with a child in a session of its own and a segment of shared memory; ends at once if told how."""


@pytest.fixture
def tag(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    assert processes.end(VARIABLE, {str(tmp_path)}.__contains__)


def wait_for(what: Callable[[], bool]) -> None:
    patience = time.monotonic() + HANG_S
    while not what():
        assert time.monotonic() < patience
        time.sleep(0.02)


def watching(tag: str, log: Path, *command: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        watch = [sys.executable, "-I", "-S", watcher.__file__, "--parent", str(os.getpid()), "--tree", "--"]
        return subprocess.Popen(
            [*watch, sys.executable, "-c", TREE, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            env={**os.environ, VARIABLE: tag},
        )


def what_it_made(log: Path) -> tuple[Path, int]:
    wait_for(lambda: log.exists() and "made" in log.read_text() and log.read_text().endswith("\n"))
    _, segment, child = next(line for line in log.read_text().splitlines() if line.startswith("made")).split()
    return Path("/dev/shm") / segment.lstrip("/"), int(child)  # noqa: S108


def reap(watching: subprocess.Popen[bytes]) -> int:
    for pipe in (watching.stdin, watching.stdout):
        assert pipe is not None
        pipe.close()
    return watching.wait(HANG_S)


# --- the watcher -------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["untracked", "closed"])  # the watcher sees it, or the tracker knows it
def test_a_closed_input_ends_the_whole_tree(tag: str, tmp_path: Path, how: str) -> None:
    watched = watching(tag, tmp_path / "log", how)
    segment, child = what_it_made(tmp_path / "log")
    assert segment.exists()
    assert reap(watched) == 128 + signal.SIGKILL
    assert not psutil.pid_exists(child)
    assert not segment.exists()


def test_a_command_that_ends_by_itself_takes_its_tree_along(tag: str, tmp_path: Path) -> None:
    watched = watching(tag, tmp_path / "log", "3")
    assert watched.wait(HANG_S) == 3
    reap(watched)
    segment, child = what_it_made(tmp_path / "log")
    assert not psutil.pid_exists(child)
    assert not segment.exists()


def test_a_command_killed_takes_its_tree_along(tag: str, tmp_path: Path) -> None:
    watched = watching(tag, tmp_path / "log")
    segment, child = what_it_made(tmp_path / "log")
    assert watched.stdout is not None
    os.kill(int(watched.stdout.readline()), signal.SIGKILL)
    assert watched.wait(HANG_S) == 128 + signal.SIGKILL
    reap(watched)
    assert not psutil.pid_exists(child)
    assert not segment.exists()


def test_a_killed_starter_takes_the_tree_along(tag: str, tmp_path: Path) -> None:
    starter = """
import os, subprocess, sys, time
watch = [sys.executable, "-I", "-S", sys.argv[1], "--parent", str(os.getpid()), "--tree", "--"]
subprocess.Popen(watch + [sys.executable, "-c", sys.argv[2]], stdin=subprocess.PIPE, start_new_session=True)
time.sleep(600)
"""
    with (tmp_path / "log").open("wb") as log:
        started = subprocess.Popen(
            [sys.executable, "-c", starter, watcher.__file__, TREE],
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**os.environ, VARIABLE: tag},
        )
    segment, _ = what_it_made(tmp_path / "log")
    started.kill()
    started.wait(HANG_S)
    wait_for(lambda: not processes.tagged(VARIABLE, {tag}.__contains__))
    assert not segment.exists()


def test_a_starter_that_died_before_it_was_told_anything(tag: str, tmp_path: Path) -> None:
    nobody, told = os.pipe()
    os.close(nobody)
    litter = tmp_path / "litter"
    litter.mkdir()
    watch = [sys.executable, "-I", "-S", watcher.__file__, "--parent", "1", "--tree"]
    command = [*watch, "--litter", str(litter), "--", sys.executable, "-c", TREE]
    environment = {**os.environ, VARIABLE: tag}
    done = subprocess.run(
        command, check=False, stdin=subprocess.PIPE, stdout=told, env=environment, timeout=HANG_S
    )
    os.close(told)
    assert done.returncode == 128 + signal.SIGKILL
    assert not litter.exists()
    assert not processes.tagged(VARIABLE, {tag}.__contains__)


# --- tags and identities -----------------------------------------------------------------------------
def test_a_detached_process_is_known_by_id_and_start(tag: str, tmp_path: Path) -> None:
    sleeper = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)")
    known = processes.detach(sleeper, environment={**os.environ, VARIABLE: tag}, log=tmp_path / "log")
    assert processes.lives(known)
    assert os.getsid(known.pid) == known.pid != os.getsid(0)
    assert not processes.lives(known.model_copy(update={"since_boot_s": known.since_boot_s - 5}))
    wait_for(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text() == "up\n")
    os.kill(known.pid, signal.SIGKILL)
    wait_for(lambda: not processes.lives(known))  # reaped, being our child


def test_what_it_forks_is_found_and_ended_by_tag(tag: str, tmp_path: Path) -> None:
    processes.detach(
        (sys.executable, "-c", TREE, "closed"),
        environment={**os.environ, VARIABLE: tag},
        log=tmp_path / "log",
    )
    segment, child = what_it_made(tmp_path / "log")
    assert child in {process.pid for process in processes.tagged(VARIABLE, {tag}.__contains__)}
    assert not processes.tagged(VARIABLE, {"another"}.__contains__)
    assert processes.end(VARIABLE, {tag}.__contains__)
    assert not processes.tagged(VARIABLE, {tag}.__contains__)
    assert not segment.exists()
