"""The reference check: does an instance compute what its weights say?

Ranks that disagree about the partition are healthy, answer 200, and are wrong. So before an instance is
admitted, the log-probabilities that it gives to the tokens of fixed prompts are compared to those of an
unpartitioned run. `coral reference make` does that run once and keeps its answers with the weights, one file
for each (revision, precision). Tokens alone would not do: GPUs of different kinds round differently.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import ValidationError

from agents.engine import EngineError
from schemas.base import Frozen
from schemas.catalog import Positive, Revision

Prompts = Sequence[Sequence[int]]
"""Token ids."""
Answers = Sequence[Sequence[float]]
"""Per prompt the natural log-probability of each of its tokens but the first, given those before it."""

_SHORT = {"quantization": "q", "kv-cache-dtype": "kv"}
"""Arguments beside `dtype` that change the numbers, and how a file's name calls them."""


class Reference(Frozen):
    """What an unpartitioned run answered, and how far from it an answer may be."""

    revision: Revision
    precision: str
    engine: str
    """Version of the engine that answered."""
    prompts: tuple[tuple[int, ...], ...]
    answers: tuple[tuple[float, ...], ...]
    tolerance: Positive
    """The greatest absolute difference of a log-probability that is still right, in nats."""
    calibration: str
    """How the tolerance was found, in words."""


def precision(vllm_args: Mapping[str, str]) -> str:
    """What of a variant's arguments changes its numbers, as a word: `auto`, `bfloat16`, `auto-kv-fp8`."""
    parts = [vllm_args.get("dtype", "auto")]
    parts += [f"{short}-{vllm_args[name]}" for name, short in _SHORT.items() if name in vllm_args]
    return "-".join(parts)


def file_of(folder: Path, precision: str) -> Path:
    """Where the reference of the weights in `folder` is."""
    return folder / f"coral-reference-{precision}.json"


def load(folder: Path, revision: str, precision: str) -> Reference:
    """The reference kept with the weights in `folder`.

    Raises:
        EngineError: there is none that fits, and why (refusal `no_reference`).
    """
    path = file_of(folder, precision)
    try:
        reference = Reference.model_validate_json(path.read_bytes())
    except OSError as error:
        raise EngineError(
            f"{path}: {error.strerror}, expected what `coral reference make` writes", "no_reference"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "JSON"
        raise EngineError(f"{path}: {where}: {first['msg']}", "no_reference") from error
    for what, found, expected in (
        ("revision", reference.revision, revision),
        ("precision", reference.precision, precision),
    ):
        if found != expected:
            raise EngineError(f"{path}: {what}: {found}, expected {expected}", "no_reference")
    return reference


# --- comparing -------------------------------------------------------------------------------------
def compare(reference: Reference, answers: Answers) -> str | None:
    """What is wrong with the answers to the reference's prompts; None if nothing. Pure."""
    if [len(answer) for answer in answers] != [len(answer) for answer in reference.answers]:
        return "the answers are not as long as the reference's prompts"
    worst = deviation(reference.answers, answers)
    if worst <= reference.tolerance:
        return None
    return (
        f"log-probabilities are {worst:.3g} off the reference, expected {reference.tolerance:.3g} at most: "
        f"its ranks do not compute what its weights say"
    )


def deviation(one: Answers, other: Answers) -> float:
    """The greatest absolute difference of two runs' answers to the same prompts, in nats. Pure.

    What is no number is infinitely far from everything.
    """
    pairs = (pair for ours, theirs in zip(one, other, strict=True) for pair in zip(ours, theirs, strict=True))
    apart = (abs(a - b) for a, b in pairs)
    return max((each if math.isfinite(each) else math.inf for each in apart), default=0.0)


# --- asking ----------------------------------------------------------------------------------------
async def ask(base_url: str, model: str, prompts: Prompts, *, timeout_s: float) -> Answers:
    """The answers of the vLLM server at `base_url` (such as `http://127.0.0.1:8000`), in one request.

    Raises:
        EngineError: it does not answer in time, or not as vLLM does; the text says what.
    """
    wish = {
        "model": model,
        "prompt": [list(prompt) for prompt in prompts],
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": 0,
    }
    answer = await post(base_url, "/v1/completions", wish, timeout_s=timeout_s)
    try:
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        return [
            tuple(_answers(prompt, choice["prompt_logprobs"]))
            for prompt, choice in zip(prompts, choices, strict=True)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"{base_url} gave no log-probabilities of the prompts: {error!r}") from error


async def post(base_url: str, path: str, body: Mapping[str, object], *, timeout_s: float) -> Any:
    """What the server says to a JSON request.

    Raises:
        EngineError: it does not answer in time, or not with 200 and JSON.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(base_url, timeout=timeout) as client,
            client.post(path, json=body) as response,
        ):
            text = await response.text()
            if not response.ok:
                raise EngineError(f"{base_url}{path} answered {response.status}: {text[:200]}")
            return json.loads(text)
    except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as error:
        raise EngineError(f"{base_url}{path} did not answer: {error!r}") from error


def _answers(prompt: Sequence[int], told: Sequence[Mapping[str, Any] | None]) -> Iterator[float]:
    """vLLM tells for each token of the prompt a map: token id -> {logprob}, and null for the first."""
    for token, likely in list(zip(prompt, told, strict=True))[1:]:
        if likely is None:
            raise ValueError(f"nothing is said about token {token}")
        yield float(likely[str(token)]["logprob"])
