"""What a control log tells: the same `step`, effects off, with a running account of what came of it.

The live view and the end-of-run summary are two readings of one story; neither asks the controller
anything.
"""

from collections import Counter
from math import ceil

from schemas.base import Count, Frozen, Millis, Rate
from schemas.events import DemandClosed, NodeReported, Published, Solved, StageState
from schemas.plans import Plan
from streams.core.effects import Alert, Publish
from streams.core.record import LogRecord
from streams.core.state import State
from streams.core.step import step

StageKey = tuple[str, str, int, int, int]
"""(node, instance, attempt, stage, rank)"""


class Cost(Frozen):
    """From `at_s` on (log time since the first record) the claims of the plan cost this much."""

    at_s: Rate
    usd_per_hour: Rate


class Shortfall(Frozen):
    """Demand that a plan could not meet, as the plan named it."""

    at_s: Rate
    service: str
    share: Rate
    binding: str


class Latency(Frozen):
    """Milliseconds of log time; None where nothing was measured."""

    count: Count
    p50: Millis | None = None
    p99: Millis | None = None


class Summary(Frozen):
    """One run, as its control log tells it."""

    records: Count
    windows: Count
    solves: Count
    plans: Count
    stages_started: Count
    stages_ready: Count
    stages_drained: Count
    stages_failed: Count
    unmet_demand: tuple[Shortfall, ...]
    usd_per_hour: tuple[Cost, ...]
    plan_reasons: dict[str, Count]
    """Reason of each target -> how many."""
    window_to_plan_ms: Latency
    """From the closed window that made the controller solve to the plan confirmed."""
    alerts: dict[str, Count]


class Story:
    """Follow each record; ask for the state, the plan or the summary at any time."""

    def __init__(self) -> None:
        self.state = State()
        self.plan: Plan | None = None
        """The newest plan that was confirmed."""
        self.reasons: Counter[str] = Counter()
        self._decided: dict[str, Plan] = {}
        self._counts: Counter[str] = Counter()
        self._stages: dict[StageKey, set[StageState]] = {}
        self._alerts: Counter[str] = Counter()
        self._windows: set[tuple[str, int]] = set()
        self._closed_ms: dict[int, int] = {}
        self._targets: set[str] = set()
        self._waits: list[int] = []
        self._costs: list[Cost] = []
        self._short: list[Shortfall] = []
        self._began_ms: int | None = None

    def follow(self, record: LogRecord) -> None:
        if self._began_ms is None:
            self._began_ms = record.timestamp_ms
        self._counts["records"] += 1
        for effect in step(self.state, record):
            if isinstance(effect, Publish):
                self._decided[effect.plan.id] = effect.plan
            elif isinstance(effect, Alert):
                self._alerts[effect.name.partition(":")[0]] += 1
        match record.event:
            case DemandClosed() as event:
                self._windows.add((event.key, event.start_ms))
                self._closed_ms[record.offset] = record.timestamp_ms
            case NodeReported() as event:
                self._report(event)
            case Solved():
                self._counts["solves"] += 1
            case Published() as event:
                self._publish(event, record.timestamp_ms)
            case _:
                pass

    def _report(self, event: NodeReported) -> None:
        for stage in event.report.stages:
            key = (event.report.node, stage.instance, stage.attempt, stage.stage, stage.rank)
            self._stages.setdefault(key, set()).add(stage.state)

    def _publish(self, event: Published, now_ms: int) -> None:
        plan = self._decided.get(event.plan)
        if plan is None or (self.plan is not None and plan.order <= self.plan.order):
            return
        self.plan = plan
        self._counts["plans"] += 1
        at_s = round((now_ms - (self._began_ms or now_ms)) / 1000, 3)
        usd = round(plan.usd_per_hour, 4)
        if not self._costs or self._costs[-1].usd_per_hour != usd:
            self._costs.append(Cost(at_s=at_s, usd_per_hour=usd))
        if plan.target.id not in self._targets:
            self._target(plan, at_s, now_ms)

    def _target(self, plan: Plan, at_s: float, now_ms: int) -> None:
        target = plan.target
        self._targets.add(target.id)
        self.reasons[target.reason] += 1
        self._short += [
            Shortfall(at_s=at_s, service=u.service.key, share=round(u.share, 4), binding=u.binding)
            for u in target.unmet
        ]
        if target.cause_offset in self._closed_ms:
            self._waits.append(now_ms - self._closed_ms[target.cause_offset])

    def _reached(self, *states: StageState) -> int:
        return sum(not seen.isdisjoint(states) for seen in self._stages.values())

    def summary(self) -> Summary:
        return Summary(
            records=self._counts["records"],
            windows=len(self._windows),
            solves=self._counts["solves"],
            plans=self._counts["plans"],
            # A stage that was heard of in any later state had started: reports between may be merged.
            stages_started=self._reached("starting", "ready", "draining", "drained", "failed"),
            stages_ready=self._reached("ready"),
            stages_drained=self._reached("drained"),
            stages_failed=self._reached("failed", "refused"),
            unmet_demand=tuple(self._short),
            usd_per_hour=tuple(self._costs),
            plan_reasons=dict(sorted(self.reasons.items())),
            window_to_plan_ms=Latency(
                count=len(self._waits), p50=_rank(self._waits, 0.5), p99=_rank(self._waits, 0.99)
            ),
            alerts=dict(sorted(self._alerts.items())),
        )


def _rank(values: list[int], q: float) -> int | None:
    """Nearest-rank quantile."""
    return sorted(values)[max(0, ceil(q * len(values)) - 1)] if values else None
