"""What the core decides by. It travels in `Leading`, so that a replay has it from the log alone."""

from bisect import bisect_right
from typing import Annotated, Self

from pydantic import Field, model_validator

from schemas.allocation import AllocationPolicy
from schemas.base import DrainMs, Frozen, Millis, Name, Whole
from schemas.catalog import Phase, Positive
from schemas.problems import Pool, Service, later

Factor = Annotated[float, Field(ge=1)]


class HeadroomCurve(Frozen):
    """What a phase's demand is multiplied by, so that bursts keep its promises; the less, the more there is.

    Made where the policy is made (`solver.headroom`, or a number from the settings); the core only reads it.
    """

    phase: Phase
    requests_per_s: tuple[Positive, ...] = Field(min_length=1)
    factor: tuple[Factor, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _more_requests_need_no_more(self) -> Self:
        if len(self.requests_per_s) != len(self.factor):
            raise ValueError("requests_per_s and factor differ in length")
        if list(self.requests_per_s) != sorted(set(self.requests_per_s)):
            raise ValueError("requests_per_s must rise strictly")
        if list(self.factor) != sorted(self.factor, reverse=True):
            raise ValueError("factor must never rise")
        return self

    def at(self, requests_per_s: float) -> float:
        """By lines between the points, which lie above the true, hollow curve; its ends go on level.

        Only the four basic operations, so that every machine replays to the same bits.
        """
        right = bisect_right(self.requests_per_s, requests_per_s)
        if right in (0, len(self.factor)):
            return self.factor[max(0, right - 1)]
        x, y = self.requests_per_s[right - 1 : right + 1], self.factor[right - 1 : right + 1]
        return y[0] + (y[1] - y[0]) * (requests_per_s - x[0]) / (x[1] - x[0])


class ServedClass(Frozen):
    """A (model, SLO class) that this fleet serves, and the lengths assumed until measured."""

    model: Name
    slo_class: Name
    phases: tuple[Phase, ...] = ("both",)
    mean_input_tokens: Positive
    mean_output_tokens: Positive
    startup_s: Positive = 300.0
    """Assumed time from start to ready; K is this over the adjustment interval."""
    drain_deadline_ms: DrainMs | None = None
    """The longest that a drain waits for open answers; None is the policy's."""
    headroom: tuple[HeadroomCurve, ...] = ()
    """By phase; a phase without one (head-room off, or a log older than head-room) has the factor 1."""

    def headroom_at(self, phase: Phase, requests_per_s: float) -> float:
        """The factor on a phase's demand at so many requests/s of this class."""
        curves = (curve for curve in self.headroom if curve.phase == phase)
        return next((curve.at(requests_per_s) for curve in curves), 1.0)


class Pin(Frozen):
    """Instances that run and are to stay, whatever it costs, as long as there is the stock for them."""

    template: Name
    """Its id."""
    pool: Pool
    count: Whole = 1


class CorePolicy(Frozen):
    """What is asked of every plan, and thresholds of the control core, in log time."""

    served: tuple[ServedClass, ...]
    allocation: AllocationPolicy = later(AllocationPolicy())
    """What every question to the solver asks for beyond demand met at least cost."""
    excluded_configurations: tuple[Name, ...] = later(())
    """Of what may be had, what no plan may use; what runs there moves."""
    pinned: tuple[Pin, ...] = later(())

    rate_windows: Annotated[int, Field(ge=1)] = 3
    """Closed windows that the arrival rate is taken over."""
    length_windows: Annotated[int, Field(ge=1)] = 60
    """Closed windows that mean request lengths are taken over."""
    length_min_requests: Annotated[int, Field(ge=1)] = 50
    """Finished requests before measured lengths replace the assumed ones."""
    headroom: Annotated[float, Field(ge=0)] = 0.2
    """Demand, with its service's own head-room, is planned for this much above what was measured: so far it
    may grow until it is solved for again."""
    scale_up_margin: Annotated[float, Field(ge=0)] = 0.0
    """Solve when measured demand exceeds what was planned for by this share."""
    scale_down_margin: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Solve when the peak over `scale_down_after_ms` is this share below what was planned for."""
    scale_down_after_ms: Millis = 300_000
    demand_stale_after_ms: Millis = 60_000
    """No closed window for so long: the telemetry is stale, the plan is kept."""

    price_change: Annotated[float, Field(gt=0)] = 0.05
    """Relative price change of a pool in use, or below one in use, that makes it worth solving."""
    minimum_saving: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """A target that is not needed for demand must save this share to be accepted."""
    price_jump: Annotated[float, Field(gt=1)] = 10.0
    """A price this many times above or below the last of its offer is quarantined."""
    price_doubt_ms: Millis = 3_600_000
    """A quarantined price that is said again and again for so long is believed."""
    price_stale_ms: Millis = 86_400_000
    """A price that nobody said for so long is still used, and told to be old."""
    solve_interval_ms: Millis = 10_000
    """Least time between two solves that demand, price or availability asks for."""
    urgent_interval_ms: Millis = 500
    """Least time before a solve that a loss or a refusal asks for: a burst of them is solved once."""
    adjust_interval_ms: Millis = 360_000
    """Adjustment interval: denominator of K, and the longest time without a solve."""

    suspect_after_ms: Millis = 10_000
    lost_after_ms: Millis = 30_000
    alive_after_ms: Millis = 6_000
    """A fleet partition without `FleetAlive` for so long says nothing about its nodes."""
    blind_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """When more than this share of the registered nodes (and more than one) is silent: blind."""
    grant_timeout_ms: Millis = 120_000
    """A claim without a registered node for so long is given up."""
    refusal_memory_ms: Millis = 60_000
    """How long a refused pool counts as out of stock, unless the refusal says otherwise."""
    start_deadline_ms: Millis = 1_800_000
    """An instance that is not ready after so long is ended and tried again."""
    drain_deadline_ms: DrainMs = 600_000
    """A drain that is not over after so long is cut and told; a minute later its nodes are given back."""
    pull_slots: Annotated[int, Field(ge=1)] = 4
    """Nodes of one region that may pull weights at the same time."""
    unfit_ms: Millis = 600_000
    """How long what a node refused is not asked of it again; doubled for each further one, up to a day."""
    attempts: Annotated[int, Field(ge=1)] = 3
    """Tries to run an instance on its nodes before it is moved."""
    backoff_ms: Millis = 2_000
    """Wait before the second attempt; doubled for each further one."""
    republish_ms: Millis = 60_000
    coalesce_ms: Millis = 250
    """Least time between two plans of one roll-out: steps that come together go out together."""

    @property
    def asks(self) -> tuple[AllocationPolicy, tuple[Name, ...], tuple[Pin, ...]]:
        """What a plan must keep to: another one is a reason to plan anew."""
        return self.allocation, self.excluded_configurations, self.pinned

    def pinned_of(self, template: str, pool: Pool) -> int:
        """How many instances of a template are to stay in a pool."""
        return sum(pin.count for pin in self.pinned if (pin.template, pin.pool) == (template, pool))

    def drain_deadline_of(self, service: Service) -> int:
        """The longest drain of an instance of this service, in ms; it may be served no more."""
        kind = service.model, service.slo_class
        own = (s.drain_deadline_ms for s in self.served if (s.model, s.slo_class) == kind)
        return next((ms for ms in own if ms is not None), self.drain_deadline_ms)
