"""`coral demo`: the whole loop on one machine, and what came of it.

Everything is real but the engines and the cloud: Kafka, the Faust workers, the solver, the node agents'
processes and the recorded input. What is shown and summed up is read from the control log.
"""

import asyncio
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from rich.console import Console

from agents.admin import create_topics
from agents.broker import BrokerUnavailable, start_broker
from schemas import topics
from schemas.settings import Settings, load_settings
from streams import log, logfile
from streams.audit import replay_from
from streams.demo.parts import LOCAL, SETTINGS, TIME_SCALE, PartFailedError, Parts, start_feeds, start_workers
from streams.demo.view import View
from streams.provisioning import local_cloud
from streams.story import Story

FAILED, NO_BROKER, INTERRUPTED = 1, 2, 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_demo(given: Settings, *, seconds: float | None, as_json: bool) -> int:
    """Run until `seconds` passed, Ctrl-C or SIGTERM, clean up, and print the summary.

    Returns:
        The exit code: 0; 1 if a part failed or the replay differs; 2 if no Kafka is to be had; 130 if
        it was stopped before there was anything to sum up.

    Raises:
        BlockingIOError: another demo has the folder.
    """
    console = Console(stderr=as_json)
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    folder = (given.state_dir / "demo").resolve()
    bootstrap = given.kafka.bootstrap_servers if "bootstrap_servers" in given.kafka.model_fields_set else None
    _both_signals_interrupt()
    try:
        with _locked(folder.with_suffix(".lock")), _own(folder), start_broker(bootstrap, say=say) as broker:
            say(f"Kafka ({broker.kind}) at {broker.bootstrap}; logs in {folder / 'logs'}")
            settings = _settings(given, folder, broker.bootstrap)
            try:
                return asyncio.run(_run(settings, console, seconds, as_json))
            finally:
                _ignore_signals()
    except BrokerUnavailable as error:
        say(f"coral: {error}")
        return NO_BROKER
    except PartFailedError as error:
        say(f"coral: {error}")
        return FAILED
    except KeyboardInterrupt:
        say("stopped while starting")
        return INTERRUPTED


def _both_signals_interrupt() -> None:
    """Until there is a loop to handle them; also where a script's `&` had us started with SIGINT ignored."""
    # This handler is the only one that asyncio.run replaces: while it runs, its task is cancelled instead.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def _ignore_signals() -> None:
    """What is left to do takes a moment, and whoever asks twice wants it done."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Keep other demos out; the kernel lets go when the process dies.

    Raises:
        BlockingIOError: one runs already.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(
                f"{lock}: held by another demo; end it, or set another state_dir"
            ) from error
        yield


@contextmanager
def _own(folder: Path) -> Iterator[None]:
    """The demo's folder, fresh; whatever an earlier demo left running there is ended first."""
    _end_nodes(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        _ignore_signals()
        _end_nodes(folder)


def _end_nodes(folder: Path) -> None:
    if (folder / "local").exists():
        local_cloud(load_settings(SETTINGS, state_dir=folder), LOCAL, TIME_SCALE).destroy_all()


def _settings(given: Settings, folder: Path, bootstrap: str) -> Settings:
    """The demo's settings on this broker, under a prefix of its own: a given one may have other tenants."""
    kafka = given.kafka.model_copy(update={"bootstrap_servers": bootstrap})
    prefix = f"coral-demo-{os.getpid()}-{int(time.time())}"
    return load_settings(SETTINGS).model_copy(
        update={"kafka": kafka, "state_dir": folder, "topic_prefix": prefix}
    )


def _environment(settings: Settings) -> dict[str, str]:
    kafka = {
        f"CORAL_KAFKA__{name.upper()}": str(value)
        for name, value in settings.kafka.model_dump(mode="json", exclude={"partitions"}).items()
        if value is not None
    }
    return {
        **kafka,
        "CORAL_KAFKA__PARTITIONS": json.dumps(settings.kafka.partitions),
        "CORAL_STATE_DIR": str(settings.state_dir),
        "CORAL_TOPIC_PREFIX": settings.topic_prefix,
        "CORAL_CONFIG": str(SETTINGS),  # for the nodes that the local cloud starts
    }


async def _run(settings: Settings, console: Console, seconds: float | None, as_json: bool) -> int:
    await create_topics(settings)
    parts = Parts(_environment(settings), settings.state_dir / "logs")
    story, began = Story(), time.monotonic()
    try:
        start_workers(parts)
        start_feeds(parts)
        with View(console) as view:
            await _watch(settings, parts, story, view, seconds)
        # In this order the log is at rest before it is read, and nobody mourns a node that was sent away.
        parts.end("feeds", "fold", "control")
        passed_s = time.monotonic() - began
        return await _sum_up(settings, console, passed_s, as_json)
    finally:
        parts.end()


async def _watch(settings: Settings, parts: Parts, story: Story, view: View, seconds: float | None) -> None:
    """Follow the log until the time is over or somebody asks to stop."""
    stop = asyncio.Event()
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    following = asyncio.create_task(_follow(settings, story))
    began = time.monotonic()
    try:
        while not stop.is_set() and (seconds is None or time.monotonic() - began < seconds):
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 0.5)
            parts.check()
            if following.done():
                following.result()
            view.show(story, time.monotonic() - began)
    finally:
        following.cancel()


async def _follow(settings: Settings, story: Story) -> None:
    async for entry in log.tail(settings.kafka, settings.topic(topics.CONTROL)):
        story.follow(entry.record())


async def _sum_up(settings: Settings, console: Console, passed_s: float, as_json: bool) -> int:
    """Export the log, tell its story, replay it."""
    entries = [entry async for entry in log.read(settings.kafka, settings.topic(topics.CONTROL))]
    exported = settings.state_dir / "control.jsonl"
    with exported.open("w") as file:
        logfile.write(file, entries)
    story = Story()
    for entry in entries:
        story.follow(entry.record())
    report = await replay_from(settings, None)
    events = [topics.TELEMETRY, topics.AVAILABILITY, topics.PRICES, topics.FLEET]
    summary = {
        "seconds": round(passed_s, 1),
        "events": sum([await log.length(settings.kafka, settings.topic(topic)) for topic in events]),
        **story.summary().model_dump(mode="json"),
        "replay_equal": report.equal,
        "replay_difference": report.difference,
        "log": str(exported),
    }
    _print(console, summary)
    if as_json:
        Console(soft_wrap=True).print(json.dumps(summary), markup=False, highlight=False)
    return 0 if report.equal else FAILED


def _print(console: Console, summary: dict[str, object]) -> None:
    console.rule("summary")
    for name, value in summary.items():
        text = f"{len(value)} changes" if name == "usd_per_hour" and isinstance(value, list) else str(value)
        console.print(f"{name:>20}  {text}", markup=False, highlight=False)
