"""A crowd of clients in a process of its own: streams through a router, and what became of each.

    python stream_clients.py URL PROMPTS STREAMS AT_ONCE RAMP_S TOKENS

PROMPTS is `distinct` or `shared`: in the latter, prompts begin with one of `SHARED` system prompts, some much
more often than others. One line of JSON a stream goes to standard output when it has ended.
"""

import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass

import aiohttp

SHARED = 40
LENGTH = 2000
"""Characters of a system prompt."""


@dataclass
class Ended:
    """One stream."""

    number: int
    beginning: int
    """Which shared system prompt it had; -1 for none."""
    began_s: float = 0.0
    """On the machine's monotonic clock."""
    status: int = 0
    instance: str = ""
    plan: str = ""
    tokens: int = 0
    whole: bool = False
    """It ended with `[DONE]`."""
    error: str = ""


def prompt(number: int, kind: str) -> tuple[int, list[dict[str, str]]]:
    chance = random.Random(number)
    beginning = min(int(chance.paretovariate(1.0)) - 1, SHARED - 1) if kind == "shared" else -1
    system = f"System prompt {beginning if beginning >= 0 else f'of {number}'}. ".ljust(LENGTH, "x")
    question = f"{number}: {chance.random()}"
    return beginning, [{"role": "system", "content": system}, {"role": "user", "content": question}]


async def stream(session: aiohttp.ClientSession, url: str, number: int, kind: str, tokens: int) -> Ended:
    beginning, messages = prompt(number, kind)
    ended = Ended(number, beginning, time.monotonic())
    body = {"model": "tiny", "messages": messages, "stream": True, "max_tokens": tokens}
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            ended.status = answer.status
            ended.instance = answer.headers.get("x-coral-instance", "")
            ended.plan = answer.headers.get("x-coral-plan", "")
            last = b""
            while chunk := await answer.content.readany():
                ended.tokens += chunk.count(b'"content": "') - chunk.count(b'"content": ""')
                last = chunk
            ended.whole = last.endswith(b"data: [DONE]\n\n")
            if answer.status != 200 or b'"error"' in last:
                ended.error = last.decode(errors="replace")[:300]
    except (aiohttp.ClientError, OSError) as error:
        ended.error = f"{type(error).__name__}: {error}"
    return ended


async def main(url: str, kind: str, streams: int, at_once: int, ramp_s: float, tokens: int) -> None:
    numbers = iter(range(streams))

    async def client(index: int) -> None:
        await asyncio.sleep(ramp_s * index / at_once)
        for number in numbers:
            print(json.dumps(asdict(await stream(session, url, number, kind, tokens))), flush=True)

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await asyncio.gather(*(client(index) for index in range(at_once)))


if __name__ == "__main__":
    address, prompts, *numbers = sys.argv[1:]
    asyncio.run(main(address, prompts, int(numbers[0]), int(numbers[1]), float(numbers[2]), int(numbers[3])))
