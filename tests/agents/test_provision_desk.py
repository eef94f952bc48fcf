"""What is done about claims, said once, and repeated after a crash."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest
from opentelemetry import propagate

from agents.bus import Bus
from agents.provision import Gone, Provisioner, Refused
from agents.provision_desk import DEFAULT_PACE, Desk, Pace
from agents.provision_run import run_provisioner
from schemas.base import Frozen
from schemas.events import (
    AvailabilityOffered,
    ClaimGranted,
    ClaimRefused,
    ClaimReleased,
    NodeGone,
)
from schemas.topics import Topic
from tests.agents.clouds import Cloud, claim, plan


@dataclass
class Said:
    """Stands for the bus: keeps what was sent."""

    events: list[Frozen] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)
    """The traceparent that each would go out with."""

    async def send(
        self, topic: Topic, event: Frozen, *, key: str | None = None, event_id: str | None = None
    ) -> None:
        assert event_id
        assert (topic.name, key is None) in {("control", True), ("availability", False)}
        self.events.append(event)
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        self.traces.append(carrier.get("traceparent", ""))

    def take(self, *kinds: type[Frozen]) -> list[Frozen]:
        taken = [event for event in self.events if not kinds or isinstance(event, kinds)]
        self.events.clear()
        return taken


class Now:
    ms = 1_000

    def __call__(self) -> int:
        return self.ms


def desk_of(cloud: Provisioner, said: Said, now: Now | None = None, pace: Pace = DEFAULT_PACE) -> Desk:
    return Desk(cast("Bus", said), cloud, now or Now(), pace)


CONTROL = (ClaimGranted, ClaimRefused, ClaimReleased, NodeGone)


async def test_a_refused_claim_is_said_once_and_leaves_nothing() -> None:
    """kubernetes/autoscaler#5170: 3 of an instance's 4 nodes come. The core then drops all four."""
    cloud, said = Cloud(size=3), Said()
    desk = desk_of(cloud, said)
    four = plan(*(claim(f"c{i}") for i in range(4)))
    await desk.round(four)
    assert [type(event) for event in said.take(*CONTROL)] == [ClaimGranted] * 3 + [ClaimRefused]
    assert "c3" not in cloud.nodes
    await desk.round(four)
    assert said.take() == []
    await desk.round(plan(sequence=2))
    assert [type(event) for event in said.take(*CONTROL)] == [ClaimReleased] * 3
    assert cloud.nodes == {}


async def test_before_any_plan_nothing_is_released() -> None:
    cloud, said = Cloud(size=3, nodes={"c1": "n-c1"}), Said()
    await desk_of(cloud, said).round(None)
    assert said.take(*CONTROL) == []
    assert cloud.nodes == {"c1": "n-c1"}


async def test_after_a_restart_held_claims_are_granted_again() -> None:
    cloud, said = Cloud(size=3), Said()
    await desk_of(cloud, said).round(plan(claim("c1")))
    await desk_of(cloud, said).round(plan(claim("c1")))
    assert said.take(*CONTROL) == [ClaimGranted(claim="c1", node="n-c1")] * 2
    await desk_of(cloud, said).round(plan(claim("c1", "n-c1")))
    assert said.take(*CONTROL) == []


async def test_what_is_said_of_a_claim_goes_on_with_the_trace_of_its_plan() -> None:
    said, trace = Said(), "0af7651916cd43dd8448eb211c80319c"
    headers = [("traceparent", f"00-{trace}-b7ad6b7169203331-01".encode())]
    await desk_of(Cloud(size=1), said).round(plan(claim("c1"), claim("c2")), headers)
    assert [type(event) for event in said.events] == [ClaimGranted, ClaimRefused, AvailabilityOffered]
    assert [trace in parent for parent in said.traces] == [True, True, False]


async def test_a_lost_node_is_reported_once_and_its_claim_gets_no_other() -> None:
    cloud, said = Cloud(size=3), Said()
    desk = desk_of(cloud, said)
    await desk.round(plan(claim("c1")))
    said.take()
    cloud.lost = [Gone("c1", "n-c1", "preempted")]
    for known in (claim("c1"), claim("c1", "n-c1")):
        await desk.round(plan(known))
    assert said.take(*CONTROL) == [NodeGone(node="n-c1", claim="c1", reason="preempted")]
    assert cloud.nodes == {}


async def test_a_node_that_is_not_held_is_missed() -> None:
    said = Said()
    await desk_of(Cloud(size=3), said).round(plan(claim("c1", "n-c1")))
    assert said.take(*CONTROL) == [NodeGone(node="n-c1", claim="c1", reason="not held by its provisioner")]


async def test_a_release_under_way_is_asked_for_again() -> None:
    cloud, said = Cloud(size=3, nodes={"c1": "n-c1"}, slow=True), Said()
    desk = desk_of(cloud, said)
    await desk.round(plan(claim("c1", "n-c1")))
    await desk.round(plan(sequence=2))
    assert said.take(*CONTROL) == []
    cloud.slow = False
    await desk.round(plan(sequence=2))
    assert said.take(*CONTROL) == [ClaimReleased(claim="c1", node="n-c1")]


async def test_claims_of_other_places_are_left_alone() -> None:
    said = Said()
    await desk_of(Cloud(size=3), said).round(plan(claim("c1", configuration="8xH100")))
    assert said.take(*CONTROL) == []


async def test_stock_is_offered_on_a_change_and_again_after_a_while() -> None:
    cloud, said, now = Cloud(size=2), Said(), Now()
    desk = desk_of(cloud, said, now)
    told: list[tuple[int, int]] = []
    for at_ms, wanted in (
        (1_000, ()),
        (2_000, ()),
        (3_000, (claim("c1"),)),
        (7_900, (claim("c1"),)),
        (8_000, ()),
    ):
        now.ms = at_ms
        await desk.round(plan(*wanted, sequence=at_ms))
        told += [(at_ms, event.obtainable) for event in said.take() if isinstance(event, AvailabilityOffered)]
    assert told == [(1_000, 2), (3_000, 1), (8_000, 2)]
    for at_ms in (12_999, 13_000):
        now.ms = at_ms
        await desk.round(plan(sequence=8_000))
    assert len(said.take(AvailabilityOffered)) == 1


# --- what takes long ---------------------------------------------------------------------------------
AT_ONCE = Pace(patience_s=0.0, creations=2)


async def turn() -> None:
    """Let everything go on that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_nodes_that_take_minutes_hold_up_nothing_else() -> None:
    cloud, said = Cloud(size=9, nodes={"c0": "n-c0"}, minutes=asyncio.Event()), Said()
    desk = desk_of(cloud, said, pace=AT_ONCE)
    five = [claim(f"c{i}") for i in range(1, 6)]
    await desk.round(plan(claim("c0", "n-c0"), *five))
    await turn()
    assert cloud.asked == ["c1", "c2"]  # two at a time
    cloud.lost = [Gone("c0", "n-c0", "preempted")]
    await desk.round(plan(claim("c0", "n-c0"), *five))
    assert said.take(*CONTROL) == [NodeGone(node="n-c0", claim="c0", reason="preempted")]
    assert cloud.minutes is not None
    cloud.minutes.set()
    for _ in range(3):
        await turn()
        await desk.round(plan(*five))
    await turn()
    assert cloud.asked == [f"c{i}" for i in range(1, 6)]  # each once
    assert said.take(*CONTROL) == [ClaimGranted(claim=f"c{i}", node=f"n-c{i}") for i in range(1, 6)]


async def test_a_node_that_is_wanted_no_more_while_it_is_made_is_given_back_once_it_is_there() -> None:
    cloud, said = Cloud(size=1, minutes=asyncio.Event()), Said()
    desk = desk_of(cloud, said, pace=AT_ONCE)
    await desk.round(plan(claim("c1")))
    for sequence in (2, 3):
        await desk.round(plan(sequence=sequence))
    assert said.take(*CONTROL) == []
    assert cloud.minutes is not None
    cloud.minutes.set()
    await turn()
    await desk.round(plan(sequence=3))
    await turn()
    ended = [ClaimGranted(claim="c1", node="n-c1"), ClaimReleased(claim="c1", node="n-c1")]
    assert said.take(*CONTROL) == ended
    assert cloud.nodes == {}


async def test_who_stops_in_the_middle_leaves_the_node_to_the_next() -> None:
    cloud, said = Cloud(size=1, minutes=asyncio.Event()), Said()
    desk = desk_of(cloud, said, pace=AT_ONCE)
    await desk.round(plan(claim("c1")))
    await turn()
    await desk.close()
    assert cloud.minutes is not None
    cloud.minutes.set()
    await desk_of(cloud, said).round(plan(claim("c1")))
    assert said.take(*CONTROL) == [ClaimGranted(claim="c1", node="n-c1")]


async def test_a_cloud_that_does_not_answer_is_asked_less_and_less_often_and_nothing_is_concluded() -> None:
    cloud, said, now = Cloud(size=1, nodes={"c1": "n-c1"}, away=True), Said(), Now()
    desk, wanted = desk_of(cloud, said, now), plan(claim("c1", "n-c1"), claim("c2", "n-c2"))
    for wait_ms in (1_000, 2_000, 4_000):
        await desk.round(wanted)
        now.ms += wait_ms - 1
        cloud.away = False
        await desk.round(wanted)
        assert said.take() == []
        cloud.away = True
        now.ms += 1
    cloud.away = False
    await desk.round(wanted)
    assert said.take(*CONTROL) == [NodeGone(node="n-c2", claim="c2", reason="not held by its provisioner")]


async def test_a_creation_without_an_answer_is_no_refusal() -> None:
    cloud, said, now = Cloud(size=1, minutes=asyncio.Event()), Said(), Now()
    desk = desk_of(cloud, said, now, AT_ONCE)
    await desk.round(plan(claim("c1")))
    assert cloud.minutes is not None
    cloud.minutes.set()
    cloud.away = True
    await turn()
    cloud.away = False
    await desk.round(plan(claim("c1")))  # hears of it
    now.ms += 1_000
    await desk.round(plan(claim("c1")))
    await turn()
    assert said.take(*CONTROL) == [ClaimGranted(claim="c1", node="n-c1")]
    assert cloud.asked == ["c1", "c1"]


async def test_a_mistake_of_ours_ends_the_desk() -> None:
    cloud = Cloud(size=1, nodes={"c1": "n-c1"})
    cloud.refusal = cast("Refused", KeyError("bug"))
    with pytest.raises(KeyError):
        await desk_of(cloud, Said()).round(plan(claim("c2")))


# --- refusals ----------------------------------------------------------------------------------------
async def test_a_place_that_refused_is_not_asked_again_for_a_while_and_has_nothing_to_offer() -> None:
    cloud, said, now = Cloud(size=0), Said(), Now()
    desk = desk_of(cloud, said, now)
    told = []
    for sequence, at_ms in enumerate((1_000, 3_000, 6_000, 16_000), start=1):
        now.ms = at_ms
        await desk.round(plan(claim(f"c{sequence}"), sequence=sequence))
        told += [event.retry_after_ms for event in said.take(ClaimRefused) if isinstance(event, ClaimRefused)]
    assert cloud.asked == ["c1", "c3", "c4"]
    assert told == [5_000, 3_000, 10_000, 20_000]

    cloud.size = 2
    await desk.round(plan(sequence=5))
    now.ms += 19_999
    await desk.round(plan(sequence=5))
    now.ms += 1
    await desk.round(plan(claim("c5"), sequence=6))
    offers = [event.obtainable for event in said.events if isinstance(event, AvailabilityOffered)]
    assert offers == [0, 1]  # said again, then what is left
    assert said.take(*CONTROL) == [ClaimGranted(claim="c5", node="n-c5")]


async def test_a_terminal_refusal_is_said_as_such_and_stands_until_a_restart() -> None:
    cloud, said, now = Cloud(size=0, refusal=Refused("quota is 0", terminal=True)), Said(), Now()
    desk = desk_of(cloud, said, now)
    await desk.round(plan(claim("c1")))
    cloud.size, now.ms = 1, now.ms + 86_400_000
    await desk.round(plan(claim("c2"), sequence=2))
    refused = [ClaimRefused(claim=name, reason="quota is 0", terminal=True) for name in ("c1", "c2")]
    assert [event for event in said.events if isinstance(event, ClaimRefused)] == refused
    assert {event.obtainable for event in said.events if isinstance(event, AvailabilityOffered)} == {0}
    assert cloud.asked == ["c1"]
    said.take()
    await desk_of(cloud, said, now).round(plan(claim("c3"), sequence=3))
    assert said.take(*CONTROL) == [ClaimGranted(claim="c3", node="n-c3")]


# --- nodes that nobody claims, and nodes of others ---------------------------------------------------
async def test_an_unclaimed_node_is_given_back_after_three_plans() -> None:
    """It was held before this process began, so it may be one that the leader is about to claim."""
    cloud, said = Cloud(size=2, nodes={"c1": "n-c1"}), Said()
    desk = desk_of(cloud, said)
    for sequence in (1, 2, 2, 2):
        await desk.round(plan(sequence=sequence))
        assert said.take(*CONTROL) == []
    await desk.round(plan(sequence=3))
    assert said.take(*CONTROL) == [ClaimReleased(claim="c1", node="n-c1")]


async def test_nothing_is_given_back_while_the_controller_is_blind() -> None:
    cloud, said = Cloud(size=2, nodes={"c1": "n-c1", "c2": "n-c2"}), Said()
    desk = desk_of(cloud, said)
    await desk.round(plan(claim("c1", "n-c1")))
    for sequence in (2, 3, 4, 5):
        await desk.round(plan(sequence=sequence, blind=True))
    assert said.take(*CONTROL) == []
    await desk.round(plan(sequence=6))
    assert said.take(*CONTROL) == [ClaimReleased(claim="c1", node="n-c1")]


async def test_another_fleets_plan_moves_nothing() -> None:
    cloud, said = Cloud(size=2, nodes={"c1": "n-c1"}), Said()
    desk = desk_of(cloud, said)
    await desk.round(plan(claim("c1", "n-c1")))
    for sequence in (2, 3, 4):
        await desk.round(plan(claim("c2"), sequence=sequence, fleet="other"))
    assert said.take(*CONTROL) == []
    assert cloud.asked == []


async def test_two_provisioners_may_not_share_a_place() -> None:
    with pytest.raises(ValueError, match=r"1xL4 in gcp/us-central1/\*/reserved: covered by a and by b"):
        await run_provisioner(cast("Bus", Said()), [Cloud(1, name="a"), Cloud(1, name="b")])
