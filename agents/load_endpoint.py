"""A live endpoint under load: address and version, prompts of a wanted length, figures as vLLM names them."""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

import aiohttp
import numpy as np

from agents.load import OK, Asking, Failed, Reply, Served, Tally, ask
from agents.urls import http_url

WORDS = ("coral", "reef", "wave", "tide", "sand", "fish", "kelp", "shell", "crab", "foam", "salt", "gull")
SHORT, LONG = 8, 72
"""Words of the two prompts by which the server's tokens a word are found."""
PERCENTILES = (90, 95, 99)
SPREAD = ("mean", "median", "std", *(f"p{percentile}" for percentile in PERCENTILES))


class EndpointError(ValueError):
    """An endpoint that cannot be measured."""


@dataclass(frozen=True)
class Target:
    """What is asked of whom."""

    url: str
    """Its root, or with `/v1`."""
    model: str
    """As the endpoint calls it."""
    input_tokens: int
    output_tokens: int
    chat: bool = False
    """Ask for chats; else for completions, to whose prompts nothing is added."""

    @property
    def root(self) -> str:
        """Raises ValueError if the URL is none."""
        http_url(self.url)
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def path(self) -> str:
        return f"{self.root}/v1/{'chat/completions' if self.chat else 'completions'}"

    def body(self, prompt: str) -> Mapping[str, Any]:
        """`ignore_eos` is vLLM's: an answer shall be as long as was asked for."""
        said = {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        return {
            "model": self.model,
            "max_tokens": self.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            **said,
        }


def connect(key: str | None, timeout_s: float) -> aiohttp.ClientSession:
    """A session that opens as many connections as there are requests, and gives each so long."""
    return aiohttp.ClientSession(
        headers={} if key is None else {"Authorization": f"Bearer {key}"},
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
    )


async def version(session: aiohttp.ClientSession, target: Target) -> str | None:
    """What vLLM says at `/version`, as `vllm-0.32.0`; None from whoever says nothing there."""
    with suppress(aiohttp.ClientError, TimeoutError, ValueError):
        async with session.get(f"{target.root}/version") as response:
            if response.status == OK and isinstance(said := await response.json(), dict):
                return f"vllm-{said['version']}" if "version" in said else None
    return None


@dataclass(frozen=True)
class Prepared:
    """A target with prompts of the right length."""

    asking: Asking
    alone_s: float
    """How long a lone request takes."""


async def prepare(session: aiohttp.ClientSession, target: Target) -> Prepared:
    """Find out how many words a prompt needs, which also has the server compile what it compiles late.

    Raises:
        EndpointError: it does not answer, or does not count tokens.
    """
    prompt = prompts()

    async def tokens(words: int) -> int:
        return (await _served(session, target, prompt(words))).input_tokens

    short, long = await tokens(SHORT), await tokens(LONG)
    if long <= short:
        raise EndpointError(
            f"{target.path}: {short} and {long} prompt tokens for {SHORT} and {LONG} words, expected `usage` "
            "with the tokens of each"
        )
    words = SHORT + round((target.input_tokens - short) * (LONG - SHORT) / (long - short))
    if words < 1:
        raise EndpointError(
            f"--input-tokens: {target.input_tokens}, expected more: {short} are {SHORT} words"
        )
    lone = await _served(session, target, prompt(words))

    def asking() -> Awaitable[Reply]:
        return ask(session, target.path, target.body(prompt(words)))

    return Prepared(asking, lone.last_s - lone.began_s)


async def _served(session: aiohttp.ClientSession, target: Target, prompt: str) -> Served:
    reply = await ask(session, target.path, target.body(prompt))
    if isinstance(reply, Failed):
        why = f"{reply.why} {reply.detail}".strip()
        raise EndpointError(f"{target.path}: {why}, expected a stream for model {target.model!r}")
    if not (reply.input_tokens and reply.output_tokens):
        raise EndpointError(
            f"{target.path}: no `usage` at a stream's end, expected the tokens of prompt and answer"
        )
    return reply


def prompts() -> Callable[[int], str]:
    """Makes prompts of so many words. All differ in their first word, now and in the next run.

    So none begins as another did, and no prefix cache flatters the figures.
    """
    run, number, chance = secrets.token_hex(3), count(), Random(0)
    return lambda words: " ".join([f"{next(number)}{run}", *chance.choices(WORDS, k=words - 1)])


# ---------------------------------------------------------------------------------------------- figures


def figures(tally: Tally) -> dict[str, float | None]:
    """A load's figures by the names of `vllm bench serve`; something must have been served."""
    served = tally.served
    ttft = [1000 * reply.ttft_s for reply in served]
    tpot = [1000 * reply.tpot_s for reply in served if reply.tpot_s is not None]
    written = sum(reply.output_tokens for reply in served)
    return {
        "duration": len(served) / tally.throughput,
        "completed": len(served),
        "failed": sum(tally.failures.values()),
        "total_input_tokens": sum(reply.input_tokens for reply in served),
        "total_output_tokens": written,
        "request_throughput": tally.throughput,
        "output_throughput": tally.throughput * written / len(served),
        **_spread("ttft", ttft),
        **_spread("tpot", tpot),
    }


def _spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Mean and the rest, in ms; None where nothing was measured (answers of one token have no pace)."""
    spread: dict[str, float | None] = dict.fromkeys(f"{how}_{name}_ms" for how in SPREAD)
    if values:
        some = np.array(values)
        told = [some.mean(), np.median(some), some.std(), *np.percentile(some, PERCENTILES)]
        spread = dict(zip(spread, map(float, told), strict=True))
    return spread
