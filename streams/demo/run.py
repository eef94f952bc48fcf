"""`coral demo`: the whole loop on one machine, and what came of it.

Everything is real but the cloud and, unless vLLM is asked for, the engines: Kafka, the Faust workers, the
solver, the node agents' processes and the recorded input. What is shown and summed up is read from the
control log.
"""

import asyncio
import os
import signal
import time
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path

from rich.console import Console

from agents.admin import create_topics
from agents.broker import BrokerUnavailable, start_broker
from agents.kafka_probe import free_ports
from agents.lifespan import ending, on_signals
from schemas import topics
from schemas.settings import Settings, load_settings
from schemas.yamlfile import load_yaml
from streams import log
from streams.demo import summary
from streams.demo.folder import locked, own
from streams.demo.load import LoadPlan, Tally, clients
from streams.demo.parts import (
    PartFailedError,
    Parts,
    lacks_reference,
    make_reference,
    start_feeds,
    start_workers,
)
from streams.demo.script import Script
from streams.demo.view import View
from streams.interrupts import INTERRUPTED, forget
from streams.story import Story

FAILED, NO_BROKER = 1, 2


def run_demo(given: Settings, script: Script, *, seconds: float | None, as_json: bool) -> int:
    """Run until `seconds` passed or a signal ends it (Ctrl-C, a closed terminal), clean up, and sum up.

    Returns:
        The exit code: 0; 1 if a part failed or the replay differs; 2 if no Kafka is to be had; 130 if
        it was stopped before there was anything to sum up.

    Raises:
        BlockingIOError: another demo has the folder.
    """
    console = Console(stderr=as_json, markup=False, emoji=False)
    say = partial(console.print, highlight=False, soft_wrap=True)
    folder = (given.state_dir / "demo").resolve()
    bootstrap = given.kafka.bootstrap_servers if "bootstrap_servers" in given.kafka.model_fields_set else None
    _signals_interrupt()
    try:
        with (
            locked(folder),
            own(folder, before_ending=_ignore_signals),
            start_broker(bootstrap, kafka=given.kafka, say=say) as broker,
        ):
            say(f"Kafka ({broker.kind}) at {broker.bootstrap}; logs in {folder / 'logs'}")
            demo = Demo(script, _settings(given, script, folder, broker.bootstrap), console)
            try:
                return asyncio.run(demo.run(seconds, as_json=as_json))
            finally:
                _ignore_signals()
    except BrokerUnavailable as error:
        say(f"coral: {error}")
        return NO_BROKER
    except PartFailedError as error:
        say(f"coral: {error}")
        return FAILED
    except KeyboardInterrupt:
        forget()
        say("stopped while starting")
        return INTERRUPTED


def _signals_interrupt() -> None:
    """Until there is a loop to handle them; also where a script's `&` had us started with SIGINT ignored."""
    # This handler is the only one that asyncio.run replaces: while it runs, its task is cancelled instead.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in set(ending()) - {signal.SIGINT}:
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


def _ignore_signals() -> None:
    """What is left to do takes a moment, and whoever asks twice wants it done."""
    for number in ending():
        signal.signal(number, signal.SIG_IGN)


def _settings(given: Settings, script: Script, folder: Path, bootstrap: str) -> Settings:
    """The demo's settings on this broker, under a prefix of its own: a given one may have other tenants."""
    kafka = given.kafka.model_copy(update={"bootstrap_servers": bootstrap})
    prefix = f"coral-demo-{os.getpid()}-{int(time.time())}"
    return load_settings(script.settings).model_copy(
        update={"kafka": kafka, "state_dir": folder, "topic_prefix": prefix}
    )


class Demo:
    """One run of the parts, watched, with clients where the script has some."""

    def __init__(self, script: Script, settings: Settings, console: Console) -> None:
        self._script = script
        self._settings = settings
        self._console = console
        self._door = f"127.0.0.1:{free_ports(1)[0]}"
        self._parts = Parts(self._environment(), settings.state_dir / "logs")
        self._story = Story()
        self._tally: Tally | None = None

    def _environment(self) -> dict[str, str]:
        return {
            **self._settings.kafka.environment(),
            **self._script.environment,
            "CORAL_STATE_DIR": str(self._settings.state_dir),
            "CORAL_TOPIC_PREFIX": self._settings.topic_prefix,
            "CORAL_CONFIG": str(self._script.settings),
            "CORAL_ROUTER__PORT": self._door.rpartition(":")[2],
        }

    async def run(self, seconds: float | None, *, as_json: bool) -> int:
        """Play until told to stop; returns the exit code."""
        await create_topics(self._settings)
        began = time.monotonic()
        try:
            if self._script.model is not None and lacks_reference(self._script.model):
                self._console.print("asking vLLM what the model should answer, once ...", highlight=False)
                await make_reference(self._parts, self._script.model)
            start_workers(self._parts, self._script)
            start_feeds(self._parts, self._script)
            async with self._clients():
                await self._watch(seconds)
            # In this order the log is at rest before it is read, and nobody mourns a node that was sent away.
            self._parts.end("feeds", "fold", "control")
            said = await summary.sum_up(self._settings, time.monotonic() - began, self._tally)
        finally:
            self._parts.end()
        summary.show(self._console, said)
        if as_json:
            summary.show_json(said)
        return 0 if said["replay_equal"] else FAILED

    def _clients(self) -> AbstractAsyncContextManager[None]:
        if self._script.load is None:
            return nullcontext()
        self._tally = Tally()
        return clients(load_yaml(LoadPlan, self._script.load), f"http://{self._door}", self._tally)

    async def _watch(self, seconds: float | None) -> None:
        """Follow the log until the time is over or somebody asks to stop."""
        stop, _ = on_signals()
        following = asyncio.create_task(self._follow())
        began = time.monotonic()
        with View(self._console) as view:
            try:
                while not stop.is_set() and (seconds is None or time.monotonic() - began < seconds):
                    with suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), 0.5)
                    self._parts.check()
                    if following.done():
                        following.result()
                    view.show(self._story, self._tally, time.monotonic() - began)
            finally:
                following.cancel()

    async def _follow(self) -> None:
        async for entry in log.tail(self._settings.kafka, self._settings.topic(topics.CONTROL)):
            self._story.follow(entry.record())
