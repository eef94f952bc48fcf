"""Which instance of one service gets the next request. Pure: plan and own observations in, a choice out.

Laws:
- Nothing new goes to an instance that does not serve, that runs and queues `QUEUE` times its batch, or whose
  breaker is open. If all breakers are open none is: what all instances have in common is likelier our own
  trouble, and there is nothing to lose.
- A beginning that was seen before goes where it was sent last while that instance has room: while it has at
  most its share of all requests in flight, by weight, plus up to `ALLOWANCE` of that, the more the larger the
  part of the prompt that is known there; below `IDLE` of its batch it has room in any case. Where the owner
  has none, the next instance on the ring that has some takes it (consistent hashing with bounded loads:
  Mirrokni, Thorup, Zadimoghaddam, SODA 2018). So affinity lifts no busy instance above 1 + ALLOWANCE times
  its share.
- All others take turns: smooth weighted round-robin, as nginx has it. Each instance is owed its share of
  every request; the one that is owed most gets it and owes one request less. Among equals the least loaded:
  requests in flight by weight. A request that went by affinity was a turn too, up to `DEBT` requests.
- What is owed to an instance, and its breaker, outlive changes of the plan; what is owed to one that leaves
  is forgotten, and one that comes is owed nothing. So changes do not add up to a skew.
- The preferred region first, while an instance there runs less than its batch.

Loads are the requests that this router has in flight; others it does not see.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agents.affinity import Beginnings, Memory, Ring

QUEUE = 2.0
ALLOWANCE = 0.25
IDLE = 1 / 16
DEBT = 4.0
FAILURES = 3
"""Failures in a row that open a breaker."""
OPEN_S, OPEN_LIMIT_S = 1.0, 30.0
"""How long a breaker is open before one trial is let through; doubled by each trial that fails."""
TRIAL_S = 60.0
"""A trial that says nothing for so long no longer keeps others from being tried."""
ELSEWHERE_S = 60.0
"""How long an instance that says it drains is passed over: the plan, late as it may be, will say so too."""
_EVEN = 1e-9

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
How = Literal["prefix", "ring", "turn"]


@dataclass(frozen=True)
class Peer:
    """An instance as the plan has it. `key` names this attempt of it."""

    key: str
    endpoint: str
    weight: float
    """Rated throughput, in the unit of its service."""
    batch: int
    """Requests that it runs at once."""
    region: str = ""
    serving: bool = True


@dataclass(frozen=True)
class Choice:
    """Where a request goes, and why; the group counts it in flight until `ended`."""

    peer: Peer
    how: How
    known: float = 0.0
    """The part of the prompt, from 0 to 1, that this instance has seen before."""


class Refusal(Enum):
    """Why there is no choice."""

    NOTHING = "no instance serves it now"
    FULL = "every instance has as many requests as it may queue"
    FAILING = "every instance drains, or failed just now"


class Group:
    """The instances of one service. Times are seconds of any clock that does not go back."""

    def __init__(self, memory: Memory, prefer_region: str | None = None) -> None:
        self.peers: list[Peer] = []
        self._memory = memory
        self._prefer = prefer_region
        self._index: dict[str, int] = {}
        self._ring: Ring | None = None
        self._columns(0)

    def _columns(self, size: int) -> None:
        self._weight, self._batch, self._limit = np.ones(size), np.ones(size), np.ones(size)
        self._in_flight, self._owed, self._shut_until = np.zeros(size), np.zeros(size), np.zeros(size)
        self._failures = np.zeros(size, dtype=np.int64)
        self._serving, self._near = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)

    # --- the plan ------------------------------------------------------------------------------------
    def set(self, peers: Iterable[Peer]) -> None:
        """Take over what the plan says; what leaves with requests in flight stays until they have ended."""
        wanted = {peer.key: peer for peer in peers}
        for peer in self.peers:
            if peer.key not in wanted and self._in_flight[self._index[peer.key]] > 0:
                wanted[peer.key] = replace(peer, serving=False)
        stays = [key for key in wanted if key in self._index]
        old = [self._index[key] for key in stays]
        before = (self._in_flight[old], self._owed[old], self._shut_until[old], self._failures[old])
        self.peers = list(wanted.values())
        self._index = {peer.key: index for index, peer in enumerate(self.peers)}
        self._ring = None
        self._columns(len(self.peers))
        new = [self._index[key] for key in stays]
        self._in_flight[new], self._owed[new], self._shut_until[new], self._failures[new] = before
        self._weight[:] = [peer.weight for peer in self.peers]
        self._batch[:] = [peer.batch for peer in self.peers]
        self._limit[:] = QUEUE * self._batch
        self._serving[:] = [peer.serving for peer in self.peers]
        self._near[:] = [peer.region == self._prefer for peer in self.peers]

    @property
    def in_flight(self) -> int:
        return int(self._in_flight.sum())

    @property
    def serves(self) -> bool:
        return bool(self._serving.any())

    def standing(self) -> Iterator[tuple[Peer, int, int]]:
        """Each instance with its requests in flight and its failures in a row."""
        return zip(self.peers, map(int, self._in_flight), map(int, self._failures), strict=True)

    def opens_in_s(self, now_s: float) -> float:
        """How long until the first of the instances that drain or fail is tried again."""
        shut = self._shut_until[self._serving]
        return max(0.0, float(shut.min()) - now_s) if shut.size else 0.0

    # --- a request -----------------------------------------------------------------------------------
    def pick(self, prompt: Beginnings, now_s: float, avoid: frozenset[str] = frozenset()) -> Choice | Refusal:
        """Choose, and count the request in flight there.

        Args:
            avoid: keys of instances that failed this request.
        """
        open_to = self._open_to(now_s, avoid)
        if isinstance(open_to, Refusal):
            return open_to
        found = self._by_affinity(prompt, open_to)
        how: How
        if found is None:
            index, how, at = self._by_turn(open_to), "turn", -1
        else:
            index, how, at = found
            self._out_of_turn(index, open_to)
        self._in_flight[index] += 1
        self._memory.remember(prompt.hashes[at + 1 :], self.peers[index].key)
        if self._failures[index] >= FAILURES:
            self._shut_until[index] = now_s + TRIAL_S  # this is the trial
        known = prompt.shares[at] if how == "prefix" else 0.0
        return Choice(self.peers[index], how, known)

    def others(self, avoid: frozenset[str], now_s: float) -> bool:
        """Whether another instance than these would get a request now."""
        return not isinstance(self._open_to(now_s, avoid), Refusal)

    def _open_to(self, now_s: float, avoid: frozenset[str]) -> Flags | Refusal:
        """Which instances may get a request now."""
        serving = self._serving.copy()
        for key in avoid & self._index.keys():
            serving[self._index[key]] = False
        well = serving & (self._shut_until <= now_s)
        if not np.count_nonzero(well):
            well = serving & (self._failures >= FAILURES)
        open_to: Flags = well & (self._in_flight < self._limit)
        if np.count_nonzero(open_to):
            return open_to
        if np.count_nonzero(well):
            return Refusal.FULL
        return Refusal.FAILING if self.serves else Refusal.NOTHING

    def _by_affinity(self, prompt: Beginnings, open_to: Flags) -> tuple[int, How, int] | None:
        """The index, how, and which of the prompt's hashes decided (-1: its conversation's name)."""
        owners = enumerate(map(self._memory.owner, prompt.hashes))
        known = [(at, owner) for at, owner in owners if owner is not None]
        if not known and prompt.conversation is None:
            return None
        load = (self._in_flight + 1) / self._weight
        mean = (self._in_flight[self._serving].sum() + 1) / self._weight[self._serving].sum()
        idle = self._in_flight < IDLE * self._batch

        def room(share: float) -> Flags:
            has: Flags = open_to & (idle | (load <= (1 + ALLOWANCE * share) * mean))
            return has

        for at, owner in reversed(known):  # the longest beginning first
            index = self._index.get(owner)
            if index is not None and room(prompt.shares[at])[index]:
                return index, "prefix", at
        if prompt.conversation is not None:
            return self._by_ring(prompt.conversation, room(1.0), -1)
        at = known[0][0]
        return self._by_ring(prompt.hashes[at], room(prompt.shares[at]), at)

    def _by_ring(self, beginning: int, room: Flags, at: int) -> tuple[int, How, int] | None:
        if not np.count_nonzero(room):
            return None
        if self._ring is None:
            self._ring = Ring([peer.key for peer in self.peers])
        return next(i for i in self._ring.after(beginning) if room[i]), "ring", at

    def _by_turn(self, open_to: Flags) -> int:
        among = self._nearest(open_to)
        self._owe(among)
        owed = np.where(among, self._owed, -np.inf)
        index = int(owed.argmax())
        equals = owed >= owed[index] - _EVEN
        if np.count_nonzero(equals) > 1:
            index = int(np.where(equals, self._in_flight / self._weight, np.inf).argmin())
        self._owed[index] -= 1
        return index

    def _nearest(self, open_to: Flags) -> Flags:
        if self._prefer is None:
            return open_to
        near: Flags = open_to & self._near & (self._in_flight < self._batch)
        return near if np.count_nonzero(near) else open_to

    def _out_of_turn(self, index: int, open_to: Flags) -> None:
        self._owe(open_to)
        self._owed[index] -= 1
        np.clip(self._owed, -DEBT, DEBT, out=self._owed)

    def _owe(self, among: Flags) -> None:
        """Owe each of these its share of one request."""
        shares = self._weight * among
        self._owed += shares / shares.sum()

    # --- what became of it ---------------------------------------------------------------------------
    def ended(self, peer: Peer) -> None:
        """The request is no longer in flight, however it ended. Comes last."""
        self._in_flight[self._index[peer.key]] -= 1

    def answered(self, peer: Peer) -> None:
        """It gave an answer: a breaker closes."""
        index = self._index[peer.key]
        self._failures[index], self._shut_until[index] = 0, 0.0

    def failed(self, peer: Peer, now_s: float) -> None:
        """It gave none, or broke off."""
        index = self._index[peer.key]
        self._failures[index] += 1
        over = int(self._failures[index]) - FAILURES
        if over >= 0:
            self._shut_until[index] = now_s + min(OPEN_S * 2.0 ** min(over, 30), OPEN_LIMIT_S)

    def abandoned(self, peer: Peer) -> None:
        """Nobody waits for its answer any more, which says nothing about it: another may be the trial."""
        index = self._index[peer.key]
        if self._failures[index] >= FAILURES:
            self._shut_until[index] = 0.0

    def elsewhere(self, peer: Peer, now_s: float) -> None:
        """It drains, and says so before the plan does: an answer, too."""
        index = self._index[peer.key]
        self._failures[index], self._shut_until[index] = 0, now_s + ELSEWHERE_S
