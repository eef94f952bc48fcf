"""What a router saw, second by second, on its way to `coral.telemetry`.

Every second each kind of the plan, (model, SLO class), gets a sample, zeros included: what is missing says
that a router is silent, not that nobody asks. While Kafka is away samples are kept for `KEPT_MS`, which is as
long as fold would still wait for them; what is older is dropped and counted. Requests never wait for any of
this.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agents.bus import Bus
from agents.router_stream import Usage
from agents.routing import Kind
from schemas import topics
from schemas.sketch import Sketch
from schemas.telemetry import Attained, TelemetrySample

SECOND_MS = 1000
KEPT_MS = 120_000
"""How long unsent samples are kept."""
LONGEST_MS = 5_000
"""Greatest interval of one sample: after a longer stop of this process the time before is missing."""
BATCH = 500
"""Samples sent at a time."""


@dataclass
class Tally:
    """Counts of one (tenant, kind) since the last sample."""

    offered: int = 0
    refused: int = 0
    failed: int = 0
    """Accepted, and not answered to the end though the client waited."""
    left: int = 0
    """The client went away."""
    finished: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ttft_ms: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    judged: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    """Both by objective."""

    def finish(self, usage: Usage, tpot_ms: float | None, verdicts: Mapping[str, bool]) -> None:
        """Count a request that was answered.

        Args:
            verdicts: whether it kept each objective it was held against.
        """
        self.finished += 1
        self.input_tokens += usage.input_tokens
        self.cached_tokens += usage.cached_tokens
        self.output_tokens += usage.output_tokens
        if tpot_ms is not None:
            self.tpot_ms.append(tpot_ms)
        self.judged.update(list(verdicts))
        self.met.update(name for name, kept in verdicts.items() if kept)


Tallies = dict[tuple[str, Kind], Tally]
"""By (tenant, kind)."""


class Counting:
    """Tallies of the running second."""

    def __init__(self, source: str, now_ms: int) -> None:
        self._source = source
        self._start_ms = now_ms
        self._tallies: Tallies = {}

    def of(self, tenant: str, kind: Kind) -> Tally:
        tally = self._tallies.get((tenant, kind))
        if tally is None:
            tally = self._tallies[tenant, kind] = Tally()
        return tally

    def close(self, now_ms: int, kinds: Iterable[Kind]) -> tuple[Tallies, list[TelemetrySample]]:
        """End the interval that began at the last close; nothing if the clock went back meanwhile.

        Args:
            kinds: those that get a sample in any case.
        """
        if now_ms <= self._start_ms:
            return {}, []
        start_ms = max(self._start_ms, now_ms - LONGEST_MS)
        tallies, self._tallies, self._start_ms = self._tallies, {}, now_ms
        told = {kind for _, kind in tallies}
        silent: Tallies = {("default", kind): Tally() for kind in kinds if kind not in told}
        samples = [
            self._sample(tenant, kind, tally, start_ms, now_ms - start_ms)
            for (tenant, kind), tally in (tallies | silent).items()
        ]
        return tallies, samples

    def _sample(self, tenant: str, kind: Kind, tally: Tally, at_ms: int, interval_ms: int) -> TelemetrySample:
        model, slo_class = kind
        return TelemetrySample(
            source=self._source,
            tenant=tenant,
            model=model,
            slo_class=slo_class,
            at_ms=at_ms,
            interval_ms=interval_ms,
            offered=tally.offered,
            refused=min(tally.refused, tally.offered),  # one refused now may have been offered before
            finished=tally.finished,
            input_tokens=tally.input_tokens,
            cached_input_tokens=tally.cached_tokens,
            output_tokens=tally.output_tokens,
            ttft_ms=Sketch.of(tally.ttft_ms),
            tpot_ms=Sketch.of(tally.tpot_ms),
            attained=tuple(
                Attained(objective=name, met=tally.met[name], judged=judged)
                for name, judged in sorted(tally.judged.items())
            ),
        )


def next_second_s(now_s: float) -> float:
    """Seconds from now to the next whole second."""
    return math.floor(now_s) + 1 - now_s


class Outbox:
    """Samples not yet on Kafka, oldest first."""

    def __init__(self) -> None:
        self.dropped = 0
        """Samples that were never sent."""
        self._waiting: deque[TelemetrySample] = deque()
        self._news, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, samples: Iterable[TelemetrySample], now_ms: int) -> None:
        self._waiting.extend(samples)
        while self._waiting and self._waiting[0].at_ms < now_ms - KEPT_MS:
            self._waiting.popleft()
            self.dropped += 1
        if self._waiting:
            self._empty.clear()
            self._news.set()

    async def send(self, bus: Bus) -> None:
        """Send all there is and all that comes; what fails is sent again by the next call.

        Raises:
            aiokafka.errors.KafkaError: Kafka failed.
        """
        while True:
            await self.flush(bus)
            await self._news.wait()
            self._news.clear()

    async def flush(self, bus: Bus) -> None:
        """Send all there is. Raises as `send` does."""
        while self._waiting:
            batch = [self._waiting[index] for index in range(min(BATCH, len(self._waiting)))]
            await asyncio.gather(*(bus.send(topics.TELEMETRY, s, key=s.model, event_id=s.id) for s in batch))
            sent = {id(sample) for sample in batch}
            while self._waiting and id(self._waiting[0]) in sent:  # some may have grown too old meanwhile
                self._waiting.popleft()
        self._empty.set()

    async def emptied(self) -> None:
        """Wait until all was sent."""
        await self._empty.wait()
