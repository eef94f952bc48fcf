"""Nodes of a fleet partition: transitions, never a verdict; missing is not gone, old is not alive."""

from schemas.events import (
    FleetAlive,
    Heartbeat,
    NodeReported,
    NodeSilent,
    RollCall,
    StageReport,
)
from schemas.problems import Pool
from schemas.settings import FoldSettings
from streams.core.fold_fleet import FORGET_AFTER_MS, FleetPartition, Transition

T0 = 1_700_000_000_000
RULES = FoldSettings(silent_after_ms=4_000, roll_call_after_ms=5_000, alive_every_ms=2_000)
POOL = Pool(cloud="gcp", region="us-central1", market="spot")
SKEW_MS = 90_000
"""The reader's clock runs ahead of the broker's by this much; only what is from before shall notice."""


class Partition:
    """A fleet partition in broker time (seconds after T0), read without delay by a skewed clock."""

    def __init__(self, *, caught_up: bool = True) -> None:
        self.fleet = FleetPartition(2, RULES)
        self.now_s = 0.0
        if caught_up:
            self.fleet.catch_up(self._reader_ms(0))

    def _reader_ms(self, at_s: float) -> int:
        return T0 + SKEW_MS + round(at_s * 1000)

    def hear(self, at_s: float, **given: object) -> tuple[Transition, ...]:
        broker_ms = T0 + round(at_s * 1000)
        return self.fleet.hear(heartbeat(at_s, **given), broker_ms, self._reader_ms(at_s))

    def tick(self, at_s: float) -> tuple[Transition, ...]:
        """Ticks every half second up to then; all they brought about."""
        said: list[Transition] = []
        while self.now_s < at_s:
            self.now_s += 0.5
            said += self.fleet.tick(self._reader_ms(self.now_s))
        return tuple(said)


def heartbeat(at_s: float, **given: object) -> Heartbeat:
    said = {"node": "n1", "boot": "b1", "at_ms": T0 + round(at_s * 1000), "pool": POOL}
    said |= {"configuration": "2xL4", "devices": 2, "memory_gb": 48.0}
    return Heartbeat.model_validate(said | given)


def without_calls(said: tuple[Transition, ...]) -> list[Transition]:
    return [event for event in said if not isinstance(event, FleetAlive | RollCall)]


def test_news_is_reported_and_the_same_again_is_not() -> None:
    partition = Partition()
    stage = StageReport(instance="i", attempt=1, stage=0, state="ready")
    assert partition.hear(0) == (NodeReported(partition=2, report=heartbeat(0)),)
    assert partition.hear(1) == ()
    assert partition.hear(2, stages=(stage,)) == (
        NodeReported(partition=2, report=heartbeat(2, stages=(stage,))),
    )
    busy = stage.model_copy(update={"in_flight": 3})
    assert partition.hear(3, stages=(busy,), plan="p9") == ()


def test_silence_is_said_once_and_so_is_its_end() -> None:
    partition = Partition()
    partition.hear(0)
    assert without_calls(partition.tick(4)) == []
    assert without_calls(partition.tick(9)) == [NodeSilent(partition=2, node="n1", last_heard_ms=T0)]
    assert partition.hear(9.1) == (NodeReported(partition=2, report=heartbeat(9.1)),)
    assert partition.hear(9.2) == ()


def test_a_silent_node_that_returns_with_news_is_reported() -> None:
    partition = Partition()
    partition.hear(0)
    partition.tick(9)
    assert partition.hear(9, boot="b2") == (NodeReported(partition=2, report=heartbeat(9, boot="b2")),)


def test_an_older_heartbeat_overrides_nothing_and_is_no_sign_of_life() -> None:
    partition = Partition()
    partition.hear(5, at_ms=T0 + 5_000)
    assert partition.hear(5.1, at_ms=T0 + 4_000, leaving=True) == ()
    partition.now_s = 5
    assert without_calls(partition.tick(12)) == [NodeSilent(partition=2, node="n1", last_heard_ms=T0 + 5_000)]


def test_a_node_that_leaves_is_listened_to_until_it_is_silent() -> None:
    partition = Partition()
    partition.hear(0)
    assert [type(e) for e in partition.hear(1, leaving=True)] == [NodeReported]
    assert partition.hear(2, leaving=True) == ()
    partition.tick(4)
    assert without_calls(partition.tick(12)) == [NodeSilent(partition=2, node="n1", last_heard_ms=T0 + 2_000)]


def test_other_nodes_move_the_time_that_silence_is_measured_in() -> None:
    partition = Partition()
    partition.hear(0)
    for s in range(1, 7):
        partition.hear(s, node="n2")
    partition.now_s = 6
    assert without_calls(partition.tick(6.5)) == [NodeSilent(partition=2, node="n1", last_heard_ms=T0)]


def test_roll_call_once_and_alive_every_2_s() -> None:
    partition = Partition()
    for s in range(12):
        partition.hear(s)
        partition.hear(s, node="n0")
        said = partition.tick(s + 1)
        assert [e for e in said if isinstance(e, RollCall)] == (
            [RollCall(partition=2, nodes=("n0", "n1"))] if s == 4 else []
        )
        assert [e for e in said if isinstance(e, FleetAlive)] == (
            [FleetAlive(partition=2, count=2)] if s % 2 else []
        )


def test_an_empty_partition_is_alive_with_nobody() -> None:
    assert Partition().tick(5) == (
        FleetAlive(partition=2, count=0),
        FleetAlive(partition=2, count=0),
        RollCall(partition=2, nodes=()),
    )


def test_while_old_records_are_read_nobody_is_alive() -> None:
    partition = Partition(caught_up=False)
    assert partition.hear(0) == (), "from before, and old by the reader's clock"
    assert partition.tick(20) == ()
    partition.fleet.catch_up(partition._reader_ms(20))
    assert [e.nodes for e in partition.tick(26) if isinstance(e, RollCall)] == [()]


def test_a_recent_record_from_before_is_a_sign_of_life() -> None:
    """A rebalance takes a second or two; who spoke meanwhile is heard, and its last words are not lost."""
    fleet = FleetPartition(2, RULES)
    said = fleet.hear(heartbeat(0, leaving=True), T0, T0 + 3_000)
    assert said == (NodeReported(partition=2, report=heartbeat(0, leaving=True)),)


def test_a_reader_that_was_stopped_learnt_nothing_about_silence() -> None:
    partition = Partition()
    partition.hear(0)
    partition.tick(1)
    assert without_calls(partition.fleet.tick(partition._reader_ms(3600))) == []
    assert partition.hear(1.5) == ()


def test_a_clock_set_back_is_no_harm() -> None:
    partition = Partition()
    partition.hear(0)
    assert partition.fleet.tick(T0 - 86_400_000) == ()


def test_who_is_not_heard_for_an_hour_is_forgotten() -> None:
    partition = Partition()
    partition.hear(0)
    partition.tick(10)
    partition.hear(1 + FORGET_AFTER_MS / 1000, node="n2")
    partition.fleet.tick(partition._reader_ms(2 + FORGET_AFTER_MS / 1000))
    assert set(partition.fleet._nodes) == {"n2"}
