"""Asks one vLLM server over loopback HTTP how it is: what it says, what it hides, and what it means.

`/health` alone says little (vllm.md): a dead stage leaves it at 200. So an instance is admitted after health,
a check of all ranks and a reference check; and watched by that check of all ranks beside the token counters,
since a check may also have to wait behind a long step.
"""

from collections.abc import Awaitable, Callable

from agents.engine import Progress
from schemas.base import Count, Frozen

Verify = Callable[[str], Awaitable[bool]]
"""Checks the answers of the server at a base URL against a reference (`agents.reference`): True when they
agree, False when there is none and none is needed; raises EngineError otherwise."""


class Metrics(Frozen):
    """What of vLLM's `/metrics` says whether it works."""

    running: Count
    waiting: Count
    prompt_tokens: Count
    generation_tokens: Count


class Probe:
    """One vLLM server at `base_url` (http://127.0.0.1:port). An async context manager: it owns its client."""

    def __init__(self, base_url: str) -> None:
        raise NotImplementedError

    async def health(self) -> int | None:
        """The status of `/health`; None when nothing answers."""
        raise NotImplementedError

    async def metrics(self) -> Metrics | None:
        """Its figures now; None when nothing answers."""
        raise NotImplementedError

    async def check_ranks(self, within_s: float = 5.0) -> bool:
        """Whether all ranks answered `check_health` in time (20-80 ms when well)."""
        raise NotImplementedError

    async def admit(self, tell: Callable[[Progress], None], verify: Verify) -> bool:
        """Wait until it may serve: healthy, all of its ranks answer, and its answers are right.

        Does not return while it does not come up: the caller watches its processes and the deadlines.

        Args:
            tell: hears what it does, in coarse steps (loading, compiling, verifying).
            verify: the reference check.

        Returns:
            What `verify` found: False for an instance that may serve unverified.

        Raises:
            EngineError: `verify` did.
        """
        raise NotImplementedError

    async def stuck(self, after_s: float) -> str:
        """Wait until it is dead though its process lives: why.

        It is when `/health` is 503 or nothing listens; or when the check of all ranks failed and the token
        counters stood still for `after_s`.
        """
        raise NotImplementedError

    async def quiet(self, for_s: float = 2.0) -> None:
        """Wait until nothing ran or waited for `for_s` seconds, or nothing answers any more."""
        raise NotImplementedError
