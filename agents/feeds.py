"""What the world outside says: traffic from recorded requests, list prices, availability.

A feed is pure: asked what is due in wall second n since it began, it answers with messages, always the
same. `run_feeds` is the only part that knows a clock. It sends a second's messages once that second is
over, and after a pause it catches up in order, so that no second is missing and event time stays true.

A speed-up s compresses the *shape* of the recorded time and keeps the *rate*: wall second n covers the
trace's seconds [n*s, (n+1)*s), of which every s-th request is played (house.md, law 7).
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import Field

from agents.bus import Bus
from agents.traces import SHIPPED_TRACES, RequestTrace, StepTrace, read_requests, read_steps, share
from schemas import topics
from schemas.base import Count, Frozen, Millis, Name
from schemas.catalog import Catalog, ListPrice, Positive, Whole
from schemas.events import AvailabilityOffered, Offer, PriceOffered
from schemas.problems import Pool
from schemas.telemetry import TelemetrySample
from schemas.topics import Topic

Speedup = Annotated[float, Field(ge=1)]


# --- what to play ----------------------------------------------------------------------------------
class Traffic(Frozen):
    """One recorded hour, played as the traffic of one (model, SLO class)."""

    source: Name
    trace: Literal["azure_2023_conv", "azure_2023_code"]
    model: Name
    slo_class: Name
    scale: Positive = 1.0
    """Multiplies the request rate."""


class PriceMove(Frozen):
    """From wall second `at_s` on, nodes of this pool and configuration cost `factor` times the list."""

    at_s: Count
    pool: Pool
    configuration: Name
    factor: Positive


class Prices(Frozen):
    """The catalog's list prices, said again every `every_s`; moves are a demo's script."""

    source: Name = "list"
    every_s: Whole = 60
    moves: tuple[PriceMove, ...] = ()


class Supply(Frozen):
    """At the trace's peak there are `nodes` of this configuration; it is entered at `offset_s`."""

    pool: Pool
    configuration: Name
    nodes: Count
    offset_s: Annotated[float, Field(ge=0)] = 21_500
    """Skips the trace's first six hours, in which nothing could be had."""


class Availability(Frozen):
    """Levels shaped by a recorded spot cluster; on a change, and every `every_s`."""

    source: Name = "bamboo"
    trace: Literal["bamboo_2020_g4dn"] = "bamboo_2020_g4dn"
    every_s: Whole = 5
    supplies: tuple[Supply, ...]


class FeedPlan(Frozen):
    """All feeds of one run, at one speed-up."""

    speedup: Speedup = 1.0
    traffic: tuple[Traffic, ...] = ()
    prices: Prices | None = None
    availability: Availability | None = None


# --- what is due -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Message:
    """One event, where it goes, and an id that the same event has whenever it is sent."""

    topic: Topic
    key: str
    event: Frozen
    id: str


class Feed(Protocol):
    """Says what is due in wall second `second` since it began; the same whenever it is asked."""

    def due(self, second: int) -> Iterator[Message]: ...


@dataclass(frozen=True)
class TrafficFeed:
    """One telemetry sample a second, explicit zeros included.

    No system serves this traffic. A request therefore counts as finished in the second it arrives, with
    the output it had when it was recorded; none is refused; and the latency sketches stay empty, since
    nothing measured a latency.
    """

    spec: Traffic
    trace: RequestTrace
    speedup: float
    begin_ms: Millis

    def due(self, second: int) -> Iterator[Message]:
        offered = input_tokens = output_tokens = 0
        quota = self.spec.scale / self.speedup
        for index, request in self.trace.between(second * self.speedup, (second + 1) * self.speedup):
            times = share(index, quota)
            offered += times
            input_tokens += times * request.input_tokens
            output_tokens += times * request.output_tokens
        sample = TelemetrySample(
            source=self.spec.source,
            model=self.spec.model,
            slo_class=self.spec.slo_class,
            at_ms=self.begin_ms + 1000 * second,
            offered=offered,
            finished=offered,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
        )
        yield Message(topics.TELEMETRY, sample.model, sample, sample.id)


@dataclass(frozen=True)
class PriceFeed:
    """Every list price at first, on its moves, and again every so often."""

    spec: Prices
    prices: tuple[ListPrice, ...]
    begin_ms: Millis

    def due(self, second: int) -> Iterator[Message]:
        for price in self.prices:
            pool = pool_of(price)
            moves = [m for m in self.spec.moves if (m.pool, m.configuration) == (pool, price.configuration)]
            if second % self.spec.every_s == 0 or any(m.at_s == second for m in moves):
                past = [m for m in moves if m.at_s <= second]
                factor = max(past, key=lambda m: m.at_s).factor if past else 1.0
                event = PriceOffered(
                    offer=Offer(pool=pool, configuration=price.configuration, source=self.spec.source),
                    usd_per_hour=price.usd_per_hour * factor,
                    at_ms=self.begin_ms + 1000 * second,
                )
                yield Message(topics.PRICES, event.offer.key, event, f"{event.offer.key}/{event.at_ms}")


@dataclass(frozen=True)
class AvailabilityFeed:
    """The level of each supply, rounded down: never a whole node that the trace has only in part.

    What it says is how many nodes there are in all. The provisioner that holds some of them says how many
    more could be had, and the pool has the least of both. A level that lasts less than a wall second at
    this speed-up can be skipped.
    """

    spec: Availability
    trace: StepTrace
    speedup: float
    begin_ms: Millis

    def due(self, second: int) -> Iterator[Message]:
        for supply in self.spec.supplies:
            level = self._level(supply, second)
            if second % self.spec.every_s == 0 or level != self._level(supply, second - 1):
                offer = Offer(pool=supply.pool, configuration=supply.configuration, source=self.spec.source)
                at_ms = self.begin_ms + 1000 * second
                event = AvailabilityOffered(offer=offer, obtainable=level, at_ms=at_ms)
                yield Message(topics.AVAILABILITY, offer.key, event, f"{offer.key}/{at_ms}")

    def _level(self, supply: Supply, second: int) -> int:
        return supply.nodes * self.trace.at(second * self.speedup, supply.offset_s) // self.trace.peak


def pool_of(price: ListPrice) -> Pool:
    return Pool(cloud=price.cloud, region=price.region, zone=price.zone, market=price.market)


def make_feeds(
    plan: FeedPlan, catalog: Catalog, begin_ms: Millis, traces: Path = SHIPPED_TRACES
) -> tuple[Feed, ...]:
    """The feeds of a plan, re-based on `begin_ms`.

    Raises:
        ValueError: the plan names what the catalog or the trace does not have; or a trace is broken.
        OSError: a trace cannot be read.
    """
    _check(plan, catalog)
    feeds: list[Feed] = [
        TrafficFeed(spec, read_requests(traces / f"{spec.trace}.csv.gz"), plan.speedup, begin_ms)
        for spec in plan.traffic
    ]
    if plan.prices is not None:
        feeds.append(PriceFeed(plan.prices, catalog.prices, begin_ms))
    if (shape := plan.availability) is not None:
        steps = read_steps(traces / f"{shape.trace}.csv.gz")
        feeds.append(AvailabilityFeed(shape, steps, plan.speedup, begin_ms))
    return tuple(feeds)


def _check(plan: FeedPlan, catalog: Catalog) -> None:
    classes = {(m.name, level.slo_class) for m in catalog.models for level in m.levels}
    for t in plan.traffic:
        if (t.model, t.slo_class) not in classes:
            raise ValueError(f"traffic.{t.source}: the catalog has no {t.model}/{t.slo_class}")
    priced = {(pool_of(p), p.configuration) for p in catalog.prices}
    for move in plan.prices.moves if plan.prices else ():
        if (move.pool, move.configuration) not in priced:
            raise ValueError(f"prices.moves: no list price for {move.configuration} in {move.pool.key}")
    configurations = {c.name for c in catalog.configurations}
    for supply in plan.availability.supplies if plan.availability else ():
        if supply.configuration not in configurations:
            raise ValueError(f"availability.supplies: configuration {supply.configuration!r} is unknown")


# --- the clock -------------------------------------------------------------------------------------
async def run_feeds(
    bus: Bus,
    plan: FeedPlan,
    catalog: Catalog,
    *,
    seconds: int | None = None,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Play the feeds from now on, for ever or for so many wall seconds.

    Args:
        now: seconds since the epoch.

    Raises:
        ValueError, OSError: as `make_feeds`; nothing was sent then.
    """
    begin_s = int(now())
    feeds = make_feeds(plan, catalog, 1000 * begin_s)
    for second in itertools.count() if seconds is None else range(seconds):
        await sleep(max(0.0, begin_s + second + 1 - now()))
        for message in itertools.chain.from_iterable(feed.due(second) for feed in feeds):
            await bus.send(message.topic, message.event, key=message.key, event_id=message.id)
