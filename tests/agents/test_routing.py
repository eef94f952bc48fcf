"""Where requests go: shares, turns, beginnings, breakers. All pure."""

from collections import Counter, deque
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents import balance
from agents.affinity import Beginnings, Memory, beginnings, texts_of
from agents.balance import ALLOWANCE, Choice, Group, Peer, Refusal
from agents.routing import Routes
from schemas.plans import Plan, Role
from tests.agents.making import LATENCY, instance, plan, rank, template

NEW = Beginnings()
LONG = "You are a helpful assistant who answers in verse. " * 20
"""A system prompt of 1,000 characters."""


def peer(name: str, weight: float = 1.0, batch: int = 10_000, region: str = "here") -> Peer:
    return Peer(f"{name}/1", f"{name}:80", weight, batch, region)


def group(*peers: Peer, memory: Memory | None = None, prefer: str | None = None) -> Group:
    made = Group(memory or Memory(), prefer)
    made.set(peers)
    return made


def send(to: Group, prompt: Beginnings = NEW, now_s: float = 0.0, avoid: Sequence[str] = ()) -> Peer:
    choice = to.pick(prompt, now_s, frozenset(avoid))
    assert isinstance(choice, Choice), choice
    return choice.peer


def chat(*messages: str, service: str = "m/c", conversation: str | None = None) -> Beginnings:
    """A chat whose messages alternate between user and assistant after the first."""
    return beginnings(service, [f"\0role\0{text}" for text in messages], conversation)


# --- turns -----------------------------------------------------------------------------------------
@settings(deadline=None, max_examples=50)
@given(weights=st.lists(st.floats(0.1, 50.0), min_size=1, max_size=12), concurrent=st.integers(1, 100))
def test_turns_follow_the_weights(weights: list[float], concurrent: int) -> None:
    """At any moment nobody is more than two requests away from its share."""
    here = group(*(peer(f"i{n}", weight) for n, weight in enumerate(weights)))
    counts: Counter[str] = Counter()
    open_ones: deque[Peer] = deque()
    for sent in range(1, 500):
        chosen = send(here)
        counts[chosen.key] += 1
        open_ones.append(chosen)
        if len(open_ones) == concurrent:
            here.ended(open_ones.popleft())
        for p in here.peers:
            assert abs(counts[p.key] - sent * p.weight / sum(weights)) < 2


CHANGES = st.lists(
    st.tuples(st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.5, 8.0)), st.integers(0, 60)),
    min_size=20,
    max_size=20,
)


@settings(deadline=None, max_examples=50)
@given(changes=CHANGES)
def test_twenty_changes_of_the_plan_do_not_add_up(changes: list[tuple[dict[str, float], int]]) -> None:
    """However instances come, go and are rated anew, who stays is never far from its share."""
    here = Group(Memory())
    got, due = 0, 0.0
    for rated, requests in changes:
        here.set([peer("stays", 2.0), *(peer(name, weight) for name, weight in rated.items())])
        for _ in range(requests):
            got += send(here).key == "stays/1"
            due += 2.0 / (2.0 + sum(rated.values()))
            assert abs(got - due) < 3


def test_twenty_changes_keep_a_thousand_requests_within_five_percent() -> None:
    """1,000 requests, a change every 50 that moves one instance and re-rates another."""
    here = Group(Memory())
    counts: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    for change in range(20):
        peers = [peer("a", 4.0), peer("b", 2.0 + change % 2), peer("c", 1.0), peer(f"d{change}", 1.0)]
        here.set(peers)
        total = sum(p.weight for p in peers)
        for _ in range(50):
            counts[send(here).key] += 1
            for p in peers:
                expected[p.key] += p.weight / total  # type: ignore[assignment]
    for name in ("a", "b", "c"):
        assert counts[f"{name}/1"] == pytest.approx(expected[f"{name}/1"], rel=0.05)


def test_requests_that_are_sent_again_leave_no_skew_behind() -> None:
    here = group(peer("drains"), peer("a"), peer("b"))
    for _ in range(60):
        if send(here).key == "drains/1":
            send(here, avoid=["drains/1"])
    here.set([peer("a"), peer("b"), peer("comes")])
    assert Counter(send(here).key for _ in range(30))["comes/1"] == pytest.approx(10, abs=1)


def test_among_equals_the_least_loaded_is_next() -> None:
    here = group(peer("a"), peer("b"))
    first, second = send(here), send(here)
    assert {first.key, second.key} == {"a/1", "b/1"}
    here.ended(second)
    assert send(here) == second


def test_a_preferred_region_comes_first_while_it_has_room() -> None:
    here = group(
        peer("near1", batch=2), peer("near2", batch=2), peer("far", 100.0, region="there"), prefer="here"
    )
    regions = [send(here).region for _ in range(6)]
    assert regions == ["here"] * 4 + ["there"] * 2


def test_two_thousand_instances() -> None:
    here = group(*(peer(f"i{n}", 1.0 + n % 2, batch=64) for n in range(2000)))
    counts = Counter(send(here).weight for _ in range(3000))
    assert counts == {1.0: 1000, 2.0: 2000}
    hot = chat(LONG)
    assert len({send(here, hot).key for _ in range(1000)}) < 500


# --- beginnings ------------------------------------------------------------------------------------
def test_the_next_turn_goes_where_the_last_one_went() -> None:
    here = group(*(peer(f"i{n}", batch=100) for n in range(10)))
    homes = {}
    for client in range(10):
        homes[client] = send(here, chat(LONG, f"I am {client}. " + "Tell me a story. " * 30))
    for home in homes.values():
        here.ended(home)
    for client, home in homes.items():
        turns = (LONG, f"I am {client}. " + "Tell me a story. " * 30, "Once upon a time ...", "And then?")
        choice = here.pick(chat(*turns), 0.0)
        assert isinstance(choice, Choice)
        assert (choice.peer, choice.how) == (home, "prefix")
        assert choice.known > 0.9


def test_a_change_of_the_plan_keeps_conversations_where_they_are() -> None:
    here = group(peer("a"), peer("b"), peer("c"))
    home = send(here, chat(LONG, "hello"))
    here.set([peer("d"), home, peer("e")])
    assert send(here, chat(LONG, "hello", "hi", "go on")) == home
    here.set([peer("d"), peer("e")])
    elsewhere = send(here, chat(LONG, "hello", "hi", "go on"))
    assert elsewhere.key in {"d/1", "e/1"}
    assert send(here, chat(LONG, "hello", "hi", "go on", "well", "more")) == elsewhere


def test_distinct_prompts_take_turns() -> None:
    here = group(peer("a", 3.0), peer("b", 1.0))
    counts = Counter(send(here, chat(f"{n} {LONG}")).key for n in range(100))
    assert counts == {"a/1": 75, "b/1": 25}


def test_short_beginnings_are_no_affinity() -> None:
    here = group(peer("a"), peer("b"))
    assert Counter(send(here, chat("hi")).key for _ in range(10)) == {"a/1": 5, "b/1": 5}


@given(
    weights=st.lists(st.floats(0.5, 8.0), min_size=2, max_size=8), depth=st.integers(20, 200), data=st.data()
)
@settings(deadline=None, max_examples=30)
def test_affinity_is_bounded_by_weight(weights: list[float], depth: int, data: st.DataObject) -> None:
    """One beginning for all: nobody is busy above 1 + ALLOWANCE times its share when it gets one more."""
    here = group(*(peer(f"i{n}", weight) for n, weight in enumerate(weights)))
    balance_idle = balance.IDLE
    flying: list[Peer] = []
    busy: Counter[str] = Counter()
    try:
        balance.IDLE = 0.0
        for n in range(3 * depth):
            chosen = send(here, chat(LONG, str(n)))
            flying.append(chosen)
            busy[chosen.key] += 1
            fair = len(flying) * chosen.weight / sum(weights)
            assert busy[chosen.key] <= max(1 + ALLOWANCE, 1) * fair + 1
            if len(flying) > depth:
                gone = flying.pop(data.draw(st.integers(0, len(flying) - 1)) if n % 7 == 0 else 0)
                busy[gone.key] -= 1
                here.ended(gone)
    finally:
        balance.IDLE = balance_idle


def test_a_hot_beginning_stays_on_few_instances_until_they_are_busy() -> None:
    here = group(*(peer(f"i{n}", batch=80) for n in range(8)))
    assert len({send(here, chat(LONG, str(n))).key for n in range(5)}) == 1
    assert len({send(here, chat(LONG, str(n))).key for n in range(400)}) >= 6


def test_two_routers_agree_on_a_conversation_with_a_name() -> None:
    peers = [peer(f"i{n}") for n in range(20)]
    one, other = group(*peers), group(*reversed(peers))
    for n in range(50):
        named = chat("hello", conversation=f"c{n}")
        assert send(one, named) == send(other, named)


def test_a_change_moves_few_of_the_named_conversations() -> None:
    named = [chat("hello", conversation=f"c{n}") for n in range(200)]
    peers = [peer(f"i{n}") for n in range(20)]
    before = [send(group(*peers), conversation) for conversation in named]
    after = [send(group(*peers[1:]), conversation) for conversation in named]
    moved = [b for b, a in zip(before, after, strict=True) if a != b]
    assert {p.key for p in moved} == {"i0/1"}


def test_what_is_longest_unused_is_forgotten_first() -> None:
    memory = Memory(most=3)
    memory.remember((1, 2, 3), "a")
    assert memory.owner(1) == "a"
    memory.remember((4,), "b")
    assert [memory.owner(h) for h in (1, 2, 3, 4)] == ["a", None, "a", "b"]


def test_the_texts_of_a_request() -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "x"}}]
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": parts}, "odd"]
    texts = list(texts_of({"messages": messages}))
    assert texts[0] == "\0system\0be"
    assert texts[1].startswith("\0user\0look\0")
    assert len(texts) == 2
    assert list(texts_of({"prompt": "say"})) == ["say"]
    assert list(texts_of({"prompt": [1, 2, 3]})) == ["1 2 3"]
    assert list(texts_of({"prompt": 7})) == []


def test_beginnings_of_long_texts_are_shared_in_blocks() -> None:
    one = beginnings("m/c", ["x" * 5000 + "a"])
    other = beginnings("m/c", ["x" * 5000 + "b" * 100])
    shared = [h for h in one.hashes if h in other.hashes]
    assert len(shared) == 4
    assert one.shares[3] == pytest.approx(4096 / 5001)
    assert not set(one.hashes) & set(beginnings("m/d", ["x" * 5000 + "a"]).hashes)


# --- what does not get any -------------------------------------------------------------------------
def test_three_failures_open_a_breaker_and_a_trial_closes_it() -> None:
    here = group(peer("a"), peer("b"))
    bad = here.peers[0]
    for _ in range(2):
        here.failed(bad, 0.0)
    here.answered(bad)
    for _ in range(3):
        here.failed(bad, 0.0)
    assert {send(here, now_s=0.5).key for _ in range(10)} == {"b/1"}
    assert {send(here, now_s=1.5).key for _ in range(10)} == {"a/1", "b/1"}
    assert here.peers[0].key == "a/1"
    assert [send(here, now_s=2.0).key for _ in range(5)] == ["b/1"] * 5  # one trial at a time
    here.failed(bad, 2.0)
    assert {send(here, now_s=3.5).key for _ in range(5)} == {"b/1"}  # the back-off doubled
    assert "a/1" in {send(here, now_s=4.5).key for _ in range(5)}
    here.answered(bad)
    assert {send(here, now_s=4.5).key for _ in range(5)} == {"a/1", "b/1"}


def test_a_trial_that_its_client_gave_up_lets_another_try() -> None:
    here = group(peer("a"), peer("b"))
    for _ in range(3):
        here.failed(here.peers[0], 0.0)
    trial = next(p for p in (send(here, now_s=2.0) for _ in range(10)) if p.key == "a/1")
    assert {send(here, now_s=2.0).key for _ in range(10)} == {"b/1"}
    here.abandoned(trial)
    here.ended(trial)
    assert "a/1" in {send(here, now_s=2.0).key for _ in range(10)}


def test_when_every_breaker_is_open_none_is() -> None:
    here = group(peer("a"), peer("b"))
    for p in here.peers:
        for _ in range(3):
            here.failed(p, 0.0)
    assert {send(here, now_s=0.5).key for _ in range(4)} == {"a/1", "b/1"}


def test_who_drains_is_not_asked_even_if_nobody_else_is_there() -> None:
    here = group(peer("a"))
    for _ in range(3):
        here.failed(here.peers[0], 0.0)
    here.elsewhere(here.peers[0], 0.0)
    assert here.pick(NEW, 0.5) is Refusal.FAILING
    assert here.opens_in_s(0.5) == balance.ELSEWHERE_S - 0.5


def test_a_breaker_outlives_a_change_of_the_plan() -> None:
    here = group(peer("a"), peer("b"))
    for _ in range(3):
        here.failed(here.peers[0], 0.0)
    here.set([peer("b"), peer("a", 9.0), peer("c")])
    assert "a/1" not in {send(here, now_s=0.5).key for _ in range(10)}


def test_who_drains_before_the_plan_says_so_is_passed_over() -> None:
    here = group(peer("a"), peer("b"))
    here.elsewhere(here.peers[0], 0.0)
    assert {send(here, now_s=1.0).key for _ in range(4)} == {"b/1"}


def test_a_retry_goes_to_another() -> None:
    here = group(peer("a"), peer("b"))
    first = send(here)
    assert send(here, avoid=[first.key]) != first
    assert here.pick(NEW, 0.0, frozenset({"a/1", "b/1"})) is Refusal.FAILING


def test_full_is_full() -> None:
    here = group(peer("a", batch=2), peer("b", batch=1))
    taken = [send(here) for _ in range(6)]
    assert Counter(p.key for p in taken) == {"a/1": 4, "b/1": 2}
    assert here.pick(NEW, 0.0) is Refusal.FULL
    here.ended(taken[0])
    assert send(here) == taken[0]


def test_what_leaves_finishes_what_it_has_and_is_forgotten() -> None:
    here = group(peer("a"), peer("b"))
    leaver = send(here)
    here.set([p for p in here.peers if p != leaver])
    assert here.in_flight == 1
    assert leaver.key not in {send(here).key for _ in range(10)}
    here.ended(leaver)
    here.set([p for p in here.peers if p.serving])
    assert len(here.peers) == 1
    here.set([])
    assert here.pick(NEW, 0.0) is Refusal.NOTHING


# --- plans -----------------------------------------------------------------------------------------
def at(name: str, endpoint: str | None, role: Role = "serving", **changes: object) -> object:
    return instance(name, rank(device=int(name[1:])), role=role).model_copy(
        update={"endpoint": endpoint, **changes}
    )


def planned(sequence: int, *instances: object, demand: dict[str, float] | None = None) -> Plan:
    made = plan(sequence, *instances)  # type: ignore[arg-type]
    return made.model_copy(update={"target": made.target.model_copy(update={"demand": demand or {}})})


def test_only_what_serves_and_has_a_door_gets_requests() -> None:
    routes = Routes()
    assert routes.follow(
        planned(1, at("i1", "h:1"), at("i2", None), at("i3", "h:3", "draining"), at("i4", None, "starting"))
    )
    way = routes.way("tiny", "chat")
    assert way is not None
    assert not way.disaggregated
    assert {send(way.groups[0]).endpoint for _ in range(4)} == {"h:1"}
    assert way.groups[0].peers[0].batch == LATENCY.batch[-1]


def test_older_plans_are_dropped() -> None:
    routes = Routes()
    assert routes.follow(planned(2, at("i1", "h:1")))
    assert not routes.follow(planned(1))
    assert not routes.follow(planned(2))
    assert routes.way("tiny", "chat") is not None


def test_a_model_that_nothing_serves_is_known_all_the_same() -> None:
    routes = Routes()
    routes.follow(planned(1, demand={"big/batch/both": 1.0, "big/chat/both": 0.0}))
    assert routes.classes == {"big": ("batch", "chat")}
    assert list(routes.kinds) == [("big", "batch"), ("big", "chat")]
    assert routes.way("big", "batch") is None


def test_what_the_fleet_serves_is_known_before_any_plan() -> None:
    routes = Routes(served=[("tiny", "chat"), ("big", "chat")])
    assert list(routes.kinds) == [("tiny", "chat"), ("big", "chat")]
    assert routes.way("tiny", "chat") is None
    routes.follow(planned(1, demand={"big/batch/both": 1.0}))
    assert routes.classes == {"big": ("batch", "chat"), "tiny": ("chat",)}


def test_prefill_and_decode_go_together() -> None:
    service = instance("i1").service
    routes = Routes()
    prefill = at("i1", "h:1", service=service.model_copy(update={"phase": "prefill"}))
    decode = at("i2", "h:2", service=service.model_copy(update={"phase": "decode"}))
    routes.follow(planned(1, prefill))
    assert routes.way("tiny", "chat") is None
    routes.follow(planned(2, prefill, decode))
    way = routes.way("tiny", "chat")
    assert way is not None
    assert way.disaggregated
    assert [g.peers[0].endpoint for g in way.groups] == ["h:1", "h:2"]


def test_a_new_attempt_is_another_instance() -> None:
    routes = Routes()
    routes.follow(planned(1, at("i1", "h:1")))
    way = routes.way("tiny", "chat")
    assert way is not None
    for _ in range(3):
        way.groups[0].failed(way.groups[0].peers[0], 0.0)
    routes.follow(planned(2, at("i1", "h:2", attempt=2)))
    assert send(way.groups[0], now_s=0.0).endpoint == "h:2"


def test_the_template_names_the_batch() -> None:
    assert template().latency.batch[-1] == 4
