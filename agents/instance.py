"""The guards of one attempt of an instance, gathered over ZeroMQ.

A star: the head's guard listens where its node's contact says, every other guard connects to it. CURVE
(`agents.star`) encrypts, and lets in only the keys of this instance's nodes. What is said and what follows
from it is decided by `agents.talk`, which is pure; this module moves its words and tells it the time.
"""

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self, TypeVar

from agents.engine import EngineError, EngineSpec
from agents.star import KeyPair, Star
from agents.talk import HEAD, MAX_WORD_BYTES, Member, Stop, Talk
from schemas.plans import Contact

PROTOCOL = "1"
"""Of the words; guards of different ones do not gather, since it is one of the facts."""
GOODBYE_S = 1.0
"""How long those that listen may take to hear why we stop."""

T = TypeVar("T")


class Circle:
    """The guards of one attempt of one instance, as the guard of one rank sees them.

    Enter it as soon as the guard runs, before weights are pulled: from then on the others know that this
    guard lives, and wait for it as long as it does. An instance of one rank opens no socket.

        async with Circle(spec, keys, pick_port=free_port) as circle:
            master_port = await circle.gather({"engine": "vllm-0.32.0", "partition": "1,3", ...})
            ...launch, serve, and watch `circle.broken()` beside the engine...

    Whatever still waits for it when it is left waits for ever: cancel it.
    """

    def __init__(
        self,
        spec: EngineSpec,
        keys: KeyPair,
        *,
        pick_port: Callable[[], int],
        beat_s: float = 0.5,
        silent_after_s: float = 5.0,
        gather_s: float = 900.0,
    ) -> None:
        """
        Args:
            spec: the rank this guard is for; its contacts name where and who the others are.
            keys: of this node, as its contact publishes it.
            pick_port: finds a free port of the head's address; asked once, at the head, when all are there.
            beat_s: between two words of a guard, seconds.
            silent_after_s: a guard not heard for so long is dead, seconds.
            gather_s: a guard that was never heard for so long will not come, seconds. Its node may first
                have to wait for an older instance to drain; the plan's start deadline bounds it, too.
        """
        self._spec = spec
        self._keys = keys
        self._pick_port = pick_port
        self._beat_s = beat_s
        self._silent_after_s = silent_after_s
        self._gather_s = gather_s
        self._me = Member(spec.key.stage, spec.key.rank)
        self._star: Star | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._routes: dict[Member, bytes] = {}
        """At the head: the way to each guard, as its last word came."""
        self._turn = asyncio.Event()
        """Set, and replaced, whenever something may have happened."""

    async def __aenter__(self) -> Self:
        """Listen at the head, connect elsewhere.

        Raises:
            EngineError: `port_taken` where a stranger listens; without refusal where the contacts are
                incomplete, `keys` are not those of our contact, or the address is not this machine's.
        """
        contacts = self._contacts()
        self._talk = Talk(
            self._spec.instance.id,
            self._spec.instance.attempt,
            self._me,
            {member: contact.public_key for member, contact in contacts.items()},
            now=self._now(),
            beat_s=self._beat_s,
            silent_after_s=self._silent_after_s,
            gather_s=self._gather_s,
        )
        if contacts:
            self._star = self._open(contacts)
            self._tasks = [asyncio.create_task(self._listen(self._star)), asyncio.create_task(self._beat())]
            for task in self._tasks:
                task.add_done_callback(self._ended)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Say goodbye (who leaves before the end was told breaks the circle), and close everything."""
        if self._star is None:
            return
        try:
            await self.abort(f"{self._me} left" + (f": {error}" if error else ""))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._star.close()

    @property
    def dropped(self) -> int:
        """Messages that were no word of this circle: garbage, strangers', other attempts', old ones."""
        return self._talk.dropped

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
        self._talk.offer({**facts, "protocol": PROTOCOL})
        await self._settle()
        if self._me == HEAD and await self._until(lambda: self._talk.stop or self._talk.all_agree) is True:
            self._talk.go(self._pick_port())
            await self._settle()
        outcome: Stop | int = await self._until(lambda: self._talk.outcome)
        if isinstance(outcome, Stop):
            raise EngineError(outcome.reason, outcome.refusal)
        return outcome

    async def tell_up(self) -> None:
        """At the head: the instance was admitted."""
        self._talk.admit()
        await self._settle()

    async def told_up(self) -> None:
        """Elsewhere: wait for the head's `tell_up`."""
        await self._until(lambda: self._talk.up)

    async def broken(self) -> str:
        """Wait until a guard aborts (this one, too), leaves or is silent: why.

        Never returns once the end was told.
        """
        return (await self._until(lambda: self._talk.stop)).reason

    async def abort(self, reason: str) -> None:
        """Break the circle: every guard that listens has heard `reason` when this returns (a second at most).

        A rank's word goes to the head, which passes it on. Once the circle is broken, or the end was told,
        it changes nothing.
        """
        self._talk.abort(reason)
        await self._settle()
        await self._heard(GOODBYE_S)

    async def end_others(self) -> None:
        """At the head, once its engine has ended in order: tell the other ranks to end theirs.

        Returns when all that listen have heard it (`silent_after_s` at most).
        """
        self._talk.end()
        await self._settle()
        await self._heard(self._silent_after_s)

    async def told_to_end(self) -> None:
        """Elsewhere: wait for the head's `end_others`."""
        await self._until(lambda: self._talk.ending)

    # --- words -------------------------------------------------------------------------------------
    def _contacts(self) -> dict[Member, Contact]:
        """How to reach each rank; empty for an instance of one."""
        ranks = {
            Member(stage.index, place): rank
            for stage in self._spec.instance.stages
            for place, rank in enumerate(stage.ranks)
        }
        if len(ranks) == 1:
            return {}
        for member, rank in ranks.items():
            if rank.claim not in self._spec.contacts:
                raise EngineError(f"claim {rank.claim} has no contact: {member} cannot be reached")
        return {member: self._spec.contacts[rank.claim] for member, rank in ranks.items()}

    def _open(self, contacts: Mapping[Member, Contact]) -> Star:
        if contacts[self._me].public_key != self._keys.public:
            raise EngineError("the plan's contact of this node has another public key than this node")
        head = contacts[HEAD]
        port = head.port(self._spec.instance.stages[HEAD.stage].ranks[HEAD.rank])
        if self._me != HEAD:
            return Star.connect(head.address, port, self._keys, head.public_key, max_bytes=MAX_WORD_BYTES)
        guests = {contact.public_key for contact in contacts.values()}
        return Star.listen(head.address, port, self._keys, guests, max_bytes=MAX_WORD_BYTES)

    async def _listen(self, star: Star) -> None:
        while True:
            message = await star.receive()
            member = self._talk.hear(message.key, message.raw, self._now())
            if member is not None:
                self._routes[member] = message.route
            await self._settle()

    async def _beat(self) -> None:
        while True:
            self._talk.tick(self._now())
            await self._speak()
            self._wake()
            await asyncio.sleep(self._beat_s)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Neither task ends by itself; if one does, nobody would be heard any more."""
        if not task.cancelled() and (error := task.exception()):
            self._talk.abort(f"{self._me} can no longer talk: {error!r}")
            self._wake()

    async def _settle(self) -> None:
        """After anything that may have changed the talk: tell the others, wake who waits."""
        if self._talk.has_news:
            await self._speak()
        self._wake()

    async def _speak(self) -> None:
        words = self._talk.words()
        if self._star is not None:
            for member, word in words.items():
                if member in self._routes or self._me != HEAD:
                    await self._star.send(self._routes.get(member, b""), word.model_dump_json().encode())

    # --- waiting -----------------------------------------------------------------------------------
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _wake(self) -> None:
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()

    async def _until(self, found: Callable[[], T | None]) -> T:
        while not (value := found()):
            await self._turn.wait()
        return value

    async def _heard(self, within_s: float) -> None:
        """Wait until all that listen have heard what we say, or the time is up."""
        try:
            async with asyncio.timeout(within_s):
                await self._until(lambda: self._talk.all_heard(self._now()))
        except TimeoutError:
            return
