"""`coral scrape`: telemetry from vLLM's own metrics, for fleets whose requests come by another router.

Every engine is a source of its own: one that does not answer is missing from then on, not zero, and the
others go on. So is one that answers for the first time, whose counters say nothing yet, and one that was
silent for longer than `LONGEST_S`. What nothing serves cannot be seen to be asked for; only a router can.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp

from agents.bus import Bus
from agents.lifespan import on_signals, until
from agents.plan_keeping import KeptPlan, with_kafka
from agents.router_telemetry import Outbox, next_second_s
from agents.urls import http_url
from agents.vllm_metrics import Differences, NoVllm, Reading, merged, read
from schemas.catalog import Phase
from schemas.plans import Plan
from schemas.settings import KafkaSettings
from schemas.telemetry import TelemetrySample

log = logging.getLogger(__name__)

ANSWER_S = 0.9
"""How long an engine may take to answer: less than the second until it is asked again."""
LONGEST_S = 5.0
FAREWELL_S = 2.0


@dataclass(frozen=True)
class Target:
    """An engine whose metrics are read."""

    name: str
    url: str
    slo_class: str
    model: str | None = None
    """What it serves; None takes what it says, each model by itself."""
    phase: Phase = "both"


class Engine:
    """One target, and what was read from it last."""

    def __init__(self, target: Target, source: str) -> None:
        self.target = target
        self._source = source
        self._differences: dict[str, Differences] = {}
        self._read_ms: int | None = None

    def samples(self, readings: Mapping[str, Reading], now_ms: int) -> list[TelemetrySample]:
        """What happened since the last reading, by model; nothing if that was too long ago."""
        target, since_ms, self._read_ms = self.target, self._read_ms, now_ms
        known = since_ms is not None and 0 < now_ms - since_ms <= 1000 * LONGEST_S
        if not known:
            self._differences = {}
        models = dict(readings) if target.model is None else {target.model: merged(readings)}
        made = []
        for model, reading in models.items():
            fields = self._differences.setdefault(model, Differences(target.phase)).to(reading)
            if fields is not None and since_ms is not None:
                made.append(
                    TelemetrySample(
                        source=self._source,
                        model=model,
                        slo_class=target.slo_class,
                        at_ms=since_ms,
                        interval_ms=now_ms - since_ms,
                        **fields,
                    )
                )
        return made


class Scraper:
    """Reads all targets, once a second, into an outbox.

    Args:
        name: first part of every source's name.
    """

    def __init__(self, name: str, session: aiohttp.ClientSession) -> None:
        self.outbox = Outbox()
        self._name = name
        self._session = session
        self._engines: dict[Target, Engine] = {}

    def set(self, targets: Iterable[Target]) -> None:
        """Read these from now on; what is known of those that stay is kept."""
        self._engines = {
            target: self._engines.get(target) or Engine(target, f"{self._name}.{target.name}")
            for target in targets
        }

    def take(self, plan: Plan) -> None:
        """Read what serves or finishes requests by this plan."""
        self.set(
            Target(
                name=f"{instance.id}.{instance.attempt}",
                url=f"http://{instance.endpoint}/metrics",
                slo_class=instance.service.slo_class,
                model=instance.service.model,
                phase=instance.service.phase,
            )
            for instance in plan.instances
            if instance.endpoint is not None
        )

    async def run(self) -> None:
        """Returns never."""
        while True:
            await asyncio.sleep(next_second_s(time.time()))
            await self.scrape()

    async def scrape(self) -> None:
        """Read each of them once."""
        await asyncio.gather(*(self._scrape(engine) for engine in self._engines.values()))

    async def _scrape(self, engine: Engine) -> None:
        url = engine.target.url
        try:
            async with self._session.get(url, timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as answer:
                answer.raise_for_status()
                readings = read(await answer.text())
        except (aiohttp.ClientError, OSError, NoVllm) as error:  # a TimeoutError is an OSError
            log.warning("%s: %s", url, str(error) or type(error).__name__)
            return
        now_ms = time.time_ns() // 1_000_000
        self.outbox.put(engine.samples(readings, now_ms), now_ms)


def targets_of(urls: Sequence[str], slo_class: str) -> tuple[Target, ...]:
    """Targets by the addresses of their metrics: host:port, a base URL, or the whole URL.

    Raises:
        ValueError: an address is none; it is named.
    """
    return tuple(_target(url, slo_class) for url in urls)


def _target(given: str, slo_class: str) -> Target:
    whole = given if "://" in given else f"http://{given}"
    whole = whole if whole.endswith("/metrics") else f"{whole.rstrip('/')}/metrics"
    try:
        where = http_url(whole).netloc.rpartition("@")[2]
    except ValueError as error:
        raise ValueError(f"{given!r}, expected an http or https URL with a host, or host:port") from error
    return Target(name=where, url=whole, slo_class=slo_class)


def run(
    kafka: KafkaSettings,
    prefix: str,
    state_dir: Path,
    name: str,
    targets: Sequence[Target] = (),
) -> None:
    """`run_scrape`, blocking."""
    asyncio.run(run_scrape(kafka, prefix, state_dir, name, targets))


async def run_scrape(
    kafka: KafkaSettings,
    prefix: str,
    state_dir: Path,
    name: str,
    targets: Sequence[Target] = (),
) -> None:
    """Scrape until SIGTERM or SIGINT.

    Args:
        state_dir: this process' own folder, for `plan.json`.
        name: names its sources; no two scrapers have the same.
        targets: what to read (`targets_of`); none means the instances of the plan.
    """
    told, _ = on_signals()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        scraper = Scraper(name, session)
        scraper.set(targets)
        jobs = [scraper.outbox.send]
        if not targets:
            kept = KeptPlan(state_dir / "plan.json", scraper.take)
            kept.read()
            jobs.append(kept.follow)
        bus = partial(Bus, kafka, prefix, f"scrape/{name}")
        tasks = [asyncio.create_task(with_kafka(bus, *jobs)), asyncio.create_task(scraper.run())]
        try:
            await until(told, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=FAREWELL_S)
