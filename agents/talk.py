"""What the guards of one attempt of an instance say to each other, and what follows from it. Pure.

A guard says all it has to say in one `Word`, every beat and at once when it changes: what was lost, doubled
or late heals with the next one. Laws:

1. Nobody goes before all ranks were heard with the same facts; all go with the port that the head picked.
2. The first reason to stop counts: an abort of any guard, a guard that leaves, one that never comes, one
   that falls silent. The head passes it on; nothing takes it back.
3. Once the head told the end, silence and goodbyes are in order.
4. A word counts only from the key of the rank it speaks for, for this attempt, and only if it is newer than
   all before it. Everything else is dropped and counted.
5. A guard that was itself stopped or starved does not take that time for the silence of others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pydantic import ConfigDict, Field, ValidationError

from schemas.base import Count, Frozen, Name
from schemas.catalog import Whole
from schemas.events import Refusal

ENGINE_FACT = "engine"
"""The fact whose difference is a refusal (`engine_version`); of any other it is a failure."""
MAX_REASON = 2000
"""Characters."""
MAX_WORD_BYTES = 65_536


class Member(NamedTuple):
    """A rank of the instance: its stage's index, and its place in that stage's list of ranks."""

    stage: int
    rank: int

    def __str__(self) -> str:
        if self == HEAD:
            return "the head"
        return f"stage {self.stage}" + (f" rank {self.rank}" if self.rank else "")


HEAD = Member(0, 0)


class Stop(Frozen):
    """Why the instance cannot run, or go on."""

    model_config = ConfigDict(extra="ignore")
    reason: Annotated[str, Field(max_length=MAX_REASON)]
    refusal: Refusal | None = None


class Word(Frozen):
    """All that one guard has to say. Fields that a newer guard adds are ignored."""

    model_config = ConfigDict(extra="ignore")
    instance: Name
    attempt: Whole
    stage: Count
    rank: Count
    number: Whole
    """Rises with every word of its speaker."""
    heard: Count = 0
    """Number of the newest word of the one it is said to."""
    facts: dict[str, Annotated[str, Field(max_length=10_000)]] | None = None
    """What must be the same everywhere; None while the speaker is not ready to launch."""
    master_port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """The head's: go."""
    up: bool = False
    """The head's: the instance was admitted."""
    end: bool = False
    """The head's: its engine has ended in order, end yours."""
    stop: Stop | None = None


@dataclass
class _Peer:
    """What is known of another guard."""

    key: str
    heard_s: float | None = None
    word: Word | None = None
    """Its newest."""

    @property
    def number(self) -> int:
        return 0 if self.word is None else self.word.number

    @property
    def has_heard(self) -> int:
        return 0 if self.word is None else self.word.heard


class Talk:
    """The state of one guard's talk. Times are seconds of any clock that only goes on."""

    def __init__(
        self,
        instance: str,
        attempt: int,
        me: Member,
        keys: Mapping[Member, str],
        *,
        now: float,
        beat_s: float,
        silent_after_s: float,
        gather_s: float,
    ) -> None:
        """
        Args:
            keys: every rank of the instance, this one too, and the public key of its node.
        """
        self.master_port: int | None = None
        self.up = False
        """The instance was admitted."""
        self.ending = False
        """The end was told: by us at the head, to us elsewhere."""
        self.stop: Stop | None = None
        self.dropped = 0
        self.has_news = True
        """There is something that the others should hear before the next beat."""
        self._of = (instance, attempt)
        self._me = me
        others = [member for member in keys if member != me]
        self._peers = {m: _Peer(keys[m]) for m in others if HEAD in (m, me)}
        self._facts: dict[str, str] | None = None
        self._number = 0
        self._news_number = 1
        """Of the first word that says what we say now."""
        self._began_s = self._ticked_s = now
        self._beat_s = beat_s
        self._silent_after_s = silent_after_s
        self._gather_s = gather_s

    # --- what happens ------------------------------------------------------------------------------
    def hear(self, key: str, raw: bytes, now: float) -> Member | None:
        """A message came from the holder of `key`: whose word it is, or None if it was dropped."""
        try:
            word = Word.model_validate_json(raw)
        except ValidationError:
            self.dropped += 1
            return None
        member = Member(word.stage, word.rank)
        peer = self._peers.get(member)
        of = (word.instance, word.attempt)
        if peer is None or peer.key != key or of != self._of or word.number <= peer.number:
            self.dropped += 1
            return None
        if peer.word is None or _content(peer.word) != _content(word):
            self.has_news = True  # at least that we have heard it
        peer.word, peer.heard_s = word, now
        self._follow(word)
        return member

    def tick(self, now: float) -> None:
        """A beat has passed; with it somebody may be overdue."""
        starved_s = max(0.0, now - self._ticked_s - 2 * self._beat_s)
        self._ticked_s = now
        self._began_s += starved_s
        for member, peer in self._peers.items():
            if peer.heard_s is None:
                if now - self._began_s > self._gather_s:
                    self._stop(Stop(reason=f"{member} never came within {self._gather_s:g} s"))
                continue
            peer.heard_s = min(now, peer.heard_s + starved_s)
            if now - peer.heard_s > self._silent_after_s:
                self._stop(Stop(reason=f"{member} was silent for {self._silent_after_s:g} s"))

    def offer(self, facts: Mapping[str, str]) -> None:
        """We are ready to launch, with these facts."""
        self._facts = dict(facts)
        self._change()
        self._compare()

    def go(self, master_port: int) -> None:
        """At the head, when all agree."""
        self.master_port = master_port
        self._change()

    def admit(self) -> None:
        """At the head: the instance may serve."""
        self.up = True
        self._change()

    def abort(self, reason: str) -> None:
        """We cannot go on."""
        self._stop(Stop(reason=reason[:MAX_REASON]))

    def end(self) -> None:
        """At the head: the others are to end their engines."""
        self.ending = True
        self._change()

    # --- what there is to know ---------------------------------------------------------------------
    @property
    def all_agree(self) -> bool:
        """Whether every rank is ready, with the same facts. The head's to ask."""
        return self.stop is None and all(f is not None for f in (self._facts, *self._facts_of().values()))

    @property
    def outcome(self) -> Stop | int | None:
        """How the gathering ended: with the master port, or not at all."""
        return self.stop or self.master_port

    def all_heard(self, now: float) -> bool:
        """Whether all that listen have heard what we say now."""
        return all(
            peer.has_heard >= self._news_number
            for peer in self._peers.values()
            if peer.heard_s is not None and now - peer.heard_s <= self._silent_after_s
        )

    def words(self) -> dict[Member, Word]:
        """What to say now, and to whom."""
        self.has_news = False
        self._number += 1
        return {member: self._word(peer) for member, peer in self._peers.items()}

    # --- how it follows ----------------------------------------------------------------------------
    def _follow(self, word: Word) -> None:
        if word.stop is not None:
            self._stop(word.stop)
        if self._me != HEAD:
            self.up = self.up or word.up
            self.ending = self.ending or word.end
            self.master_port = self.master_port or word.master_port
        self._compare()

    def _compare(self) -> None:
        """The head compares, as soon as somebody's facts can be seen to differ from its own."""
        if self._me != HEAD or self._facts is None or self.master_port is not None:
            return
        others = {m: facts for m, facts in self._facts_of().items() if facts is not None}
        names = sorted(set(self._facts).union(*others.values()))
        wrong = {name: _difference(name, self._facts, others) for name in names}
        wrong = {name: text for name, text in wrong.items() if text}
        if wrong:
            refusal: Refusal | None = "engine_version" if ENGINE_FACT in wrong else None
            reason = f"the ranks differ in {'; '.join(wrong.values())}"
            self._stop(Stop(reason=reason[:MAX_REASON], refusal=refusal))

    def _facts_of(self) -> dict[Member, dict[str, str] | None]:
        return {member: peer.word.facts if peer.word else None for member, peer in self._peers.items()}

    def _stop(self, stop: Stop) -> None:
        if self.stop is None and not self.ending:
            self.stop = stop
            self._change()

    def _change(self) -> None:
        self._news_number = self._number + 1
        self.has_news = True

    def _word(self, peer: _Peer) -> Word:
        return Word(
            instance=self._of[0],
            attempt=self._of[1],
            stage=self._me.stage,
            rank=self._me.rank,
            number=self._number,
            heard=peer.number,
            facts=self._facts,
            master_port=self.master_port if self._me == HEAD else None,
            up=self.up and self._me == HEAD,
            end=self.ending and self._me == HEAD,
            stop=self.stop,
        )


def _content(word: Word) -> tuple[object, ...]:
    return (word.facts, word.master_port, word.up, word.end, word.stop)


def _difference(name: str, ours: Mapping[str, str], others: Mapping[Member, Mapping[str, str]]) -> str:
    """Empty where all have the same value of the fact `name`."""
    own = ours.get(name)
    wrong = [f"{f.get(name)!r} at {member}" for member, f in sorted(others.items()) if f.get(name) != own]
    return f"{name}: {', '.join(wrong)}, {own!r} at the head" if wrong else ""
