"""A router's `/metrics`, in the Prometheus text format, and how well it keeps its promises.

Counters are fed once a second from the tallies that telemetry is made of, so requests pay nothing for them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agents.router_telemetry import Outbox, Tallies
from agents.routing import Kind, Routes
from schemas.catalog import Objective, ServiceLevel

WINDOW_MS = 10_000
"""Attainment is told for windows of this length, as demand is."""
_TTFT_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_TPOT_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
_LABELS = ("model", "slo_class")


class RouterMetrics:
    """The counters of one router."""

    def __init__(self, routes: Routes, outbox: Outbox, promises: "Promises") -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, labelnames=_LABELS, registry=self.registry)
        self._requests = counter(
            "coral_router_requests",
            "Requests by what became of them; `offered` is every one.",
            (*_LABELS, "outcome"),
        )
        self._tokens = counter(
            "coral_router_tokens",
            "Tokens of finished requests; `cached` ones are input too.",
            (*_LABELS, "kind"),
        )
        self._ttft = histogram(
            "coral_router_ttft_seconds",
            "From a request's arrival to the first token of its stream.",
            buckets=_TTFT_S,
        )
        self._tpot = histogram(
            "coral_router_tpot_seconds", "Mean time per token of a stream after its first.", buckets=_TPOT_S
        )
        self.choices = counter(
            "coral_router_choices",
            "Where requests went: to the owner of their prefix, to the next on the ring, in turn.",
            ("how",),
        )
        self.retries = counter(
            "coral_router_retries",
            "Requests sent to another instance before their first token, by why.",
            ("why",),
        )
        self.registry.register(_Standing(routes, outbox))
        self._promises = promises
        promises.register(self.registry)

    def count(self, tallies: Tallies) -> None:
        """Add what happened in a second."""
        for (_, kind), tally in tallies.items():
            for outcome in ("offered", "refused", "failed", "left", "finished"):
                self._requests.labels(*kind, outcome).inc(getattr(tally, outcome))
            self._tokens.labels(*kind, "input").inc(tally.input_tokens)
            self._tokens.labels(*kind, "cached").inc(tally.cached_tokens)
            self._tokens.labels(*kind, "output").inc(tally.output_tokens)
            for ttft_ms in tally.ttft_ms:
                self._ttft.labels(*kind).observe(ttft_ms / 1000)
            for tpot_ms in tally.tpot_ms:
                self._tpot.labels(*kind).observe(tpot_ms / 1000)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Standing(Collector):
    """What is read when somebody asks: the plan, and the instances as this router sees them."""

    def __init__(self, routes: Routes, outbox: Outbox) -> None:
        self._routes = routes
        self._outbox = outbox

    def collect(self) -> Iterator[Metric]:
        labels = (*_LABELS, "phase", "instance")
        busy = GaugeMetricFamily(
            "coral_router_in_flight", "Requests of this router that an instance works on.", labels=labels
        )
        shut = GaugeMetricFamily(
            "coral_router_failures", "Failures in a row of an instance; 3 open its breaker.", labels=labels
        )
        for service, group in self._routes.groups():
            for peer, in_flight, failures in group.standing():
                busy.add_metric([*service.split("/"), peer.key], in_flight)
                shut.add_metric([*service.split("/"), peer.key], failures)
        yield busy
        yield shut
        plan = self._routes.plan
        if plan is not None:
            sequence = GaugeMetricFamily(
                "coral_router_plan", "Sequence of the plan in force.", labels=("id",)
            )
            sequence.add_metric([plan.id], plan.sequence)
            yield sequence
        unsent = GaugeMetricFamily("coral_router_telemetry_waiting", "Samples not yet on Kafka.")
        unsent.add_metric([], len(self._outbox))
        yield unsent
        lost = GaugeMetricFamily("coral_router_telemetry_dropped", "Samples dropped, too old to be sent.")
        lost.add_metric([], self._outbox.dropped)
        yield lost


# --- promises ----------------------------------------------------------------------------------------
@dataclass
class _Kept:
    met: int = 0
    all: int = 0


class Promises:
    """Which share of the requests kept each objective of its SLO class, per window.

    An objective says that a percentile of the times is at most so long; the share is to be held against that
    percentile. A class without a known level has none.
    """

    def __init__(self, levels: Mapping[Kind, ServiceLevel]) -> None:
        self._levels = levels
        self._windows: dict[tuple[str, str, str], _Kept] = {}
        self._end_ms = 0

    def register(self, registry: CollectorRegistry) -> None:
        labels = (*_LABELS, "objective")
        self._total = Counter(
            "coral_router_slo_requests",
            "Requests held against an objective.",
            (*labels, "met"),
            registry=registry,
        )
        self._share = Gauge(
            "coral_router_slo_attainment",
            "Share of the last window's requests that kept an objective.",
            labels,
            registry=registry,
        )

    def verdicts(
        self, kind: Kind, prompt_tokens: int, ttft_ms: float | None, tpot_ms: float | None
    ) -> dict[str, bool]:
        """Whether a finished request kept what was promised, by objective."""
        level = self._levels.get(kind)
        if level is None:
            return {}
        return {
            f"{name}_p{objective.percentile:g}_{objective.ms:g}ms": value <= objective.ms
            for name, objectives, value in (("ttft", level.ttft, ttft_ms), ("tpot", level.tpot, tpot_ms))
            if value is not None
            for objective in _for_prompt(objectives, prompt_tokens)
        }

    def count(self, tallies: Tallies, now_ms: int) -> None:
        """Add what happened in a second, and tell the window that has ended, if one has."""
        for (_, kind), tally in tallies.items():
            for label, judged in tally.judged.items():
                kept = self._windows.setdefault((*kind, label), _Kept())
                kept.met += tally.met[label]
                kept.all += judged
        if now_ms < self._end_ms:
            return
        self._end_ms = now_ms - now_ms % WINDOW_MS + WINDOW_MS
        self._share.clear()
        for (model, slo_class, label), kept in self._windows.items():
            self._share.labels(model, slo_class, label).set(kept.met / kept.all)
            self._total.labels(model, slo_class, label, "yes").inc(kept.met)
            self._total.labels(model, slo_class, label, "no").inc(kept.all - kept.met)
        self._windows = {}


def _for_prompt(objectives: Iterable[Objective], prompt_tokens: int) -> list[Objective]:
    """Those of the smallest bucket that holds a prompt of this length."""
    limits = {o.max_prompt_tokens: o.max_prompt_tokens or float("inf") for o in objectives}
    fitting = [limit for limit, tokens in limits.items() if prompt_tokens <= tokens]
    if not fitting:
        return []
    bucket = min(fitting, key=limits.__getitem__)
    return [objective for objective in objectives if objective.max_prompt_tokens == bucket]
