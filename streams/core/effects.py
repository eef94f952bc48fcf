"""What the core wants done. Effects are data; whatever one brings about comes back as a record."""

from schemas.base import Count, Frozen, Millis
from schemas.plans import Plan
from schemas.problems import Problem


class Solve(Frozen):
    """Solve in a worker process; comes back as `Solved` or `SolveFailed` with this epoch."""

    epoch: Count
    problem: Problem


class Publish(Frozen):
    """Write the plan on `coral.plans`; comes back as `Published`. The newest supersedes all others."""

    epoch: Count
    plan: Plan
    cause_offset: Count
    """Offset of the record that caused the plan; `Published` carries the history digest there."""


class WakeAt(Frozen):
    """Append `Tick(at_ms)` once the log's clock reaches `at_ms`; replaces the wake-up asked for before."""

    at_ms: Millis


class Alert(Frozen):
    """Tell people. Nothing comes back: an alert is about what is already on the log."""

    name: str
    text: str


class PutAside(Frozen):
    """Copy an unreadable record to the dead-letter topic; comes back as `DeadLettered`."""

    offset: Count
    reason: str


Effect = Solve | Publish | WakeAt | Alert | PutAside
