"""What to do about claims and nodes. Pure: plans, times and answers come in, decisions go out."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from agents.provision import Place, Refused
from schemas.plans import Claim, Order, Plan


# --- what to do ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Release:
    claim: str
    node: str


@dataclass(frozen=True)
class Grant:
    """A node is held that the plan does not know of yet: say it."""

    claim: str
    node: str


@dataclass(frozen=True)
class Miss:
    """The plan counts on a node, or was told of one, that is not held."""

    claim: str
    node: str


@dataclass(frozen=True)
class Create:
    claim: Claim


Action = Release | Grant | Miss | Create


@dataclass
class Answers:
    """What was said of claims since this process started; to say it again after a restart does no harm."""

    granted: dict[str, str] = field(default_factory=dict)
    """Claim -> node."""
    ended: set[str] = field(default_factory=set)
    """Refused, or lost: such a claim never gets another node. The core makes a new claim."""

    def keep(self, claims: Collection[str]) -> None:
        """Forget all others."""
        self.granted = {claim: node for claim, node in self.granted.items() if claim in claims}
        self.ended &= set(claims)


def reconcile(
    wanted: Iterable[Claim],
    held: Mapping[str, str],
    said: Answers,
    *,
    busy: Collection[str] = (),
    over: Collection[str] = (),
) -> tuple[Action, ...]:
    """What turns `held` into what is wanted, releases first, so that what they free can be had again.

    Args:
        wanted: the claims of the newest plan that this provisioner covers.
        held: claim -> node.
        busy: claims that something is being done about.
        over: claims whose node may be given back (`Absences`).
    """
    claims = {claim.id: claim for claim in wanted}
    releases = [
        Release(claim, node)
        for claim, node in held.items()
        if claim in over and claim not in claims and claim not in busy
    ]
    answers = (
        _answer(claim, held.get(claim.id), said)
        for claim in claims.values()
        if claim.id not in busy and claim.id not in said.ended
    )
    return (*releases, *(answer for answer in answers if answer is not None))


def _answer(claim: Claim, node: str | None, said: Answers) -> Action | None:
    known = said.granted.get(claim.id, claim.node)
    if node is not None:
        return None if node == known else Grant(claim.id, node)
    return Create(claim) if known is None else Miss(claim.id, known)


# --- when a node may be given back ---------------------------------------------------------------------
PATIENCE = 3
"""Plans in a row that must lack the claim of a node that we know nothing else about."""


@dataclass(frozen=True)
class Absences:
    """What the plans of one leader (one lineage and epoch) say of nodes whose claim they do not have.

    The core takes a claim out of the plan when nothing runs on its node any more, or when the node is lost
    to it. So a claim that this leader's plans had, and have no more, is over at once. Any other node with our
    tag (of before we listened, of an earlier leader, of a log that was re-created, made by hand) may be one
    that the leader does not know of yet: its claim must be absent from `PATIENCE` plans in a row.

    Nothing is over while the controller is blind; and what was heard before does not count in a row with what
    comes after.
    """

    order: Order = (0, 0, 0)
    had: frozenset[str] = frozenset()
    """Claims that a plan of this leader had, as long as their node is held or being made."""
    last: tuple[frozenset[str], ...] = ()
    """Claims of the last plans in a row, at most `PATIENCE`, the newest at the end."""

    def hear(self, plan: Plan, held: Collection[str]) -> Self:
        """Take a plan; one that is not newer says nothing. `held` are claims with a node, or one to come."""
        if plan.order <= self.order:
            return self
        same = plan.order[:2] == self.order[:2]
        claims = frozenset(claim.id for claim in plan.claims)
        before = self.had & frozenset(held) if same else frozenset()
        row = (*(self.last if same else ()), claims)[-PATIENCE:]
        return type(self)(plan.order, before | claims, () if plan.blind else row)

    def over(self, held: Collection[str]) -> frozenset[str]:
        """Those of the held claims whose node may be given back."""
        if not self.last:
            return frozenset()
        absent = frozenset(held) - self.last[-1]
        if len(self.last) == PATIENCE:
            return absent.difference(*self.last) | (absent & self.had)
        return absent & self.had


# --- places that refused -------------------------------------------------------------------------------
LONGEST_MS = 15 * 60_000


@dataclass(frozen=True)
class _Refusal:
    said: Refused
    at_ms: int
    wait_ms: int

    @property
    def until_ms(self) -> int:
        return self.at_ms + self.wait_ms


class Refusals:
    """Places that refused are not asked again for a while, twice as long after each refusal in a row.

    A creation that began before the last refusal says nothing new about its place: several may be under way.
    """

    def __init__(self) -> None:
        self._last: dict[Place, _Refusal] = {}

    def note(self, place: Place, refused: Refused, *, began_ms: int, now_ms: int) -> None:
        last = self._last.get(place)
        if last is not None and began_ms <= last.at_ms and not refused.terminal:
            return
        wait_ms = refused.retry_after_ms
        if last is not None and now_ms < last.until_ms + LONGEST_MS:  # else it is long ago
            wait_ms = max(wait_ms, min(2 * last.wait_ms, LONGEST_MS))
        self._last[place] = _Refusal(refused, now_ms, wait_ms)

    def had(self, place: Place, *, began_ms: int) -> None:
        """There was a node."""
        last = self._last.get(place)
        if last is not None and began_ms > last.at_ms:
            del self._last[place]

    def standing(self, place: Place, now_ms: int) -> Refused | None:
        """What to answer without asking."""
        last = self._last.get(place)
        if last is None:
            return None
        if last.said.terminal:
            return last.said
        left_ms = last.until_ms - now_ms
        return Refused(last.said.reason, retry_after_ms=left_ms) if left_ms > 0 else None
