"""What is done about claims: decided purely, said once, repeated after a crash."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import propagate
from pydantic import ValidationError

from agents.bus import Bus
from agents.provision import Create, Gone, Grant, Miss, Place, Provisioner, Refused, Release, reconcile
from agents.provision_run import Desk, run_provisioner
from agents.provision_static import Inventory, StaticNode, StaticProvisioner
from schemas.base import Frozen
from schemas.events import (
    AvailabilityOffered,
    ClaimGranted,
    ClaimRefused,
    ClaimReleased,
    NodeGone,
)
from schemas.plans import Claim, Plan, Target
from schemas.problems import Pool
from schemas.topics import Topic
from schemas.yamlfile import load_yaml

POOL = Pool(cloud="gcp", region="us-central1", market="reserved")
PLACE: Place = (POOL, "1xL4")


def claim(name: str, node: str | None = None, configuration: str = "1xL4") -> Claim:
    return Claim(id=name, configuration=configuration, pool=POOL, usd_per_hour=0.7, node=node)


def plan(*claims: Claim, sequence: int = 1) -> Plan:
    target = Target(
        id="t1",
        reason="demand",
        cause_offset=1,
        problem="p1",
        inputs="0" * 16,
        method="test",
        usd_per_hour=0.7,
        bound_usd_per_hour=0.7,
        gap=0.0,
    )
    return Plan(fleet="t", lineage=1, epoch=1, sequence=sequence, at_ms=1, target=target, claims=claims)


# --- the decision ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("wanted", "held", "said", "actions"),
    [
        ([claim("c1")], {}, set(), [Create(claim("c1"))]),
        ([claim("c1")], {"c1": "n1"}, set(), [Grant("c1", "n1")]),
        ([claim("c1")], {"c1": "n1"}, {"c1"}, []),
        ([claim("c1", "n1")], {"c1": "n1"}, set(), []),
        ([claim("c1", "n1")], {}, set(), [Miss("c1", "n1")]),
        ([claim("c1")], {}, {"c1"}, []),  # refused, or lost before the plan knew of it
        ([], {"c1": "n1"}, {"c1"}, [Release("c1", "n1")]),
        ([claim("c2")], {"c1": "n1"}, set(), [Release("c1", "n1"), Create(claim("c2"))]),
    ],
)
def test_reconcile(wanted: list[Claim], held: dict[str, str], said: set[str], actions: list[object]) -> None:
    assert list(reconcile(wanted, held, said)) == actions


names = st.sampled_from([f"c{i}" for i in range(8)])


@given(st.sets(names), st.sets(names), st.sets(names))
def test_reconcile_settles(wanted: set[str], held: set[str], said: set[str]) -> None:
    """What it asks for, once done, leaves nothing to ask for; releases come before creations."""
    claims = [claim(name) for name in sorted(wanted)]
    now = {name: f"n-{name}" for name in sorted(held)}
    actions = reconcile(claims, now, said)
    kinds = [isinstance(action, Release) for action in actions]
    assert kinds == sorted(kinds, reverse=True)
    for action in actions:
        match action:
            case Release():
                del now[action.claim]
            case Create():
                now[action.claim.id] = "n"
                said = said | {action.claim.id}
            case Grant() | Miss():
                said = said | {action.claim}
    assert reconcile(claims, now, said) == ()


# --- the desk --------------------------------------------------------------------------------------
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


@dataclass
class Cloud:
    """A cloud of so many nodes, in memory; it survives whoever asks it."""

    size: int
    name: str = "cloud"
    nodes: dict[str, str] = field(default_factory=dict)
    lost: list[Gone] = field(default_factory=list)
    slow: bool = False
    places: frozenset[Place] = frozenset({PLACE})

    async def create(self, claim: Claim) -> str:
        if len(self.nodes) >= self.size:
            raise Refused("out of stock: none left", retry_after_ms=5_000)
        return self.nodes.setdefault(claim.id, f"n-{claim.id}")

    async def release(self, claim: str, node: str) -> bool:
        assert self.nodes.get(claim) == node
        return not self.slow

    async def forget(self, claim: str) -> None:
        self.nodes.pop(claim, None)
        self.lost = [loss for loss in self.lost if loss.claim != claim]

    async def held(self) -> Mapping[str, str]:
        return dict(self.nodes)

    async def gone(self) -> Sequence[Gone]:
        return tuple(self.lost)

    async def stock(self) -> Mapping[Place, int]:
        return {PLACE: self.size - len(self.nodes)}

    def hear(self, offer: AvailabilityOffered) -> None: ...


def desk_of(cloud: Provisioner, said: Said, now_ms: int = 1_000) -> Desk:
    return Desk(cast("Bus", said), cloud, lambda: now_ms, 5_000)


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
    await desk.round(plan())
    assert said.take(*CONTROL) == []
    cloud.slow = False
    await desk.round(plan())
    assert said.take(*CONTROL) == [ClaimReleased(claim="c1", node="n-c1")]


async def test_claims_of_other_places_are_left_alone() -> None:
    said = Said()
    await desk_of(Cloud(size=3), said).round(plan(claim("c1", configuration="8xH100")))
    assert said.take(*CONTROL) == []


async def test_stock_is_offered_on_a_change_and_again_after_a_while() -> None:
    cloud, said = Cloud(size=2), Said()
    now = [1_000]
    desk = Desk(cast("Bus", said), cloud, lambda: now[0], 5_000)
    told: list[tuple[int, int]] = []
    for at_ms, wanted in (
        (1_000, ()),
        (2_000, ()),
        (3_000, (claim("c1"),)),
        (7_900, (claim("c1"),)),
        (8_000, ()),
    ):
        now[0] = at_ms
        await desk.round(plan(*wanted))
        told += [(at_ms, event.obtainable) for event in said.take() if isinstance(event, AvailabilityOffered)]
    assert told == [(1_000, 2), (3_000, 1), (8_000, 2)]
    for at_ms in (12_999, 13_000):
        now[0] = at_ms
        await desk.round(plan())
    assert len(said.take(AvailabilityOffered)) == 1


async def test_two_provisioners_may_not_share_a_place() -> None:
    with pytest.raises(ValueError, match=r"1xL4 in gcp/us-central1/\*/reserved: covered by a and by b"):
        await run_provisioner(cast("Bus", Said()), [Cloud(1, name="a"), Cloud(1, name="b")])


# --- static ----------------------------------------------------------------------------------------
INVENTORY = Inventory(
    nodes=(
        StaticNode(name="s1", pool=POOL, configuration="1xL4"),
        StaticNode(name="s2", pool=POOL, configuration="1xL4"),
        StaticNode(name="s3", pool=POOL, configuration="4xL4"),
    )
)


async def test_static_grants_what_is_free_and_remembers(tmp_path: Path) -> None:
    state = tmp_path / "static.json"
    static = StaticProvisioner(INVENTORY, state)
    assert await static.create(claim("c1")) == "s1"
    assert await static.create(claim("c1")) == "s1"
    assert await static.stock() == {(POOL, "1xL4"): 1, (POOL, "4xL4"): 1}

    again = StaticProvisioner(INVENTORY, state)
    assert await again.held() == {"c1": "s1"}
    assert await again.create(claim("c2")) == "s2"
    with pytest.raises(Refused, match="out of stock: every 1xL4"):
        await again.create(claim("c3"))
    assert await again.held() == {"c1": "s1", "c2": "s2"}


async def test_static_gives_out_the_longest_free_node_first(tmp_path: Path) -> None:
    """So a node that just failed is not the next one granted."""
    state = tmp_path / "static.json"
    static = StaticProvisioner(INVENTORY, state)
    await static.create(claim("c1"))
    assert await static.release("c1", "s1")
    await static.forget("c1")
    assert await StaticProvisioner(INVENTORY, state).create(claim("c2")) == "s2"


async def test_static_reports_a_node_that_left_the_inventory(tmp_path: Path) -> None:
    state = tmp_path / "static.json"
    await StaticProvisioner(INVENTORY, state).create(claim("c1"))
    shorter = StaticProvisioner(Inventory(nodes=INVENTORY.nodes[1:]), state)
    assert await shorter.gone() == [Gone("c1", "s1", "no longer in the inventory")]
    await shorter.forget("c1")
    assert await shorter.held() == {}
    assert (await shorter.stock())[PLACE] == 1


def test_an_inventory_is_a_yaml_file(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(
        "nodes:\n"
        "  - {name: s1, pool: {cloud: gcp, region: r1, market: reserved}, configuration: 1xL4}\n"
        "  - {name: s1, pool: {cloud: gcp, region: r1, market: reserved}, configuration: 1xL4}\n"
    )
    with pytest.raises(ValidationError, match=r"\['s1'\] listed twice"):
        load_yaml(Inventory, path)
