"""Asks one vLLM server over loopback HTTP how it is. What its answers mean is decided by `agents.vitals`.

A check of all ranks goes through vLLM's development mode: `check_health`, called in every worker. **It is
never given less time than a step may take.** vLLM (0.32) forgets a check whose time is up and takes its late
answers for those of the next step, so a hasty check would break the very engine that was only slow.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from agents.engine import EngineError, Progress
from agents.vitals import Health, Metrics, Vitals

Verify = Callable[[str], Awaitable[bool]]
"""Checks the answers of the server at a base URL against a reference (`agents.reference`): True when they
agree, False when there is none and none is needed; raises EngineError otherwise."""

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
LOADED = (b"Loading weights took", b"Model loading took", b"torch.compile takes", b"Capturing CUDA graph")
"""What vLLM logs when its weights are in memory, or later."""

LOOK_EVERY_S = 1.0
POLL_S = 0.25
ANSWER_S = 2.0
"""For what a server answers by itself; vLLM's may be busy with a long prompt."""
ADMISSION_CHECK_S = 3600.0
"""The first check may wait for a compilation; whoever waits for the admission has a deadline of his own."""


class Probe:
    """One vLLM server. An async context manager: it owns its client."""

    def __init__(self, base_url: str) -> None:
        """
        Args:
            base_url: such as `http://127.0.0.1:41234`, with vLLM in development mode.
        """
        self._base_url = base_url

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(self._base_url)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def health(self) -> Health:
        """What `/health` says."""
        return (await self._get("/health"))[0]

    async def metrics(self) -> Metrics | None:
        """Its figures now; None when it does not tell them."""
        health, text = await self._get("/metrics")
        return read_metrics(text) if health == "well" else None

    async def check_ranks(self, within_s: float) -> bool:
        """Whether all ranks answer (20-80 ms when well).

        Args:
            within_s: more than any step takes.

        Raises:
            EngineError: the server does not know the question.
        """
        asked = {"method": "check_health", "timeout": within_s}
        try:
            async with self._session.post(
                "/collective_rpc", json=asked, timeout=aiohttp.ClientTimeout(total=within_s + ANSWER_S)
            ) as response:
                if response.status in {404, 405}:
                    raise EngineError(
                        f"{self._base_url} has no /collective_rpc: it is in no development mode"
                    )
                return response.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    async def admit(
        self, tell: Callable[[Progress], None], verify: Verify, *, log: Path | None = None
    ) -> bool:
        """Wait until it may serve: healthy, all of its ranks answer, and its answers are right.

        Does not return while it does not come up: the caller watches its processes and the deadlines.

        Args:
            tell: hears what it does, in coarse steps.
            verify: the reference check.
            log: what the engine writes, where one would know of its compilation.

        Returns:
            What `verify` found: False for an instance that may serve unverified.

        Raises:
            EngineError: its answers are wrong, or it cannot be asked.
        """
        await self._come_up(tell, log)
        tell(Progress("verifying", "asks all ranks"))
        while not await self.check_ranks(ADMISSION_CHECK_S):  # noqa: ASYNC110  nothing tells but asking
            await asyncio.sleep(LOOK_EVERY_S)
        tell(Progress("verifying", "compares its answers with the reference"))
        return await verify(self._base_url)

    async def stuck(self, after_s: float) -> str:
        """Wait until it is dead though its process lives: why.

        Args:
            after_s: how long a step may take (vLLM's execute time-out), seconds.
        """
        vitals = Vitals(after_s, self._now())
        check: asyncio.Task[None] | None = None
        try:
            while True:
                health, metrics = await self.health(), await self.metrics()
                if dead := vitals.look(health, metrics, self._now()):
                    return dead
                if vitals.wants_check:
                    vitals.asked()
                    check = asyncio.create_task(self._check_into(vitals, 2 * after_s))
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            if check is not None:
                check.cancel()

    async def quiet(self, for_s: float = 2.0) -> None:
        """Wait until nothing ran or waited for `for_s` seconds; what does not answer is not quiet."""
        since: float | None = None
        while True:
            metrics = await self.metrics()
            if metrics is None or not metrics.idle:
                since = None
            elif since is None:
                since = self._now()
            elif self._now() - since >= for_s:
                return
            await asyncio.sleep(min(POLL_S, for_s / 4))

    async def _come_up(self, tell: Callable[[Progress], None], log: Path | None) -> None:
        told, read = False, 0
        while await self.health() != "well":
            if log is not None and not told:
                text = _read_on(log, read)
                read += len(text)
                if told := any(mark in text for mark in LOADED):
                    tell(Progress("compiling", "has its weights; compiles and warms up"))
            await asyncio.sleep(POLL_S)

    async def _check_into(self, vitals: Vitals, within_s: float) -> None:
        vitals.answered(await self.check_ranks(within_s))

    async def _get(self, path: str) -> tuple[Health, str]:
        try:
            async with self._session.get(path, timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as response:
                return "well" if response.status == 200 else "dead", await response.text()
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            refused = isinstance(error, OSError) and error.errno == errno.ECONNREFUSED
            return "refused" if refused else "silent", ""

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def read_metrics(text: str) -> Metrics | None:
    """What matters of Prometheus' text format; None where a figure is missing, which is not zero. Pure.

    The other nine tenths of vLLM's figures are not parsed: this runs every second beside the door.
    """
    wanted = {RUNNING, WAITING, *TOKENS}
    lines = [line for line in text.splitlines() if line.partition("{")[0].partition(" ")[0] in wanted]
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    if wanted - sums.keys():
        return None
    tokens = sum(sums[name] for name in TOKENS)
    return Metrics(running=int(sums[RUNNING]), waiting=int(sums[WAITING]), tokens=int(tokens))


def _read_on(log: Path, read: int) -> bytes:
    with log.open("rb") as file:
        file.seek(read)
        return file.read()
