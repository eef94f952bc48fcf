"""What clients of the router see, in all the moods that engines have."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from typing import Any

import pytest

from agents.door import Door
from agents.router_exchange import Refused
from schemas.catalog import Objective, ServiceLevel, Workload
from schemas.settings import RouterSettings
from tests.agents.router_rig import HANG_S, FakeEngine, Rig, planned, routed

LONG = "All work and no play makes Jack a dull boy. " * 20

LEVEL = ServiceLevel(
    slo_class="chat",
    ttft=(
        Objective(percentile=95, ms=60_000, max_prompt_tokens=100),
        Objective(percentile=99, ms=0.001, max_prompt_tokens=None),
    ),
    tpot=(Objective(percentile=90, ms=0.000_001),),
    workload=Workload(mean_input_tokens=1, mean_output_tokens=1, source="test"),
)


def e(name: str = "i1", **given: object) -> FakeEngine:
    return FakeEngine(name, **given)  # type: ignore[arg-type]


# --- answers ---------------------------------------------------------------------------------------
async def test_an_answer_comes_through_whole() -> None:
    async with routed(e()) as rig:
        told = await rig.ask()
    assert told.status == 200
    assert told.json["choices"][0]["message"]["content"] == "a b c"
    assert told.headers["x-coral-instance"] == "i1/1"
    assert told.headers["x-coral-slo-class"] == "chat"


async def test_a_stream_comes_without_the_usage_that_only_the_router_asked_for() -> None:
    async with routed(e()) as rig:
        told = await rig.ask(stream=True)
        assert rig.engines[0].seen[0]["stream_options"] == {"include_usage": True}
        assert rig.total("output_tokens") == 3
        assert rig.total("input_tokens") == 10
        assert rig.total("cached_input_tokens") == 4
    assert told.text == "a b c"
    assert told.events[-1] == "[DONE]"
    assert not any("usage" in event for event in told.events)


async def test_a_client_that_asked_for_usage_gets_it() -> None:
    async with routed(e()) as rig:
        told = await rig.ask(stream=True, stream_options={"include_usage": True})
        assert rig.total("output_tokens") == 3
    assert told.events[-2]["usage"]["completion_tokens"] == 3


async def test_other_stream_options_are_kept() -> None:
    async with routed(e()) as rig:
        await rig.ask(stream=True, stream_options={"continuous_usage_stats": False})
    assert rig.engines[0].seen[0]["stream_options"] == {
        "continuous_usage_stats": False,
        "include_usage": True,
    }


async def test_tokens_arrive_while_the_stream_goes_on() -> None:
    engine = e()
    async with routed(engine) as rig:
        engine.go_on.clear()
        ask = {"model": "tiny", "messages": [], "stream": True}
        async with rig.client.post(f"{rig.url}/v1/chat/completions", json=ask) as answer:
            seen = b""
            async with asyncio.timeout(HANG_S):
                while b'"a "' not in seen:
                    seen += await answer.content.readany()
            engine.go_on.set()
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")


async def test_the_clients_key_is_not_passed_on() -> None:
    async with routed(e(), settings=RouterSettings(api_keys={"k": "t"})) as rig:
        told = await rig.ask(headers={"Authorization": "Bearer k", "X-Request-Id": "r"})
    assert told.status == 200
    assert "authorization" not in rig.engines[0].headers[0]
    assert rig.engines[0].headers[0]["x-request-id"] == "r"


# --- where to --------------------------------------------------------------------------------------
async def test_requests_follow_the_weights() -> None:
    async with routed(e("i1"), e("i2"), weights=(3.0, 1.0)) as rig:
        told = await asyncio.gather(
            *(rig.ask(messages=[{"role": "user", "content": str(n)}]) for n in range(80))
        )
    assert Counter(t.headers["x-coral-instance"] for t in told) == {"i1/1": 60, "i2/1": 20}


async def test_a_conversation_stays_where_it_began() -> None:
    async with routed(*(e(f"i{n}") for n in range(4))) as rig:
        turns = [{"role": "system", "content": LONG}, {"role": "user", "content": "I am number 7"}]
        home = (await rig.ask(messages=turns)).headers["x-coral-instance"]
        for n in range(20):
            await rig.ask(messages=[{"role": "user", "content": f"{n} {LONG}"}])
        turns += [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Go on"}]
        assert (await rig.ask(messages=turns)).headers["x-coral-instance"] == home


async def test_a_new_plan_sends_new_requests_elsewhere_and_cuts_no_stream() -> None:
    first, second = e("i1"), e("i2")
    async with routed(first, second) as rig:
        rig.door.take(planned(2, first))
        first.go_on.clear()
        old = asyncio.create_task(rig.ask(stream=True))
        await first.asked_for()
        rig.door.take(planned(3, second))
        told = await rig.ask()
        assert told.headers["x-coral-instance"] == "i2/1"
        first.go_on.set()
        assert (await old).text == "a b c"


async def test_a_class_is_named_by_a_header() -> None:
    async with routed(e(), demand={"tiny/batch/both": 1.0, "tiny/chat/both": 1.0}) as rig:
        assert (await rig.ask()).status == 503, "batch is the first class, and nothing serves it"
        told = await rig.ask(headers={"x-slo-class": "chat"})
        assert (told.status, told.headers["x-coral-slo-class"]) == (200, "chat")
        odd = await rig.ask(headers={"x-slo-class": "odd"})
        assert (odd.status, odd.json["error"]["param"]) == (400, "x-slo-class")


async def test_models_are_those_of_the_plan() -> None:
    async with (
        routed(e(), demand={"big/batch/both": 1.0}) as rig,
        rig.client.get(f"{rig.url}/v1/models") as answer,
    ):
        listed = (await answer.json())["data"]
    assert {model["id"]: model["slo_classes"] for model in listed} == {"big": ["batch"], "tiny": ["chat"]}


# --- when instances fail ---------------------------------------------------------------------------
@pytest.mark.parametrize("mood", ["elsewhere", "500", "dies"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_before_the_first_token_another_instance_is_asked(mood: str, stream: bool) -> None:
    async with routed(e("i1", mood=mood), e("i2")) as rig:
        told = [await rig.ask(stream=stream) for _ in range(8)]
        assert rig.total("finished") == 8
        assert rig.total("refused") == 0
    assert {(t.status, t.headers["x-coral-instance"]) for t in told} == {(200, "i2/1")}
    assert 1 <= len(rig.engines[0].seen) <= 3, "a breaker opens, at once where an instance drains"


async def test_any_number_of_instances_may_drain() -> None:
    """The plan may be late: nothing was done there, so asking on costs nothing."""
    drains = [e(f"i{n}", mood="elsewhere") for n in range(1, 6)]
    async with routed(*drains, e("i6")) as rig:
        assert {(await rig.ask()).headers["x-coral-instance"] for _ in range(3)} == {"i6/1"}
    assert [len(engine.seen) for engine in drains] == [1] * 5


async def test_a_stream_that_begins_with_an_error_of_the_engine_has_not_begun() -> None:
    """vLLM answers 200 before it knows that its engine is dead."""
    async with routed(e("i1", mood="dead engine"), e("i2")) as rig:
        assert {(await rig.ask(stream=True)).text for _ in range(4)} == {"a b c"}
        assert rig.total("finished") == 4


async def test_nobody_listening_is_passed_over() -> None:
    gone = e("i0", endpoint="127.0.0.1:1")
    async with routed(e("i1")) as rig:
        gone.endpoint = "127.0.0.1:1"
        rig.door.take(planned(2, gone, rig.engines[0]))
        assert {(await rig.ask()).status for _ in range(6)} == {200}


async def test_after_the_first_token_a_client_is_told_that_its_stream_broke_off() -> None:
    async with routed(e("i1", mood="breaks off"), e("i2", mood="breaks off")) as rig:
        told = await rig.ask(stream=True)
        assert rig.total("finished") == 0
    assert sum(len(engine.seen) for engine in rig.engines) == 1
    assert "error" in told.events[-1]


async def test_an_engine_that_ends_a_stream_with_an_error_did_not_finish_it() -> None:
    async with routed(e(mood="error event")) as rig:
        told = await rig.ask(stream=True)
        assert rig.total("finished") == 0
    assert any("error" in event for event in told.events)


async def test_the_only_instance_is_asked_once_more_and_its_own_error_passed_on() -> None:
    async with routed(e(mood="dies")) as rig:
        told = await rig.ask()
        assert (told.status, told.json["error"]["type"]) == (502, "service_unavailable")
        assert len(rig.engines[0].seen) == 2
        rig.engines[0].mood = "500"
        told = await rig.ask()
        assert (told.status, told.json["error"]["message"]) == (500, "i1")
        rig.engines[0].mood = "elsewhere"
        told = await rig.ask()
        assert told.status == 503


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def routed_to(serve: Serve, via: str = "router") -> AsyncIterator[Rig]:
    """A router whose only instance is a server of bare bytes, behind a door or not."""
    serving: set[asyncio.Task[None]] = set()

    async def noted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        this = asyncio.current_task()
        assert this is not None
        serving.add(this)
        with closing(writer), suppress(OSError):
            await serve(reader, writer)

    async def over() -> None:
        await asyncio.gather(*serving)

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(await asyncio.start_server(noted, "127.0.0.1", 0))
        stack.push_async_callback(over)
        place = "{}:{}".format(*server.sockets[0].getsockname())
        if via == "door":
            door = await Door.open("127.0.0.1", f"http://{place}")
            stack.push_async_callback(door.close)
            place = door.endpoint
        rig = await stack.enter_async_context(routed(plans=False))
        rig.door.take(planned(1, e(endpoint=place)))
        yield rig


def failures(rig: Rig) -> int:
    """In a row, of the only instance."""
    way = rig.door.routes.way("tiny", "chat")
    assert way is not None
    ((_, _, count),) = way.groups[0].standing()
    return count


async def test_a_connection_that_dies_idle_says_nothing_about_its_instance() -> None:
    """Whoever is between may close it at any time; now and then that is as a request goes out."""
    answers = iter([OK, b"", OK])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof() and (answer := (await reader.read(10_000) and next(answers))):
            writer.write(answer)

    async with routed_to(serve) as rig:
        assert [(await rig.ask()).status for _ in range(2)] == [200, 200]
        assert failures(rig) == 0
    assert next(answers, None) is None


@pytest.mark.parametrize("via", ["router", "door"])
@pytest.mark.parametrize(
    "fields",
    [b"X-A: b\nSet-Cookie: evil=1", b"X-A: b\0", b"Content-Length: 7", b"Content-Length : 2", b": b"],
)
async def test_an_instance_that_speaks_no_http_has_failed(fields: bytes, via: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK.replace(b"OK", b"OK\r\n" + fields))

    async with routed_to(serve, via) as rig:
        told = await rig.ask()
        assert (told.status, told.json["error"]["type"]) == (502, "service_unavailable")
        assert "no HTTP" in told.json["error"]["message"]
        assert failures(rig) > 0


async def test_a_clients_own_mistake_is_passed_on() -> None:
    async with routed(e(mood="400"), e("i2", mood="400")) as rig:
        assert [(await rig.ask()).status for _ in range(5)] == [400] * 5
    assert sum(len(engine.seen) for engine in rig.engines) == 5


@pytest.mark.parametrize("begun", [True, False], ids=["mid-stream", "before the first token"])
async def test_a_client_that_goes_away_takes_its_request_with_it(begun: bool) -> None:
    engine = e() if begun else e(mood="silent")
    async with routed(engine) as rig:
        engine.go_on.clear()
        asking = asyncio.create_task(rig.ask(stream=True))
        await engine.asked_for()
        asking.cancel()
        await asyncio.wait_for(engine.left.wait(), 3.0)  # three times the second it may take
        await asyncio.wait_for(rig.door.in_flight.none(), 3.0)
        way = rig.door.routes.way("tiny", "chat")
        assert way is not None
        assert way.groups[0].in_flight == 0


# --- when there is no room -------------------------------------------------------------------------
async def test_what_nothing_serves_now_may_be_asked_again_later() -> None:
    async with routed(e(), demand={"big/chat/both": 2.0}) as rig:
        told = await rig.ask(model="big")
        assert rig.total("offered") == rig.total("refused") == 1
    assert (told.status, told.headers["Retry-After"]) == (503, "10")


async def test_an_unknown_model_is_not_found() -> None:
    async with routed(e()) as rig:
        told = await rig.ask(model="other")
        assert rig.total("offered") == 0
    assert (told.status, told.json["error"]["code"]) == (404, "model_not_found")


async def test_when_every_queue_is_full_clients_shall_wait() -> None:
    engine = e(mood="silent")
    async with routed(engine) as rig:
        waiting = [asyncio.create_task(rig.ask()) for _ in range(128)]
        await engine.asked_for(128)
        told = await rig.ask()
        assert (told.status, told.headers["Retry-After"]) == (429, "1")
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_before_the_first_plan_demand_is_told_all_the_same() -> None:
    """Nobody else can tell the controller that there is any."""
    async with routed(plans=False, levels={("tiny", "chat"): LEVEL}) as rig:
        assert (await rig.ask()).status == 503
        assert rig.total("offered") == rig.total("refused") == 1
        async with rig.client.get(f"{rig.url}/health") as answer:
            assert answer.status == 200


async def test_a_router_that_knows_nothing_says_so() -> None:
    async with routed(plans=False) as rig:
        told = await rig.ask()
        assert (told.status, told.headers["Retry-After"]) == (503, "10")
        async with rig.client.get(f"{rig.url}/health") as answer:
            assert answer.status == 503


# --- who may ask, and what -------------------------------------------------------------------------
async def test_keys_name_tenants_and_keep_strangers_out() -> None:
    async with routed(e(), settings=RouterSettings(api_keys={"secret": "acme"})) as rig:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
            told = await rig.ask(headers=headers)
            assert (told.status, told.json["error"]["code"]) == (401, "invalid_api_key")
            async with rig.client.get(f"{rig.url}/v1/models", headers=headers) as answer:
                assert answer.status == 401
        assert (await rig.ask(headers={"Authorization": "Bearer secret"})).status == 200
        assert {sample.tenant for sample in rig.samples() if sample.offered} == {"acme"}
        async with rig.client.get(f"{rig.url}/health") as answer:
            assert answer.status == 200


async def test_a_body_has_a_limit() -> None:
    async with routed(e(), settings=RouterSettings(max_body_bytes=1000)) as rig:
        assert (await rig.ask(padding="x" * 500)).status == 200
        told = await rig.ask(padding="x" * 1000)
    assert (told.status, told.json["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b"{}", "model"),
        (b'{"model": 7}', "model"),
        (b'{"model": "tiny", "stream": "yes"}', "stream"),
        (b'{"model": "tiny", "stream_options": 1}', "stream_options"),
        (b"\xff\xfe", None),
    ],
)
async def test_a_body_that_makes_no_sense_is_refused_by_name(body: bytes, param: str | None) -> None:
    async with routed(e()) as rig, rig.client.post(f"{rig.url}/v1/completions", data=body) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["param"] == param
    assert not rig.engines[0].seen


async def test_other_paths_are_not_found_in_the_shape_of_the_api() -> None:
    async with routed(e()) as rig:
        for method, path in (("POST", "/v1/embeddings"), ("GET", "/v1/chat/completions"), ("GET", "/")):
            async with rig.client.request(method, f"{rig.url}{path}") as answer:
                assert answer.status == 404
                assert (await answer.json())["error"]["type"] == "invalid_request_error"


async def test_a_compressed_body_is_refused() -> None:
    async with routed(e()) as rig:
        assert (await rig.ask(headers={"Content-Encoding": "gzip"})).status == 415


# --- prefill, then decode --------------------------------------------------------------------------
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_prefill_hands_its_cache_to_decode(stream: bool) -> None:
    prefill, decode = e("i1"), e("i2")
    async with routed(prefill, decode, phases=("prefill", "decode")) as rig:
        asked: dict[str, Any] = {"max_tokens": 50, "max_completion_tokens": 40, "min_tokens": 5}
        told = await rig.ask(stream=stream, **asked)
        assert rig.total("finished") == 1
    assert told.status == 200
    assert told.headers["x-coral-instance"] == "i2/1"
    first, second = prefill.seen[0], decode.seen[0]
    assert (first["max_tokens"], first["max_completion_tokens"], first["stream"]) == (1, 1, False)
    assert first["kv_transfer_params"]["do_remote_decode"] is True
    assert first["kv_transfer_params"]["do_remote_prefill"] is False
    assert {"stream_options", "min_tokens"}.isdisjoint(first)
    assert second["kv_transfer_params"] == {"do_remote_prefill": True, "remote_engine_id": "i1"}
    assert {name: second[name] for name in asked} == asked
    assert second["stream"] is stream


async def test_a_decode_that_fails_is_done_again_from_the_prompt() -> None:
    engines = e("i1"), e("i2", mood="dies"), e("i3")
    async with routed(*engines, phases=("prefill", "decode", "decode"), weights=(1.0, 9.0, 1.0)) as rig:
        told = await rig.ask()
    assert (told.status, told.headers["x-coral-instance"]) == (200, "i3/1")
    assert [len(engine.seen) for engine in engines] == [2, 1, 1]


async def test_a_prefill_that_refuses_is_heard() -> None:
    async with routed(e("i1", mood="400"), e("i2"), phases=("prefill", "decode")) as rig:
        assert (await rig.ask()).status == 400
    assert not rig.engines[1].seen


# --- telemetry -------------------------------------------------------------------------------------
async def test_every_kind_of_the_plan_has_a_sample_each_second_zeros_included() -> None:
    async with routed(e(), demand={"big/chat/both": 1.0}) as rig:
        await asyncio.sleep(0.01)
        kinds = [(s.model, s.slo_class, s.offered) for s in rig.samples()]
        assert sorted(kinds) == [("big", "chat", 0), ("tiny", "chat", 0)]
        await rig.ask(stream=True)
        await asyncio.sleep(0.01)
        again = rig.samples()[2:]
    assert sorted((s.model, s.offered, s.finished) for s in again) == [("big", 0, 0), ("tiny", 1, 1)]
    told = next(s for s in again if s.model == "tiny")
    assert (told.ttft_ms.count, told.tpot_ms.count) == (1, 1)
    assert told.source == "r1"
    assert told.at_ms >= rig.samples()[0].at_ms + rig.samples()[0].interval_ms


async def test_metrics_tell_what_became_of_requests_and_which_promises_were_kept() -> None:
    async with routed(e(), levels={("tiny", "chat"): LEVEL}) as rig:
        await rig.ask(stream=True)
        await asyncio.sleep(0.01)
        (told,) = [s for s in rig.samples() if s.finished]
        async with rig.client.get(f"{rig.url}/metrics") as answer:
            text = await answer.text()
    assert {a.objective: (a.met, a.judged) for a in told.attained} == {
        "ttft_p95_60000ms": (1, 1),
        "tpot_p90_1e-06ms": (0, 1),
    }
    assert 'coral_router_requests_total{model="tiny",outcome="finished",slo_class="chat"} 1.0' in text
    assert 'coral_router_tokens_total{kind="cached",model="tiny",slo_class="chat"} 4.0' in text
    kept = 'coral_router_slo_attainment{model="tiny",objective="ttft_p95_60000ms",slo_class="chat"} 1.0'
    assert kept in text
    assert 'objective="tpot_p90_1e-06ms",slo_class="chat"} 0.0' in text
    assert "ttft_p99" not in text, "a short prompt is held against the bucket of short prompts"
    assert 'coral_router_in_flight{instance="i1/1",model="tiny",phase="both",slo_class="chat"} 0.0' in text


def test_a_refusal_says_when_to_ask_again() -> None:
    assert Refused(503, "x", retry_after_s=0.2).response.headers["Retry-After"] == "1"
    assert "Retry-After" not in Refused(404, "x").response.headers
