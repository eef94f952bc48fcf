"""What guards say to each other, without sockets or clocks: messages lost, doubled, late, and forged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.talk import HEAD, MAX_REASON, Member, Stop, Talk, Word

S1, S2 = Member(1, 0), Member(2, 0)
KEYS = {HEAD: "key-0", S1: "key-1", S2: "key-2"}
FACTS = {"engine": "vllm-0.32.0", "partition": "1,1,2"}
BEAT_S, SILENT_S, GATHER_S = 0.5, 5.0, 60.0


def talk(me: Member, now: float = 0.0) -> Talk:
    return Talk("i1", 1, me, KEYS, now=now, beat_s=BEAT_S, silent_after_s=SILENT_S, gather_s=GATHER_S)


def circle() -> dict[Member, Talk]:
    return {member: talk(member) for member in KEYS}


def say(talks: dict[Member, Talk], speaker: Member, now: float = 0.0) -> None:
    """All that `speaker` has to say arrives."""
    for to, word in talks[speaker].words().items():
        talks[to].hear(KEYS[speaker], word.model_dump_json().encode(), now)


def converse(talks: dict[Member, Talk], now: float = 0.0) -> None:
    """Until nobody has news."""
    for _ in range(20):
        speakers = [member for member, one in talks.items() if one.has_news]
        for speaker in speakers:
            say(talks, speaker, now)
        if talks[HEAD].all_agree and talks[HEAD].master_port is None:
            talks[HEAD].go(4242)
    assert not any(one.has_news for one in talks.values())


def word(member: Member = S1, number: int = 1, **given: object) -> bytes:
    fields = {"instance": "i1", "attempt": 1, "stage": member.stage, "rank": member.rank, "number": number}
    return Word.model_validate(fields | given).model_dump_json().encode()


def test_all_go_with_the_heads_port_once_all_are_ready() -> None:
    talks = circle()
    for member in (HEAD, S1):
        talks[member].offer(FACTS)
    converse(talks)
    assert not talks[HEAD].all_agree
    talks[S2].offer(FACTS)
    converse(talks)
    assert [one.outcome for one in talks.values()] == [4242] * 3


def test_an_instance_of_one_agrees_with_itself() -> None:
    alone = Talk("i1", 1, HEAD, {}, now=0, beat_s=BEAT_S, silent_after_s=SILENT_S, gather_s=GATHER_S)
    alone.tick(100.0)
    before = alone.all_agree
    alone.offer(FACTS)
    assert (before, alone.all_agree, alone.all_heard(100.0)) == (False, True, True)


@pytest.mark.parametrize(
    ("changed", "refusal", "text"),
    [
        ({"partition": "2,1,1"}, None, "partition: '2,1,1' at stage 1, '1,1,2' at the head"),
        ({"engine": "x"}, "engine_version", "engine: 'x' at stage 1, 'vllm-0.32.0' at the head"),
        ({"more": "m"}, None, "more: 'm' at stage 1, None at the head"),
    ],
)
def test_every_rank_hears_what_differs(changed: dict[str, str], refusal: str | None, text: str) -> None:
    talks = circle()
    talks[HEAD].offer(FACTS)
    talks[S1].offer(FACTS | changed)  # stage 2 need not be ready for this to be seen
    converse(talks)
    reason = f"the ranks differ in {text}"
    assert [(one.stop and (one.stop.reason, one.stop.refusal)) for one in talks.values()] == [
        (reason, refusal)
    ] * 3


def test_an_abort_reaches_all_and_the_first_one_counts() -> None:
    talks = circle()
    converse(talks)
    talks[S1].abort("a worker is gone")
    assert not talks[S1].all_heard(0.0)
    converse(talks)
    talks[S2].abort("too late")
    converse(talks)
    assert [one.stop for one in talks.values()] == [Stop(reason="a worker is gone")] * 3
    assert talks[S1].all_heard(0.0)


def test_a_long_reason_is_cut() -> None:
    one = talk(HEAD)
    one.abort("x" * 10 * MAX_REASON)
    assert one.stop is not None
    assert len(one.stop.reason) == MAX_REASON


def beat(one: Talk, until: float, since: float = 0.0) -> None:
    for step in range(int((until - since) / BEAT_S) + 1):
        one.tick(since + step * BEAT_S)


def test_a_silent_guard_is_named_after_its_time() -> None:
    head = talk(HEAD)
    head.hear("key-1", word(S1), 1.0)
    beat(head, 6.0, since=1.0)
    assert head.stop is None
    head.tick(6.5)
    assert head.stop == Stop(reason="stage 1 was silent for 5 s")


def test_the_head_may_fall_silent_too() -> None:
    one = talk(S1)
    one.hear("key-0", word(HEAD), 1.0)
    beat(one, 7.0, since=1.0)
    assert one.stop == Stop(reason="the head was silent for 5 s")


def test_a_guard_that_never_comes_is_named() -> None:
    head = talk(HEAD)
    head.hear("key-1", word(S1), 0.0)
    for second in range(62):
        head.hear("key-1", word(S1, number=second + 2), float(second))
        beat(head, second + 1.0, float(second))
    assert head.stop == Stop(reason="stage 2 never came within 60 s")


def test_a_guard_that_lives_is_waited_for() -> None:
    """It may have to pull weights for longer than anybody may take to come."""
    head = talk(HEAD)
    for second in range(200):
        for member in (S1, S2):
            head.hear(KEYS[member], word(member, number=second + 1), float(second))
        beat(head, second + 1.0, float(second))
    assert head.stop is None


def test_a_guard_that_was_stopped_itself_calls_nobody_silent() -> None:
    head = talk(HEAD)
    for member in (S1, S2):
        head.hear(KEYS[member], word(member), 1.0)
    beat(head, 1.0)
    head.tick(120.0)  # SIGSTOP and SIGCONT, or a machine that was starved
    assert head.stop is None
    beat(head, 126.0, since=120.0)  # but those who are silent from then on are
    assert head.stop is not None


def test_after_the_end_silence_and_goodbyes_are_in_order() -> None:
    talks = circle()
    for one in talks.values():
        one.offer(FACTS)
    converse(talks)
    talks[HEAD].end()
    converse(talks)
    assert talks[HEAD].all_heard(0.0)
    assert all(one.ending for one in talks.values())
    talks[S1].abort("stage 1 left")
    beat(talks[HEAD], 20.0)
    beat(talks[S2], 20.0)
    assert [one.stop for one in talks.values()] == [None] * 3


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        ("key-1", b"\xff\x00"),
        ("key-1", b"{}"),
        ("key-1", b""),
        ("key-2", word(S1)),  # another rank's key
        ("None", word(S1)),
        ("key-1", word(S1, attempt=2)),
        ("key-1", word(S1, instance="i2")),
        ("key-0", word(HEAD)),  # itself
        ("key-1", word(Member(7, 0))),
        ("key-1", b'{"instance":"i1","attempt":1,"stage":1,"rank":0,"number":0}'),
        ("key-1", b'{"instance":"i1","attempt":1,"stage":1,"rank":0,"number":1,"master_port":70000}'),
        ("key-1", b'{"instance":"i1","attempt":1,"stage":1,"rank":0,"number":1,"facts":{"a":1}}'),
    ],
)
def test_what_is_no_word_of_this_circle_is_dropped_and_counted(key: str, raw: bytes) -> None:
    head = talk(HEAD)
    assert head.hear(key, raw, 0.0) is None
    assert head.dropped == 1
    assert head.stop is None


def test_an_old_word_is_dropped() -> None:
    head = talk(HEAD)
    assert head.hear("key-1", word(number=5), 0.0) == S1
    assert head.hear("key-1", word(number=5), 0.0) is None
    assert head.hear("key-1", word(number=4, stop={"reason": "old"}), 0.0) is None
    assert (head.dropped, head.stop) == (2, None)


def test_fields_of_a_newer_guard_are_ignored() -> None:
    head = talk(HEAD)
    raw = b'{"instance":"i1","attempt":1,"stage":1,"rank":0,"number":1,"mood":"fine","stop":null}'
    assert head.hear("key-1", raw, 0.0) == S1


def test_only_the_head_may_say_go_and_end() -> None:
    head = talk(HEAD)
    head.hear("key-1", word(master_port=1, end=True), 0.0)
    assert (head.master_port, head.ending) == (None, False)


# --- any network -----------------------------------------------------------------------------------
MOVES = st.lists(
    st.tuples(st.sampled_from(["send", "drop", "double", "late", "offer"]), st.sampled_from(sorted(KEYS))),
    max_size=30,
)


def play(
    talks: dict[Member, Talk], moves: list[tuple[str, Member]], facts: dict[Member, dict[str, str]]
) -> None:
    """Words are lost, doubled and overtaken; guards become ready in any order."""
    held: list[tuple[Member, Member, bytes]] = []
    for move, member in moves:
        if move == "offer":
            talks[member].offer(facts[member])
            continue
        flying = [(member, to, said.model_dump_json().encode()) for to, said in talks[member].words().items()]
        if move == "late":
            held += flying
        elif move != "drop":
            for speaker, to, raw in flying * (2 if move == "double" else 1):
                talks[to].hear(KEYS[speaker], raw, 0.0)
        if talks[HEAD].all_agree and talks[HEAD].master_port is None:
            talks[HEAD].go(4242)
        check(talks)
    for speaker, to, raw in held:
        talks[to].hear(KEYS[speaker], raw, 0.0)
        check(talks)


def check(talks: dict[Member, Talk]) -> None:
    """Law 1: whoever may go has the port of a head that heard everybody."""
    if any(one.master_port for one in talks.values()):
        assert talks[HEAD].master_port == 4242
        assert all(one._facts is not None for one in talks.values())


@given(MOVES)
def test_whatever_is_lost_the_next_words_heal(moves: list[tuple[str, Member]]) -> None:
    talks = circle()
    play(talks, moves, dict.fromkeys(KEYS, FACTS))
    for one in talks.values():
        one.offer(FACTS)
    for _ in range(2):
        for member in talks:
            say(talks, member)
        converse(talks)
    assert [one.outcome for one in talks.values()] == [4242] * 3


@given(MOVES, st.sampled_from([S1, S2]))
def test_nobody_ever_goes_with_other_facts(moves: list[tuple[str, Member]], wrong: Member) -> None:
    talks = circle()
    facts = dict.fromkeys(KEYS, FACTS) | {wrong: FACTS | {"partition": "2,1,1"}}
    play(talks, moves, facts)
    assert all(one.master_port is None for one in talks.values())


@given(MOVES, st.sampled_from(sorted(KEYS)), MOVES)
def test_an_abort_is_heard_by_all_in_the_end(
    before: list[tuple[str, Member]], who: Member, after: list[tuple[str, Member]]
) -> None:
    talks = circle()
    play(talks, before, dict.fromkeys(KEYS, FACTS))
    talks[who].abort("enough")
    play(talks, after, dict.fromkeys(KEYS, FACTS))
    for _ in range(2):
        for member in talks:
            say(talks, member)
    assert [one.stop for one in talks.values()] == [Stop(reason="enough")] * 3


@given(st.lists(st.tuples(st.sampled_from([*KEYS.values(), "None"]), st.binary(max_size=200)), max_size=20))
def test_no_bytes_break_it(messages: list[tuple[str, bytes]]) -> None:
    head = talk(HEAD)
    for key, raw in messages:
        head.hear(key, raw, 0.0)
    assert head.dropped == len(messages)
