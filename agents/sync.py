"""`coral router --sync-to`: keeps another balancer's list of endpoints in step with the plan.

Two kinds of balancer are kept in step:

- one with vllm-router's worker API (checked with 0.1.17; sglang's older router has the same):
  `GET /list_workers`, `POST /add_worker?url=`, which answers once the worker is healthy, and
  `POST /remove_worker?url=`;
- any other, by a file: a JSON list of base URLs that is replaced whole, for whatever reads it again.

Such a balancer knows one model and no phases, so one model's whole instances are told. Its list is compared
with the plan on every plan and every `AGAIN_S`, so one that was restarted is put right.
"""

import asyncio
import json
import logging
import os
from collections.abc import Iterable
from errno import EISDIR
from functools import partial
from pathlib import Path
from typing import Protocol

import aiohttp

from agents.bus import Bus
from agents.files import make_writable, write_atomically
from agents.lifespan import on_signals, until
from agents.plan_keeping import KeptPlan, with_kafka
from agents.urls import http_url
from schemas.plans import Plan
from schemas.settings import KafkaSettings

log = logging.getLogger(__name__)

AGAIN_S = 10.0
ASK_S = 5.0
"""How long a balancer may take to list or remove."""
ADD_S = 60.0
"""How long it may take to find a new worker healthy; then it is asked again."""


class Balancer(Protocol):
    """Whose list is kept in step."""

    async def show(self, urls: frozenset[str]) -> None:
        """Make its list these.

        Raises:
            OSError, aiohttp.ClientError, ValueError: it could not be; it is tried again.
        """


class ListFile:
    """A balancer that reads a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def show(self, urls: frozenset[str]) -> None:
        text = json.dumps(sorted(urls), indent=1) + "\n"
        if not self._path.exists() or self._path.read_text() != text:
            write_atomically(self._path, text)
            log.info("%s: %d endpoints", self._path, len(urls))


class WorkerApi:
    """A balancer with vllm-router's worker API.

    Additions go on in the background: one waits until the worker is healthy, and none must keep a draining
    instance in the list.
    """

    def __init__(self, session: aiohttp.ClientSession, base: str) -> None:
        self._session = session
        self._base = base.rstrip("/")
        self._adding: dict[str, asyncio.Task[None]] = {}

    async def show(self, urls: frozenset[str]) -> None:
        listed = await self.listed()
        for url in urls - listed - self._adding.keys():
            task = self._adding[url] = asyncio.create_task(self._add(url))
            task.add_done_callback(lambda _, url=url: self._adding.pop(url, None))  # type: ignore[misc]
        if not urls & listed and self._adding:
            await asyncio.wait(self._adding.values(), timeout=ASK_S, return_when=asyncio.FIRST_COMPLETED)
        for url in listed - urls:
            await self._change("remove_worker", url, ASK_S)

    async def listed(self) -> frozenset[str]:
        """Its list as it is. Raises as `show` does."""
        timeout = aiohttp.ClientTimeout(total=ASK_S)
        async with self._session.get(f"{self._base}/list_workers", timeout=timeout) as answer:
            answer.raise_for_status()
            body = await answer.json(content_type=None)
        urls = body.get("urls") if isinstance(body, dict) else None
        if not isinstance(urls, list):
            said = f"{self._base}/list_workers: {str(body)[:80]!r}, expected {{'urls': [...]}}"
            raise ValueError(said)  # noqa: TRY004  it is not our types that are wrong
        return frozenset(str(url).rstrip("/") for url in urls)

    async def _add(self, url: str) -> None:
        try:
            await self._change("add_worker", url, ADD_S)
        except (OSError, aiohttp.ClientError) as error:
            log.warning("%s does not take %s yet: %s", self._base, url, _text(error))

    async def _change(self, what: str, url: str, within_s: float) -> None:
        timeout = aiohttp.ClientTimeout(total=within_s)
        async with self._session.post(f"{self._base}/{what}", params={"url": url}, timeout=timeout) as answer:
            answer.raise_for_status()
        log.info("%s: %s %s", self._base, what, url)


def endpoints(plan: Plan, model: str | None, slo_class: str | None) -> frozenset[str]:
    """Base URLs of the whole instances that serve a kind.

    Args:
        model: None where the plan knows one model only.
        slo_class: None for all classes of the model.

    Raises:
        ValueError: the plan has several models, and none was named.
    """
    whole = [i for i in plan.instances if i.role == "serving" and i.endpoint and i.service.phase == "both"]
    models = {i.service.model for i in plan.instances}
    if model is None and len(models) > 1:
        raise ValueError(f"--model: not given, expected one of {sorted(models)}: a balancer knows one model")
    return frozenset(
        f"http://{i.endpoint}"
        for i in whole
        if model in {None, i.service.model} and slo_class in {None, i.service.slo_class}
    )


class InStep:
    """Shows a balancer what the newest plan says, until it has taken it."""

    def __init__(self, balancer: Balancer, model: str | None, slo_class: str | None) -> None:
        self._balancer = balancer
        self._model = model
        self._slo_class = slo_class
        self._plan: Plan | None = None
        self._news = asyncio.Event()

    def take(self, plan: Plan) -> None:
        self._plan = plan
        self._news.set()

    async def keep(self) -> None:
        """Returns never. Without a plan the balancer is left alone."""
        while True:
            self._news.clear()
            if self._plan is not None:
                await self._show(self._plan)
            try:
                await asyncio.wait_for(self._news.wait(), AGAIN_S)
            except TimeoutError:
                continue

    async def _show(self, plan: Plan) -> None:
        try:
            await self._balancer.show(endpoints(plan, self._model, self._slo_class))
        except (OSError, aiohttp.ClientError, ValueError) as error:  # a TimeoutError is an OSError
            log.warning("the balancer is not in step with plan %s: %s", plan.id, _text(error))


def run(
    kafka: KafkaSettings,
    prefix: str,
    state_dir: Path,
    to: str,
    name: str,
    model: str | None = None,
    slo_class: str | None = None,
) -> None:
    """`run_sync`, blocking."""
    asyncio.run(run_sync(kafka, prefix, state_dir, to, name, model, slo_class))


async def run_sync(
    kafka: KafkaSettings,
    prefix: str,
    state_dir: Path,
    to: str,
    name: str,
    model: str | None = None,
    slo_class: str | None = None,
) -> None:
    """Keep a balancer in step until SIGTERM or SIGINT; its list stays as it is then.

    Args:
        state_dir: this process' own folder, for `plan.json`.
        to: base URL of the balancer (http or https), or the path of a file.
        name: of this process, unique in the fleet.
        model: which model's endpoints; None where the fleet serves one.
        slo_class: which class; None for all of the model.
    """
    told, _ = on_signals()
    async with aiohttp.ClientSession() as session:
        balancer: Balancer = WorkerApi(session, to) if is_url(to) else ListFile(Path(to))
        step = InStep(balancer, model, slo_class)
        kept = KeptPlan(state_dir / "plan.json", step.take)
        kept.read()
        bus = partial(Bus, kafka, prefix, f"sync/{name}")
        tasks = [asyncio.create_task(with_kafka(bus, kept.follow)), asyncio.create_task(step.keep())]
        try:
            await until(told, tasks)
        finally:
            await _end(tasks)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def is_url(to: str) -> bool:
    """Whether a balancer is kept in step by its API, and not by a file.

    Raises:
        ValueError: it is a URL, and none that can be asked.
    """
    return "://" in to and bool(http_url(to))


def check_file(path: Path) -> None:
    """See that the list can be written there.

    Raises:
        OSError: it cannot be.
    """
    if path.is_dir():
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
    make_writable(path.parent)


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=ASK_S)
