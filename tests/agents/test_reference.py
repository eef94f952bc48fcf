"""The reference check on doubles of vLLM's HTTP; tests/vllm shows what it finds on real ones."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from agents.engine import EngineError
from agents.reference import Reference, ask, compare, deviation, file_of, load, precision
from agents.reference_make import calibrate

REVISION = "a" * 64
GOOD = Reference(
    revision=REVISION,
    precision="auto",
    engine="vllm-0.32.0",
    prompts=((1, 2, 3), (4, 5)),
    answers=((-1.0, -2.0), (-3.0,)),
    tolerance=0.1,
    calibration="by hand",
)


# --- comparing -------------------------------------------------------------------------------------
def test_the_same_answers_are_right() -> None:
    assert compare(GOOD, GOOD.answers) is None


def test_within_the_tolerance_is_right() -> None:
    assert compare(GOOD, [(-1.09, -2.0), (-2.95,)]) is None


def test_one_token_off_is_wrong() -> None:
    why = compare(GOOD, [(-1.0, -2.0), (-3.5,)])
    assert why is not None
    assert why.startswith("log-probabilities are 0.5 off the reference, expected 0.1 at most")


@pytest.mark.parametrize("answers", [[(-1.0, -2.0)], [(-1.0,), (-3.0,)], [(-1.0, -2.0), (-3.0,), ()]])
def test_answers_to_other_prompts_are_wrong(answers: list[tuple[float, ...]]) -> None:
    assert compare(GOOD, answers) == "the answers are not as long as the reference's prompts"


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("place", [0, 1])
def test_no_number_is_wrong(value: float, place: int) -> None:
    first = (value, -2.0) if place == 0 else (-1.0, value)
    assert compare(GOOD, [first, (-3.0,)]) is not None


@given(st.lists(st.floats(-50, 0), min_size=3, max_size=3))
def test_deviation_is_a_distance(values: list[float]) -> None:
    answers = [tuple(values[:2]), tuple(values[2:])]
    assert deviation(answers, answers) == 0
    assert deviation(answers, GOOD.answers) == deviation(GOOD.answers, answers) >= 0


# --- files -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("vllm_args", "name"),
    [
        ({}, "auto"),
        ({"dtype": "bfloat16", "max-model-len": "8192"}, "bfloat16"),
        ({"quantization": "fp8", "kv-cache-dtype": "fp8_e4m3"}, "auto-q-fp8-kv-fp8_e4m3"),
    ],
)
def test_a_file_for_each_precision(vllm_args: dict[str, str], name: str) -> None:
    assert precision(vllm_args) == name
    assert file_of(Path("m"), name).name == f"coral-reference-{name}.json"


def test_a_reference_is_read_as_it_was_written(tmp_path: Path) -> None:
    file_of(tmp_path, "auto").write_text(GOOD.model_dump_json())
    assert load(tmp_path, REVISION, "auto") == GOOD


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory, expected what `coral reference make` writes"),
        ("{", "JSON: Invalid JSON"),
        (GOOD.model_copy(update={"tolerance": 0.0}).model_dump_json(), "tolerance: Input should be greater"),
        (GOOD.model_copy(update={"revision": "b" * 64}).model_dump_json(), "revision: b+, expected a+"),
        (GOOD.model_copy(update={"precision": "float32"}).model_dump_json(), "precision: float32, expected"),
    ],
)
def test_what_is_no_reference(tmp_path: Path, content: str | None, why: str) -> None:
    if content is not None:
        file_of(tmp_path, "auto").write_text(content)
    with pytest.raises(EngineError, match=why) as told:
        load(tmp_path, REVISION, "auto")
    assert told.value.refusal == "no_reference"


# --- asking ----------------------------------------------------------------------------------------
def logprob(token: int, alone: bool) -> float:
    """A model whose answers differ a little with what else is in the batch, as real ones do."""
    return -float(token) - (0.0 if alone else 0.01)


async def completions(request: web.Request) -> web.Response:
    wish = await request.json()
    if wish["model"] != "reference":
        return web.json_response({"error": "no such model"}, status=404)
    prompts = wish["prompt"]
    choices: list[dict[str, Any]] = [
        {
            "index": index,
            "text": "x",
            "prompt_logprobs": [None]
            + [{str(token): {"logprob": logprob(token, len(prompts) == 1)}} for token in prompt[1:]],
        }
        for index, prompt in enumerate(prompts)
    ]
    return web.json_response({"choices": list(reversed(choices))})


@pytest.fixture
async def server() -> AsyncIterator[str]:
    """vLLM's `/v1/completions`, as far as it is asked here."""
    app = web.Application()
    app.router.add_post("/v1/completions", completions)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_answers_come_in_the_prompts_order(server: str) -> None:
    assert await ask(server, "reference", [[1, 2, 3], [4, 5]], timeout_s=30) == [(-2.01, -3.01), (-5.01,)]


async def test_the_spread_is_what_batches_change(server: str) -> None:
    answers, spread = await calibrate(server, [[1, 2, 3], [4, 5]])
    assert list(answers) == [(-2.0, -3.0), (-5.0,)]
    assert spread == pytest.approx(0.01)


async def test_a_server_that_refuses(server: str) -> None:
    with pytest.raises(EngineError, match=r"answered 404: .*no such model"):
        await ask(server, "other", [[1, 2]], timeout_s=30)


async def test_nobody_listens() -> None:
    with pytest.raises(EngineError, match="did not answer"):
        await ask("http://127.0.0.1:1", "reference", [[1, 2]], timeout_s=30)


@pytest.mark.parametrize(
    "choices",
    [
        [],
        [{"index": 0, "text": "x"}],
        [{"index": 0, "prompt_logprobs": [None]}],
        [{"index": 0, "prompt_logprobs": [None, None]}],
        [{"index": 0, "prompt_logprobs": [None, {"9": {"logprob": -1.0}}]}],
    ],
)
async def test_answers_without_log_probabilities(choices: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async def post(*_: object, **__: object) -> Any:
        return json.loads(json.dumps({"choices": choices}))

    monkeypatch.setattr("agents.reference.post", post)
    with pytest.raises(EngineError, match="gave no log-probabilities of the prompts"):
        await ask("http://127.0.0.1:1", "reference", [[1, 2]], timeout_s=30)
