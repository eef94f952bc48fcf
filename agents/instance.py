"""What the guards of one attempt of an instance say to each other, over ZeroMQ.

A star: the head's guard listens where its node's contact says, every other guard connects to it. CURVE
encrypts and lets in only the keys of this instance's nodes. What is said and what follows from it is decided
by `agents.talk`, which is pure; this module moves its words and tells it the time.
"""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import NamedTuple, Self

from agents.engine import EngineSpec

ENGINE_FACT = "engine"
"""The fact whose difference is a refusal (`engine_version`); every other is a failure."""


class KeyPair(NamedTuple):
    """A CURVE key pair, both halves in Z85 (40 characters)."""

    public: str
    secret: str


def new_keys() -> KeyPair:
    """A fresh key pair, from the system's randomness."""
    raise NotImplementedError


class Circle:
    """The guards of one attempt of one instance, as the guard of one rank sees them.

    Enter it as soon as the guard runs, before weights are pulled: from then on the others know that this
    guard lives, and wait for it as long as it does. An instance of one rank opens no socket.

        async with Circle(spec, keys, pick_port=free_port) as circle:
            master_port = await circle.gather({"engine": "vllm-0.32.0", "partition": "1,3", ...})
            ...launch, serve, and watch `circle.broken()` beside the engine...
    """

    def __init__(
        self,
        spec: EngineSpec,
        keys: KeyPair,
        *,
        pick_port: Callable[[], int],
        beat_s: float = 0.5,
        silent_after_s: float = 5.0,
        gather_s: float = 120.0,
    ) -> None:
        """
        Args:
            spec: the rank this guard is for; its contacts name where and who the others are.
            keys: of this node, as its contact publishes it.
            pick_port: finds a free port of the head's address; asked once, at the head, when all are there.
            beat_s: between two words of a guard, seconds.
            silent_after_s: a guard not heard for so long is dead, seconds.
            gather_s: a guard that was never heard for so long will not come, seconds.
        """
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        """Listen at the head, connect elsewhere.

        Raises:
            EngineError: `port_taken` where a stranger listens; without refusal where the contacts are
                incomplete, `keys` are not those of our contact, or the address is not this machine's.
        """
        raise NotImplementedError

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Say goodbye (who leaves before the end was told breaks the circle), and close everything."""
        raise NotImplementedError

    @property
    def dropped(self) -> int:
        """Messages that were no word of this circle: strangers', garbage, other attempts', old ones."""
        raise NotImplementedError

    async def gather(self, facts: Mapping[str, str]) -> int:
        """Wait until all ranks are here with the same facts; the head's fresh master port for this attempt.

        A rank that is alive and not ready (it pulls weights, say) is waited for without limit: the plan's
        start deadline bounds it.

        Args:
            facts: what must be the same at all ranks: `engine` (its version), `partition`, `revision`,
                `command` (digest of the command line without what differs by rank), and any other.

        Raises:
            EngineError: the facts differ (every rank gets the same text, which names the fact and its
                values; `engine_version` if that one differs), a rank never came, or the circle broke.
        """
        raise NotImplementedError

    async def broken(self) -> str:
        """Wait until another guard aborts, leaves or is silent: why. Never returns once the end was told."""
        raise NotImplementedError

    async def abort(self, reason: str) -> None:
        """Break the circle: every guard that listens has heard `reason` when this returns (a second at most).

        A rank's word goes to the head, which passes it on.
        """
        raise NotImplementedError

    async def end_others(self) -> None:
        """At the head, once its engine has ended in order: tell the other ranks to end theirs.

        Returns when all that listen have heard it (`silent_after_s` at most).
        """
        raise NotImplementedError

    async def told_to_end(self) -> None:
        """Elsewhere: wait for the head's `end_others`."""
        raise NotImplementedError
