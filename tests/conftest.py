"""What all tests share: one Kafka for the session, names of one's own on it, and skips that may not happen.

| variable | meaning |
| --- | --- |
| CORAL_KAFKA__BOOTSTRAP_SERVERS | use this Kafka instead of starting one |
| CORAL_KAFKA_IMAGE | the image for Docker (default: the official one) |
| CORAL_BROKER | `docker` (default) or `local`: which way to a broker is tried first |
| CORAL_REQUIRE | marks, with commas, whose tests must not be skipped: a skip fails |
"""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path, PurePath, PurePosixPath

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from agents.broker import DEFAULT_CACHE, DEFAULT_IMAGE, Broker, BrokerUnavailable, LocalBroker, start_broker

# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile("coral", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("coral")


def pytest_configure() -> None:
    """What `nohup` or a shell's `&` has us ignore, our children would ignore too, and they are told to end by
    it. What is handled, be it by doing nothing, is theirs to handle anew."""
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture(scope="session", autouse=True)
def reaper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing stays of a run that is interrupted (tests/reaper.py)."""
    argv = [sys.executable, str(Path(__file__).with_name("reaper.py")), str(tmp_path_factory.getbasetemp())]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True):
        yield


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """The session's broker; tests that stop or kill one take `own_broker`."""
    try:
        with start_broker(
            os.environ.get("CORAL_KAFKA__BOOTSTRAP_SERVERS"),
            prefer="local" if os.environ.get("CORAL_BROKER") == "local" else "docker",
            image=os.environ.get("CORAL_KAFKA_IMAGE", DEFAULT_IMAGE),
        ) as started:
            yield started
    except BrokerUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kafka(broker: Broker) -> str:
    """Bootstrap servers of the session's broker."""
    return broker.bootstrap


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[LocalBroker]:
    """A started local broker of the test's own, to stop, kill and start again; its data goes with it."""
    try:
        started = LocalBroker(DEFAULT_CACHE, tmp_path / "kafka")
    except BrokerUnavailable as error:
        pytest.skip(str(error))
    try:
        started.start()
        yield started
    finally:
        started.close()


@pytest.fixture
def topic_prefix() -> str:
    """A prefix for topics and consumer groups that no other test has: the session shares one broker."""
    return f"t{secrets.token_hex(4)}"


# --- several processes ---------------------------------------------------------------------------------
LONGEST_FIRST = ("vllm", "e2e", "chaos", "kafka")
"""Groups and folders whose tests take minutes: begun last, they would have one process wait for the other."""


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """A file stays with one process, for its costly fixtures; so do all that start vLLM, one after another.

    xdist's own `--dist loadgroup` marks the ids of tests, which pytest 9.2 does not let it.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group(PurePosixPath(nodeid.partition("::")[0]))


def _group(path: PurePath) -> str:
    return "vllm" if path.parent.name == "vllm" or path.stem.endswith("_vllm") else path.as_posix()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _ByFile:
    return _ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes
        rank = {name: place for place, name in enumerate(LONGEST_FIRST)}
        items.sort(key=lambda i: rank.get(_group(i.path), rank.get(i.path.parent.name, len(rank))))


def _required() -> set[str]:
    return {mark.strip() for mark in os.environ.get("CORAL_REQUIRE", "").split(",") if mark.strip()}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of a test with a required mark into a failure."""
    report = yield
    marks = _required() & {mark.name for mark in item.iter_markers()}
    if report.skipped and not hasattr(report, "wasxfail") and marks:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, but CORAL_REQUIRE names {', '.join(sorted(marks))}: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A whole module that skips itself cannot be asked for its marks: with any required mark, it fails."""
    report = yield
    if report.skipped and _required():
        report.outcome = "failed"
        report.longrepr = f"module skipped, but CORAL_REQUIRE is set: {report.longrepr}"
    return report
