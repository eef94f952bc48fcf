"""The laws of `agents.lifecycle`, one by one and then against any sequence of plans and observations."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.ledger import (
    LIVE,
    MOVES,
    Action,
    Attempt,
    Decline,
    Drain,
    Forget,
    Gone,
    IllegalMoveError,
    Ledger,
    Observation,
    RankKey,
    Ready,
    Spot,
    Start,
    Stop,
    advance,
)
from agents.lifecycle import Decision, Means, decide
from schemas.events import Refusal
from schemas.plans import Plan
from tests.agents.making import instance, plan, rank, template

ME = Means("n1", devices=4, memory_gb=96.0, engine="e-1", last_ms=2_000)
KEY = RankKey("i1", 1, 0, 0)


class Node:
    """Plays the driver: applies what was decided, and what a test observes."""

    def __init__(self, me: Means = ME) -> None:
        self.me = me
        self.ledger = Ledger()
        self.now_ms = 0

    def follow(self, wish: Plan | None) -> Decision:
        decision = decide(self.ledger, wish, self.me, self.now_ms)
        for action in decision.actions:
            self.ledger = advance(self.ledger, action)
        return decision

    def see(self, *events: Observation) -> None:
        for event in events:
            self.ledger = advance(self.ledger, event)

    def states(self) -> dict[RankKey, str]:
        return {held.key: held.state for held in self.ledger.held}


def started(*events: Observation) -> Node:
    node = Node()
    node.follow(plan(1, instance("i1")))
    node.see(*events)
    return node


def test_starts_its_ranks_and_no_others() -> None:
    node = Node()
    decision = node.follow(plan(1, instance("i1", rank("c2"), rank("c1", 1), rank("c1", 2))))
    spots = (Spot(RankKey("i1", 1, 1, 0), (1,)), Spot(RankKey("i1", 1, 2, 0), (2,)))
    assert decision.actions == (Start(Attempt("i1", 1), spots),)


def test_a_whole_life() -> None:
    node = started(Ready(KEY, "127.0.0.1:1"))
    assert node.states() == {KEY: "ready"}
    draining = plan(2, instance("i1", role="draining"))
    assert node.follow(draining).actions == (Drain(KEY, 600_000, "plan 1-1-2 drains it"),)
    node.see(Gone(KEY))
    assert node.states() == {KEY: "drained"}
    assert node.follow(draining).actions == ()
    assert node.follow(plan(3)).actions == (Forget(KEY),)
    assert node.ledger == Ledger(attempts={"i1": 1})


def test_without_a_plan_nothing_starts_and_nothing_stops() -> None:
    assert Node().follow(None).actions == ()
    assert started(Ready(KEY)).follow(None).actions == ()


def test_an_ended_attempt_is_not_started_again() -> None:
    """ai-dynamo/dynamo#4420: a stage killed by hand is reported, and comes back by a new attempt."""
    node = started(Ready(KEY), Gone(KEY, "killed by signal 9"))
    assert node.states() == {KEY: "failed"}
    assert node.ledger.held[0].reason == "killed by signal 9"
    assert node.follow(plan(2, instance("i1"))).actions == ()
    again = RankKey("i1", 2, 0, 0)
    assert node.follow(plan(3, instance("i1", attempt=2))).actions == (
        Forget(KEY),
        Start(Attempt("i1", 2), (Spot(again, (0,)),)),
    )


def test_a_forgotten_attempt_that_comes_back_fails() -> None:
    node = started(Gone(KEY))
    node.follow(plan(2))
    (decline,) = node.follow(plan(3, instance("i1"))).actions
    assert isinstance(decline, Decline)
    assert node.states() == {KEY: "failed"}
    with pytest.raises(IllegalMoveError, match="taken up here before"):
        advance(node.ledger, Start(Attempt("i1", 1), (Spot(KEY, (0,)),)))


def test_what_is_starting_is_cancelled() -> None:
    """ray-project/ray#43034: of one ready and one starting, the starting one goes."""
    for wish in (plan(2), plan(2, instance("i1", role="draining"))):
        node = started()
        (stop,) = node.follow(wish).actions
        assert isinstance(stop, Stop)
        assert stop.reason.startswith("cancelled: plan 1-1-2")
        node.see(Ready(KEY, "127.0.0.1:1"))  # too late
        assert node.follow(wish).actions == ()
        node.see(Gone(KEY))
        assert node.states() == {KEY: "drained"}


def test_what_vanished_from_the_plan_is_drained() -> None:
    (drain,) = started(Ready(KEY)).follow(plan(2)).actions
    assert drain == Drain(KEY, 600_000, "plan 1-1-2 has it no more")


def test_a_node_without_claim_drains_all() -> None:
    (drain,) = started(Ready(KEY)).follow(plan(2, instance("i1"), node="n9")).actions
    assert isinstance(drain, Drain)


def test_only_the_drain_deadline_kills() -> None:
    """ai-dynamo/dynamo#13559: a 60 s stream survives a drain that began at its tenth second."""
    node = started(Ready(KEY))
    wish = plan(2, instance("i1", role="draining"))
    node.now_ms = 10_000
    node.follow(wish)
    for node.now_ms in (60_000, 609_999):
        assert node.follow(wish).actions == ()
        assert node.follow(None).actions == ()
    node.now_ms = 610_000
    assert node.follow(wish).actions == (Stop(KEY, "killed at its drain deadline"),)
    assert node.follow(wish).actions == ()
    node.see(Gone(KEY))
    assert node.ledger.held[0].reason == "killed at its drain deadline"


def test_the_deadline_is_the_services_even_once_no_plan_names_it() -> None:
    node = Node()
    node.follow(plan(1, instance("i1", drain_deadline_ms=30_000)))
    node.see(Ready(KEY))
    node.follow(plan(2))
    node.now_ms = 29_999
    assert node.follow(plan(2)).actions == ()
    node.now_ms = 30_000
    assert node.follow(plan(2)).actions == (Stop(KEY, "killed at its drain deadline"),)


def test_a_drain_is_not_taken_back() -> None:
    node = started(Ready(KEY))
    node.follow(plan(2, instance("i1", role="draining")))
    assert node.follow(plan(3, instance("i1"))).actions == ()
    node.see(Gone(KEY))
    assert node.follow(plan(4, instance("i1"))).actions == ()
    assert node.states() == {KEY: "drained"}


def test_a_higher_attempt_stops_the_older_first() -> None:
    """The core counts up only what has ended or what it gave up on: a gentle end would hold the devices."""
    node = started(Ready(KEY))
    wish = plan(2, instance("i1", rank("c1", 3), attempt=2))
    decision = node.follow(wish)
    assert decision.actions == (Stop(KEY, "attempt 2 takes its place"),)
    assert decision.waiting == {RankKey("i1", 2, 0, 0): "waiting for attempt 1 to end"}
    node.see(Gone(KEY))
    assert [type(action) for action in node.follow(wish).actions] == [Forget, Start]


def test_a_higher_attempt_cuts_an_older_ones_drain() -> None:
    node = started(Ready(KEY))
    node.follow(plan(2, instance("i1", role="draining")))
    assert node.follow(plan(3, instance("i1", attempt=2))).actions == (
        Stop(KEY, "attempt 2 takes its place"),
    )
    assert node.follow(plan(3, instance("i1", attempt=2))).actions == (), "told once"


def test_a_busy_device_is_waited_for() -> None:
    node = started(Ready(KEY))
    wish = plan(2, instance("i2"))
    decision = node.follow(wish)
    assert [type(action) for action in decision.actions] == [Drain]
    assert decision.waiting == {RankKey("i2", 1, 0, 0): "waiting for devices [0], held by i1"}
    node.see(Gone(KEY))
    assert [type(action) for action in node.follow(wish).actions] == [Forget, Start]


def test_the_rest_of_a_broken_attempt_ends() -> None:
    node = Node()
    wish = plan(1, instance("i1", rank("c1", 0), rank("c1", 1)))
    other = RankKey("i1", 1, 1, 0)
    node.follow(wish)
    node.see(Ready(KEY), Ready(other), Gone(other, "exit status 1"))
    assert node.follow(wish).actions == (Stop(KEY, "another rank of its attempt ended here"),)


def test_what_was_never_started_is_spared() -> None:
    node = Node()
    node.follow(plan(1, instance("i1", role="draining")))
    assert node.states() == {KEY: "drained"}
    assert node.follow(plan(2, instance("i1"))).actions == ()


@pytest.mark.parametrize(
    ("wish", "refusal", "reason"),
    [
        (
            plan(
                1,
                instance("i1", of=template(runtime="coral")),
                templates=(template(runtime="coral"),),
            ),
            "not_deployable",
            "runtime coral is not deployable",
        ),
        (
            plan(1, instance("i1").model_copy(update={"engine": "e-2"})),
            "engine_version",
            "engine e-2 is asked for, this node has e-1",
        ),
        (
            plan(1, instance("i1", rank(device=4))),
            "devices",
            "stage 0 rank 0: device_ids [4] do not exist, this node has 4 devices",
        ),
        (
            plan(1, instance("i1", rank(memory_gb=24.5))),
            "memory",
            "stage 0 rank 0: memory_gb 24.5 is more than the 24 of its devices",
        ),
        (
            plan(1, instance("i1", rank(tp=2))),
            "not_deployable",
            "stage 0: device_ids [0], expected 2 different ones",
        ),
        (
            plan(1, instance("i1", rank(device=0), rank(device=9))),
            "devices",
            "stage 1 rank 0: device_ids [9] do not exist, this node has 4 devices",
        ),
    ],
)
def test_what_cannot_be_is_refused_whole(wish: Plan, refusal: Refusal, reason: str) -> None:
    node = Node()
    (decline,) = node.follow(wish).actions
    assert isinstance(decline, Decline)
    assert (decline.refusal, decline.reason) == (refusal, reason)
    assert {(held.state, held.refusal, held.reason) for held in node.ledger.held} == {
        ("refused", refusal, reason)
    }
    assert node.follow(wish).actions == ()


def test_what_its_engine_finds_impossible_is_refused() -> None:
    node = started(Gone(KEY, "no folder has tiny", "unknown_model"))
    (held,) = node.ledger.held
    assert (held.state, held.refusal, held.reason) == ("refused", "unknown_model", "no folder has tiny")
    assert node.follow(plan(2, instance("i1"))).actions == ()


def test_a_refusal_ends_the_other_ranks_here() -> None:
    node = Node()
    wish = plan(1, instance("i1", rank("c1", 0), rank("c1", 1)))
    node.follow(wish)
    node.see(Gone(KEY, "a stranger is on device 0", "device_busy"))
    other = RankKey("i1", 1, 1, 0)
    assert node.follow(wish).actions == (Stop(other, "another rank of its attempt ended here"),)
    node.see(Gone(other))
    assert node.states() == {KEY: "refused", other: "drained"}


@pytest.mark.parametrize("before", ["cancelled", "ready"])
def test_only_a_rank_that_starts_can_be_refused(before: str) -> None:
    node = started(*([Ready(KEY)] if before == "ready" else []))
    if before == "cancelled":
        node.follow(plan(2))
    node.see(Gone(KEY, "x", "memory"))
    assert node.states() == {KEY: "failed" if before == "ready" else "drained"}
    assert node.ledger.held[0].refusal is None


def test_what_is_up_says_it_again_to_the_next_agent() -> None:
    said = Ready(KEY, "127.0.0.1:1", verified=True, start_s=31.5, pull_s=4.0)
    node = started(said, said)
    (held,) = node.ledger.held
    assert (held.state, held.endpoint, held.verified) == ("ready", "127.0.0.1:1", True)
    assert (held.start_s, held.pull_s) == (31.5, 4.0)
    node.see(Gone(KEY, "killed"))
    assert (node.ledger.held[0].endpoint, node.ledger.held[0].verified) == (None, None)


def test_a_node_about_to_end_starts_nothing_and_hurries_its_drains() -> None:
    node = started(Ready(KEY))
    node.me = replace(ME, until_ms=5_000)
    wish = plan(2, instance("i1"), instance("i2", rank(device=1)))
    decision = node.follow(wish)
    assert decision.actions == ()
    assert decision.waiting == {RankKey("i2", 1, 0, 0): "this node is about to end"}
    node.follow(plan(3))
    node.now_ms = 5_000
    assert node.follow(plan(3)).actions == (Stop(KEY, "killed at its drain deadline"),)


def test_a_node_about_to_end_drains_last_what_no_plan_has_moved() -> None:
    node = started(Ready(KEY))
    node.follow(plan(1, instance("i1"), instance("i2", rank(device=1))))
    other = RankKey("i2", 1, 0, 0)
    node.me, wish = replace(ME, until_ms=5_000), plan(2, instance("i1"), instance("i2", rank(device=1)))
    node.now_ms = 2_999
    assert node.follow(wish).actions == ()
    node.now_ms = 3_000
    assert node.follow(wish).actions == (
        Drain(KEY, 603_000, "the node is about to end"),
        Stop(other, "cancelled: the node is about to end"),
    )
    node.now_ms = 5_000
    assert node.follow(wish).actions == (Stop(KEY, "killed at its drain deadline"),)


def test_a_notice_cuts_a_drain_that_runs() -> None:
    node = started(Ready(KEY))
    node.follow(plan(2))
    node.me, node.now_ms = replace(ME, until_ms=5_000), 5_000
    assert node.follow(plan(2)).actions == (Stop(KEY, "killed at its drain deadline"),)


def test_a_leaving_node_ends_all_even_without_a_plan() -> None:
    node = started(Ready(KEY))
    node.me = replace(ME, until_ms=5_000, leaving=True)
    assert node.follow(None).actions == (Drain(KEY, 600_000, "the node is leaving"),)
    node.now_ms = 5_000
    assert node.follow(None).actions == (Stop(KEY, "killed at its drain deadline"),)


def test_the_table_leads_from_absent_to_absent() -> None:
    """Every state can be reached, and absent again from it."""
    reached = {"absent"}
    while more := {after for (before, _), after in MOVES.items() if before in reached} - reached:
        reached |= more
    assert reached == {"absent", "starting", "ready", "draining", "drained", "failed", "refused"}
    home = {"absent"}
    while more := {before for (before, _), after in MOVES.items() if after in home} - home:
        home |= more
    assert home == reached


def test_an_observation_of_nothing_is_refused() -> None:
    with pytest.raises(IllegalMoveError, match="it is absent"):
        advance(Ledger(), Ready(KEY))


# --- any sequence ------------------------------------------------------------------------------------
@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any valid plan: few devices and names, so that plans collide."""
    free = [("c1", 0), ("c1", 1), ("c2", 0)]
    chosen = []
    for name in draw(st.lists(st.sampled_from(["i1", "i2"]), max_size=2)):
        places = draw(st.lists(st.sampled_from(free), min_size=1, max_size=2, unique=True))
        free = [place for place in free if place not in places]
        chosen.append(
            instance(
                name,
                *(rank(*place) for place in places),
                attempt=draw(st.integers(1, 2)),
                role=draw(st.sampled_from(["serving", "starting", "draining"])),
            )
        )
    return plan(1, *chosen, node="n1" if draw(st.integers(0, 9)) else "n9")


STEPS = st.one_of(
    st.tuples(st.just("plan"), st.integers(0, 3)),
    st.tuples(st.sampled_from(["ready", "gone", "crash", "refuse"]), st.integers(0, 2)),
    st.tuples(st.just("wait"), st.sampled_from([1_000, 700_000])),
    st.tuples(st.just("restart"), st.just(0)),
)
"""What happens and to which: plans come from a few, so that what a plan dropped comes back in another."""


def check(node: Node, actions: tuple[Action, ...], taken: set[Attempt]) -> None:
    for action in actions:
        if isinstance(action, Start):
            assert action.attempt not in taken, "started twice"
            taken.add(action.attempt)
    live = [held for held in node.ledger.held if held.state in LIVE]
    devices = [device for held in live for device in held.devices]
    assert len(devices) == len(set(devices)), "a device is held by two engines"
    assert len({held.key for held in node.ledger.held}) == len(node.ledger.held)


@settings(max_examples=300)
@given(st.lists(plans(), min_size=2, max_size=4), st.lists(STEPS, min_size=5, max_size=40))
def test_never_started_twice_and_never_two_engines_on_a_device(
    wishes: list[Plan], steps: list[tuple[str, int]]
) -> None:
    node, wish, taken = Node(), None, set[Attempt]()
    for what, which in steps:
        if what == "plan":
            wish = wishes[which % len(wishes)]
        happen(node, what, which)
        decision = node.follow(wish)
        check(node, decision.actions, taken)
        assert node.follow(wish).actions == (), "a decision leaves nothing undone"
        assert not set(decision.waiting) & set(node.states())


def happen(node: Node, what: str, which: int) -> None:
    live = node.ledger.live
    if what == "wait":
        node.now_ms += which
    elif what == "restart":
        node.ledger = Ledger.model_validate_json(node.ledger.model_dump_json())
        node.see(*(Gone(held.key, "restarted") for held in live))
    elif live:
        held = live[which % len(live)]
        if what == "ready":
            node.see(Ready(held.key))
        elif what == "refuse":
            node.see(Gone(held.key, "not here", "device_busy"))
        elif what in ("gone", "crash"):
            node.see(Gone(held.key, None if what == "gone" else "exit status 1"))
