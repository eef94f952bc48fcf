"""Guards over real sockets on loopback: who gathers, who is kept out, who breaks what."""

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack

import psutil
import pytest
import zmq
import zmq.asyncio

from agents.engine import EngineError, EngineSpec
from agents.instance import Circle
from agents.star import KeyPair, Star, new_keys
from agents.talk import MAX_WORD_BYTES, Word
from tests.agents.circles import FACTS, new_key_pairs, specs

HANG_S = 15.0
"""A guard against hangs."""
BEAT_S = 0.05
SILENT_S = 0.5


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def circle(spec: EngineSpec, keys: KeyPair, *, pick: Callable[[], int] = lambda: 4242) -> Circle:
    return Circle(spec, keys, pick_port=pick, beat_s=BEAT_S, silent_after_s=SILENT_S, gather_s=HANG_S)


class Guards:
    """The circles of one instance, entered."""

    def __init__(self, count: int) -> None:
        self.keys = new_key_pairs(count)
        self.port = free_port()
        self.specs = specs(count, self.keys, self.port)
        self.circles = [circle(spec, keys) for spec, keys in zip(self.specs, self.keys, strict=True)]
        self._entered = AsyncExitStack()

    async def __aenter__(self) -> list[Circle]:
        for one in self.circles:
            await self._entered.enter_async_context(one)
        return self.circles

    async def __aexit__(self, *error: object) -> None:
        async with asyncio.timeout(HANG_S):
            await self._entered.aclose()

    async def send(self, raw: bytes, keys: KeyPair) -> Star:
        """Somebody says something to the head."""
        star = Star.connect("127.0.0.1", self.port, keys, self.keys[0].public, max_bytes=MAX_WORD_BYTES)
        for _ in range(20):
            await star.send(b"", raw)
            await asyncio.sleep(0.02)
        return star


async def within(*waits: object) -> list[object]:
    async with asyncio.timeout(HANG_S):
        return await asyncio.gather(*waits, return_exceptions=True)  # type: ignore[call-overload,no-any-return]


def threads() -> int:
    """Of the whole process, libzmq's too."""
    return psutil.Process().num_threads()


async def test_three_gather_in_any_order_and_leave_nothing() -> None:
    before = threads(), threading.active_count()
    guards = Guards(3)
    async with AsyncExitStack() as late:
        one, two, three = guards.circles
        await late.enter_async_context(three)  # long before the head listens
        await asyncio.sleep(2 * BEAT_S)
        await late.enter_async_context(one)
        waiting = asyncio.gather(one.gather(FACTS), three.gather(FACTS))
        await late.enter_async_context(two)
        await asyncio.sleep(2 * BEAT_S)
        assert not waiting.done()
        assert await within(two.gather(FACTS), waiting) == [4242, [4242, 4242]]
        await within(one.end_others(), two.told_to_end(), three.told_to_end())
    assert (threads(), threading.active_count()) == before
    socket.create_server(("127.0.0.1", guards.port)).close()


async def test_an_instance_of_one_opens_nothing() -> None:
    keys = new_keys()
    (spec,) = specs(1, [keys], guard_port=1)  # where nobody may listen
    async with circle(spec, keys) as alone:
        assert await within(alone.gather(FACTS)) == [4242]
        await within(alone.abort("enough"))
        assert await within(alone.broken()) == ["enough"]
    async with circle(spec, keys) as alone:
        await within(alone.end_others())


async def test_wrong_facts_are_named_to_all() -> None:
    async with Guards(3) as (one, two, three):
        wrong = FACTS | {"engine": "vllm-0.33.0"}
        got = await within(one.gather(FACTS), two.gather(FACTS), three.gather(wrong))
    for error in got:
        assert isinstance(error, EngineError)
        assert error.refusal == "engine_version"
        assert "engine: 'vllm-0.33.0' at stage 2, 'vllm-0.32.0' at the head" in str(error)


async def test_a_rank_that_never_comes_is_named() -> None:
    guards = Guards(2)
    head = Circle(
        guards.specs[0], guards.keys[0], pick_port=free_port, beat_s=BEAT_S, gather_s=0.2, silent_after_s=9.0
    )
    async with head:
        (error,) = await within(head.gather(FACTS))
    assert str(error) == "stage 1 never came within 0.2 s"


async def test_an_abort_reaches_all() -> None:
    async with Guards(3) as circles:
        await within(*(one.gather(FACTS) for one in circles))
        await within(circles[1].abort("worker 77 is gone"))
        assert await within(*(one.broken() for one in circles)) == ["worker 77 is gone"] * 3


async def test_an_abort_ends_a_gathering() -> None:
    async with Guards(2) as (one, two):
        waiting = asyncio.create_task(one.gather(FACTS))
        await within(two.abort("no weights"))
        (error,) = await within(waiting)
        assert isinstance(error, EngineError)
        assert str(error) == "no weights"


async def test_who_leaves_breaks_the_circle_at_once() -> None:
    guards = Guards(2)
    async with guards.circles[0] as one:
        async with guards.circles[1] as two:
            await within(one.gather(FACTS), two.gather(FACTS))
        assert await within(one.broken()) == ["stage 1 left"]


async def test_a_silent_guard_breaks_it_for_all() -> None:
    """Its tasks stop, as those of a process under SIGSTOP do; its connection stays."""
    async with Guards(3) as circles:
        await within(*(one.gather(FACTS) for one in circles))
        for task in circles[2]._tasks:
            task.cancel()
        reasons = await within(circles[0].broken(), circles[1].broken())
        assert reasons == ["stage 2 was silent for 0.5 s"] * 2


async def test_a_silent_head_is_missed() -> None:
    async with Guards(2) as circles:
        await within(*(one.gather(FACTS) for one in circles))
        for task in circles[0]._tasks:
            task.cancel()
        assert await within(circles[1].broken()) == ["the head was silent for 0.5 s"]


async def test_the_ordered_end_breaks_nothing() -> None:
    async with AsyncExitStack() as stack:
        guards = Guards(2)
        one, two = guards.circles
        await stack.enter_async_context(two)
        broken = asyncio.create_task(two.broken())
        async with one:
            await within(one.gather(FACTS), two.gather(FACTS))
            await within(one.end_others())
            await within(two.told_to_end())
        await asyncio.sleep(2 * SILENT_S)
        assert not broken.done()
        broken.cancel()


# --- strangers -------------------------------------------------------------------------------------
def word_of_stage_1() -> bytes:
    return (
        Word(instance="i1", attempt=1, stage=1, rank=0, number=10**6, facts=FACTS).model_dump_json().encode()
    )


async def test_a_key_of_nobody_is_kept_out() -> None:
    guards = Guards(2)
    async with guards.circles[0] as head:
        stranger = await guards.send(word_of_stage_1(), new_keys())
        assert (head.dropped, head._talk.all_agree, head._routes) == (0, False, {})
        stranger.close()


async def test_another_ranks_key_speaks_only_for_itself() -> None:
    guards = Guards(3)
    async with guards.circles[0] as head:
        other = await guards.send(word_of_stage_1(), guards.keys[2])
        assert (head.dropped > 0, head._routes) == (True, {})
        other.close()


async def test_the_right_key_is_heard() -> None:
    """Without this, the two tests above would pass by a mistake of theirs."""
    guards = Guards(2)
    async with guards.circles[0] as head:
        right = await guards.send(word_of_stage_1(), guards.keys[1])
        assert head._routes
        right.close()


async def test_who_speaks_no_curve_gets_nothing() -> None:
    async with Guards(2) as (head, _):
        context = zmq.asyncio.Context()
        plain = context.socket(zmq.DEALER)
        plain.linger = 0
        plain.connect(f"tcp://127.0.0.1:{head._spec.contacts['c1'].guard_port}")
        await plain.send(word_of_stage_1())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(plain.recv(), 1.0)
        assert head.dropped == 0
        plain.close()
        context.term()


async def test_garbage_on_the_port_harms_nobody() -> None:
    guards = Guards(2)
    async with guards as (one, two):
        _, writer = await asyncio.open_connection("127.0.0.1", guards.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n" + b"\x00" * 10_000)
        assert await within(one.gather(FACTS), two.gather(FACTS)) == [4242, 4242]
        writer.close()


# --- what cannot be entered ------------------------------------------------------------------------
async def test_a_taken_port_is_refused_by_name() -> None:
    guards = Guards(2)
    before = threads()
    with socket.create_server(("127.0.0.1", guards.port)):
        with pytest.raises(EngineError, match="is taken") as caught:
            await guards.circles[0].__aenter__()
        assert caught.value.refusal == "port_taken"
    assert threads() == before


async def test_an_address_of_another_machine_is_no_refusal() -> None:
    guards = Guards(2)
    away = guards.specs[0].contacts["c1"].model_copy(update={"address": "192.0.2.1"})
    spec = guards.specs[0].model_copy(update={"contacts": guards.specs[0].contacts | {"c1": away}})
    with pytest.raises(EngineError, match=r"cannot listen at 192\.0\.2\.1") as caught:
        await circle(spec, guards.keys[0]).__aenter__()
    assert caught.value.refusal is None


async def test_a_missing_contact_is_named() -> None:
    guards = Guards(2)
    spec = guards.specs[0].model_copy(update={"contacts": {"c1": guards.specs[0].contacts["c1"]}})
    with pytest.raises(EngineError, match="claim c2 has no contact"):
        await circle(spec, guards.keys[0]).__aenter__()


async def test_keys_must_be_those_of_the_contact() -> None:
    guards = Guards(2)
    with pytest.raises(EngineError, match="another public key"):
        await circle(guards.specs[1], new_keys()).__aenter__()
