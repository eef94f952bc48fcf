"""What is decided about claims, nodes and places that refused: pure, so any history can be tried."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.provision import Place, Refused
from agents.provision_claims import (
    LONGEST_MS,
    PATIENCE,
    Absences,
    Action,
    Answers,
    Create,
    Grant,
    Miss,
    Refusals,
    Release,
    reconcile,
)
from schemas.plans import Claim, Plan
from tests.agents import clouds
from tests.agents.clouds import PLACE, POOL, claim

OTHER: Place = (POOL, "8xH100")


def plan(*claims: str, sequence: int = 1, epoch: int = 1, lineage: int = 1, blind: bool = False) -> Plan:
    wanted = [claim(name) for name in claims]
    return clouds.plan(*wanted, sequence=sequence, epoch=epoch, lineage=lineage, blind=blind)


# --- what to do ------------------------------------------------------------------------------------
def granted(**nodes: str) -> Answers:
    return Answers(granted=nodes)


@pytest.mark.parametrize(
    ("wanted", "held", "said", "actions"),
    [
        ([claim("c1")], {}, Answers(), [Create(claim("c1"))]),
        ([claim("c1")], {"c1": "n1"}, Answers(), [Grant("c1", "n1")]),
        ([claim("c1")], {"c1": "n1"}, granted(c1="n1"), []),
        ([claim("c1", "n1")], {"c1": "n1"}, Answers(), []),
        ([claim("c1", "n1")], {}, Answers(), [Miss("c1", "n1")]),
        ([claim("c1")], {}, granted(c1="n1"), [Miss("c1", "n1")]),  # lost before the plan knew of it
        ([claim("c1")], {}, Answers(ended={"c1"}), []),
        ([claim("c1", "n1")], {}, Answers(granted={"c1": "n1"}, ended={"c1"}), []),
        ([], {"c1": "n1"}, granted(c1="n1"), [Release("c1", "n1")]),
        ([claim("c2")], {"c1": "n1"}, Answers(), [Release("c1", "n1"), Create(claim("c2"))]),
    ],
)
def test_reconcile(wanted: list[Claim], held: dict[str, str], said: Answers, actions: list[Action]) -> None:
    assert list(reconcile(wanted, held, said, over=held)) == actions


def test_nothing_is_given_back_before_it_is_over() -> None:
    assert reconcile([], {"c1": "n1", "c2": "n2"}, Answers(), over={"c2"}) == (Release("c2", "n2"),)


def test_nothing_is_begun_twice() -> None:
    wanted, held = [claim("c2"), claim("c3")], {"c1": "n1", "c3": "n3"}
    assert reconcile(wanted, held, Answers(), busy={"c1", "c2", "c3"}, over=held) == ()


names = st.sampled_from([f"c{i}" for i in range(8)])


@given(st.sets(names), st.sets(names), st.sets(names), st.sets(names))
def test_reconcile_settles(wanted: set[str], held: set[str], granted: set[str], ended: set[str]) -> None:
    """What it asks for, once done, leaves nothing to ask for; releases come before all else."""
    claims = [claim(name) for name in sorted(wanted)]
    now = {name: f"n-{name}" for name in sorted(held)}
    said = Answers({name: f"n-{name}" for name in granted}, ended)
    actions = reconcile(claims, now, said, over=now)
    kinds = [isinstance(action, Release) for action in actions]
    assert kinds == sorted(kinds, reverse=True)
    for action in actions:
        match action:
            case Release():
                del now[action.claim]
            case Create():
                now[action.claim.id] = said.granted[action.claim.id] = "n"
            case Grant():
                said.granted[action.claim] = action.node
            case Miss():
                said.ended.add(action.claim)
    assert reconcile(claims, now, said, over=now) == ()


# --- when a node may be given back ---------------------------------------------------------------------
def over(plans: list[Plan], held: set[str]) -> frozenset[str]:
    absences = Absences()
    for heard in plans:
        absences = absences.hear(heard, held)
    return absences.over(held)


def test_before_any_plan_nothing_is_over() -> None:
    assert over([], {"c1"}) == frozenset()


def test_a_claim_that_left_the_plan_is_over_at_once() -> None:
    assert over([plan("c1"), plan(sequence=2)], {"c1"}) == {"c1"}


def test_a_claim_that_no_plan_had_is_over_after_three_in_a_row() -> None:
    plans = [plan("c1", sequence=n) for n in (1, 2, 3)]
    assert over(plans[:2], {"c1", "c2"}) == frozenset()
    assert over(plans, {"c1", "c2"}) == {"c2"}


def test_a_plan_that_is_repeated_or_older_does_not_count() -> None:
    assert (
        over([plan(sequence=2), plan(sequence=2), plan(sequence=1), plan(sequence=3)], {"c1"}) == frozenset()
    )


@pytest.mark.parametrize(("lineage", "epoch"), [(1, 2), (2, 0)])
def test_another_leader_starts_anew(lineage: int, epoch: int) -> None:
    """Also of a claim that the leader before had: the new one may not know of it yet."""
    before = [plan("c1", sequence=n) for n in (1, 2, 3)]
    after = [plan(sequence=n, lineage=lineage, epoch=epoch) for n in (4, 5, 6)]
    for heard in range(3):
        assert over(before + after[:heard], {"c1", "c2"}) == ({"c2"} if heard == 0 else set())
    assert over(before + after, {"c1", "c2"}) == {"c1", "c2"}


def test_nothing_is_over_while_blind_and_what_was_heard_before_does_not_count_in_a_row() -> None:
    plans = [plan("c1"), plan("c1", sequence=2), plan(sequence=3, blind=True)]
    assert over(plans, {"c1", "c2"}) == frozenset()
    plans.append(plan(sequence=4))
    assert over(plans, {"c1", "c2"}) == {"c1"}
    assert over([*plans, plan(sequence=5)], {"c1", "c2"}) == {"c1"}
    assert over([*plans, plan(sequence=5), plan(sequence=6)], {"c1", "c2"}) == {"c1", "c2"}


def test_a_claim_that_is_being_made_is_remembered() -> None:
    absences = Absences().hear(plan("c1"), {"c1"}).hear(plan("c1", sequence=2), {"c1"})
    assert absences.hear(plan(sequence=3), {"c1"}).over({"c1"}) == {"c1"}
    assert absences.hear(plan(sequence=3), set()).had == frozenset()  # given back: forgotten


@st.composite
def histories(draw: st.DrawFn) -> list[Plan]:
    """Plans in order: sequence by sequence, now and then by another leader, now and then blind."""
    epoch, plans = 1, []
    for sequence in range(1, draw(st.integers(1, 8)) + 1):
        epoch += draw(st.sampled_from([0, 0, 0, 1]))
        blind = draw(st.sampled_from([False, False, False, True]))
        plans.append(plan(*sorted(draw(st.sets(names))), sequence=sequence, epoch=epoch, blind=blind))
    return plans


@given(histories(), st.sets(names))
def test_what_is_over_follows_from_the_plans_of_the_newest_leader_alone(
    plans: list[Plan], held: set[str]
) -> None:
    """Said again in the plainest way, over the whole history."""
    term = [p for p in plans if p.epoch == plans[-1].epoch]
    claims = [{claim.id for claim in p.claims} for p in term]
    row = list(zip(term, claims, strict=True))[-PATIENCE:]
    expected = set()
    for name in held - claims[-1]:
        left = any(name in had for had in claims)
        in_a_row = len(row) == PATIENCE and all(not p.blind and name not in had for p, had in row)
        if not plans[-1].blind and (left or in_a_row):
            expected.add(name)
    assert over(plans, held) == expected


# --- places that refused -------------------------------------------------------------------------------
def no(wait_ms: int = 1_000, *, terminal: bool = False) -> Refused:
    return Refused("none left", terminal=terminal, retry_after_ms=wait_ms)


def left_ms(refusals: Refusals, now_ms: int, place: Place = PLACE) -> int:
    standing = refusals.standing(place, now_ms)
    return 0 if standing is None else standing.retry_after_ms


def test_a_refusal_stands_for_its_time_and_for_its_place() -> None:
    refusals = Refusals()
    refusals.note(PLACE, no(), began_ms=50, now_ms=100)
    assert [left_ms(refusals, now_ms) for now_ms in (100, 600, 1_099, 1_100)] == [1_000, 500, 1, 0]
    assert left_ms(refusals, 100, OTHER) == 0


def test_each_refusal_in_a_row_doubles_the_wait_up_to_a_limit() -> None:
    refusals, now_ms, waits = Refusals(), 0, []
    for _ in range(13):
        refusals.note(PLACE, no(), began_ms=now_ms, now_ms=now_ms + 1)
        waits.append(left_ms(refusals, now_ms + 1))
        now_ms += 1 + waits[-1]
    assert waits == [*(1_000 * 2**n for n in range(10)), LONGEST_MS, LONGEST_MS, LONGEST_MS]


def test_a_cloud_that_wants_to_be_left_alone_for_longer_is() -> None:
    refusals = Refusals()
    refusals.note(PLACE, no(2 * LONGEST_MS), began_ms=0, now_ms=1)
    assert left_ms(refusals, 1) == 2 * LONGEST_MS


def test_refusals_of_one_moment_count_once() -> None:
    """kubernetes/autoscaler#5170: an instance's four nodes are asked for together."""
    refusals = Refusals()
    for _ in range(4):
        refusals.note(PLACE, no(), began_ms=0, now_ms=10)
    assert left_ms(refusals, 10) == 1_000


def test_a_node_or_a_long_time_ends_the_row() -> None:
    refusals = Refusals()
    refusals.note(PLACE, no(), began_ms=0, now_ms=0)
    refusals.note(PLACE, no(), began_ms=1_000, now_ms=1_000)
    refusals.had(PLACE, began_ms=900)  # asked for before it refused: says nothing
    assert left_ms(refusals, 1_000) == 2_000
    refusals.had(PLACE, began_ms=3_000)
    refusals.note(PLACE, no(), began_ms=4_000, now_ms=4_000)
    assert left_ms(refusals, 4_000) == 1_000
    later_ms = 5_000 + LONGEST_MS
    refusals.note(PLACE, no(), began_ms=later_ms, now_ms=later_ms)
    assert left_ms(refusals, later_ms) == 1_000


def test_a_terminal_refusal_stands_for_good() -> None:
    refusals = Refusals()
    refusals.note(PLACE, no(), began_ms=0, now_ms=5)
    refusals.note(PLACE, no(terminal=True), began_ms=0, now_ms=5)
    refusals.note(PLACE, no(), began_ms=1, now_ms=6)
    standing = refusals.standing(PLACE, 10**12)
    assert standing is not None
    assert standing.terminal
