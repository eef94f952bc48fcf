"""Whether an engine lives, from what it shows. Pure.

`/health` alone says little: with a dead rank it stays at 200 for as long as no request times out. What cannot
be feigned is a token, or an answer of all ranks. Laws:

1. An engine that says it is dead, or does not listen, is dead.
2. It is stuck when for `stuck_after_s` there was neither a new token nor an answer of all ranks to a check.
   A check that fails is no proof alone: it has to wait behind a step, which may be long.
3. While tokens come nothing is asked of the ranks: they all had a part in them, and a check drains the
   pipeline.
4. Time in which we did not look ourselves (stopped, starved) is no time of silence.
"""

from dataclasses import dataclass
from typing import Literal

from schemas.base import Count, Frozen

Health = Literal["well", "dead", "refused", "silent"]
"""well: 200. dead: any other status. refused: nothing listens. silent: no answer in time."""
CHECK_EVERY_S = 5.0
"""Between two checks of an idle engine."""
LONGEST_LOOK_S = 5.0
"""A look takes less; more passed between two of them only if we did not look."""


class Metrics(Frozen):
    """What of vLLM's `/metrics` tells whether it works."""

    running: Count
    """Requests in a batch."""
    waiting: Count
    """Requests in its queue."""
    tokens: Count
    """Prompt tokens and generated ones, since its start."""

    @property
    def idle(self) -> bool:
        return self.running + self.waiting == 0


@dataclass
class Vitals:
    """What was seen of one engine. Times are seconds of any clock that only goes on."""

    stuck_after_s: float
    now: float
    _still_s: float = 0.0
    """For how long there was no sign of life."""
    _tokens: int | None = None
    _check: Literal["none", "asked", "answered", "failed"] = "none"
    _asked_s: float = float("-inf")

    def look(self, health: Health, metrics: Metrics | None, now: float) -> str | None:
        """What one look showed: why it is dead, or None."""
        self._still_s += min(now - self.now, LONGEST_LOOK_S)
        self.now = now
        if health == "dead":
            return "its /health says that it is dead"
        if health == "refused":
            return "nothing listens where it served"
        if metrics is not None and metrics.tokens != self._tokens:
            self._tokens = metrics.tokens
            self._still_s = 0.0
        if self._check in {"asked", "failed"} and self._still_s >= self.stuck_after_s:
            return f"no token and no answer of all ranks for {self.stuck_after_s:g} s"
        return None

    @property
    def wants_check(self) -> bool:
        """Whether all ranks should be asked now."""
        return self._check != "asked" and self._still_s > 0.0 and self.now - self._asked_s >= CHECK_EVERY_S

    def asked(self) -> None:
        """A check is on its way; there is never more than one."""
        self._check, self._asked_s = "asked", self.now

    def answered(self, well: bool) -> None:
        """The check came back."""
        self._check = "answered" if well else "failed"
        if well:
            self._still_s = 0.0
