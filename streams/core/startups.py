"""How long instances take to start, measured once any did: K is this over the adjustment interval."""

from statistics import median

from schemas.events import StageReport
from schemas.policy import ServedClass
from streams.core.state import State

KEPT = 9
"""Start-ups of a model that the median is taken over."""


def note(state: State, model: str, said: list[StageReport]) -> None:
    """An instance became ready; it took as long as the slowest of its ranks."""
    measured = [report.start_s for report in said if report.start_s is not None]
    if measured and len(measured) == len(said):
        state.startups[model] = [*state.startups.get(model, []), max(measured)][-KEPT:]


def expected_s(state: State, served: ServedClass) -> float:
    """Seconds from start to ready of the next instance of a model."""
    measured = state.startups.get(served.model)
    return median(measured) if measured else served.startup_s
