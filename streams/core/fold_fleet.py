"""The nodes of one fleet partition: heartbeats in, node transitions out (house.md, law 9).

| input | of a node that is | output |
| --- | --- | --- |
| heartbeat | unknown, silent (the core may have given it up), or news | `NodeReported` |
| heartbeat | heard, nothing new; or older than one heard before | - |
| tick | heard, but not for `silent_after_ms` | `NodeSilent`, once |
| tick, `roll_call_after_ms` after catching up | | `RollCall`, once |
| tick, every `alive_every_ms` after catching up | | `FleetAlive` |

Time is the broker's: that of the partition's last record, plus what has passed here since, in ticks. A tick
moves it by at most `alive_every_ms`: whoever was stopped for longer did not listen, and learnt nothing about
silence. What lies on the partition from before the assignment, older than `silent_after_ms`, is no sign
of life and is passed over; a node that lives repeats its whole state every second.
"""

from dataclasses import dataclass, replace

from schemas.events import FleetAlive, Heartbeat, NodeReported, NodeSilent, RollCall
from schemas.settings import FoldSettings

FORGET_AFTER_MS = 3_600_000
"""A node not heard for so long is forgotten; should it speak again, it is reported anew."""

Transition = NodeReported | NodeSilent | RollCall | FleetAlive


@dataclass(frozen=True, slots=True)
class _Node:
    boot: str
    at_ms: int
    news: str
    heard_ms: int
    """Broker time."""
    silent: bool = False


class FleetPartition:
    """Who is heard on one partition since its reader was assigned it."""

    def __init__(self, partition: int, rules: FoldSettings) -> None:
        self.partition = partition
        self.rules = rules
        self._nodes: dict[str, _Node] = {}
        self._broker_ms = 0
        self._now_ms: int | None = None
        self._caught_up = False
        self._listened_ms = 0
        self._alive_ms = 0
        self._called = False

    def catch_up(self, now_ms: int) -> None:
        """All that lay on the partition when it was assigned has been read."""
        if not self._caught_up:
            self._caught_up = True
            self._pass_time(now_ms)
            self._listened_ms = 0

    def hear(self, report: Heartbeat, broker_ms: int, now_ms: int) -> tuple[Transition, ...]:
        """A heartbeat that the broker stamped `broker_ms`, read at `now_ms` of the reader's clock."""
        if not self._caught_up and now_ms - broker_ms > self.rules.silent_after_ms:
            return ()
        self._pass_time(now_ms)
        self._broker_ms = broker_ms
        known = self._nodes.get(report.node)
        if known and known.boot == report.boot and report.at_ms < known.at_ms:
            return ()
        node = _Node(report.boot, report.at_ms, report.news, broker_ms)
        self._nodes[report.node] = node
        if known is None or known.silent or known.news != node.news:
            return (NodeReported(partition=self.partition, report=report),)
        return ()

    def tick(self, now_ms: int) -> tuple[Transition, ...]:
        """Time passes; `now_ms` is the reader's clock. Called more often than `alive_every_ms`."""
        if not self._caught_up:
            return ()
        self._pass_time(now_ms)
        events: list[Transition] = list(self._silent())
        if not self._called and self._listened_ms >= self.rules.roll_call_after_ms:
            self._called = True
            present = sorted(self._nodes)
            events.append(RollCall(partition=self.partition, nodes=tuple(present)))
        if self._listened_ms - self._alive_ms >= self.rules.alive_every_ms:
            self._alive_ms = self._listened_ms
            count = sum(not node.silent for node in self._nodes.values())
            events.append(FleetAlive(partition=self.partition, count=count))
        return tuple(events)

    def _pass_time(self, now_ms: int) -> None:
        before_ms = now_ms if self._now_ms is None else self._now_ms
        passed_ms = min(max(now_ms - before_ms, 0), self.rules.alive_every_ms)
        self._now_ms = now_ms
        self._listened_ms += passed_ms
        self._broker_ms += passed_ms

    def _silent(self) -> list[Transition]:
        events: list[Transition] = []
        for name, node in list(self._nodes.items()):
            unheard_ms = self._broker_ms - node.heard_ms
            if unheard_ms > FORGET_AFTER_MS:
                del self._nodes[name]
            elif not node.silent and unheard_ms > self.rules.silent_after_ms:
                self._nodes[name] = replace(node, silent=True)
                events.append(NodeSilent(partition=self.partition, node=name, last_heard_ms=node.heard_ms))
        return events
