"""Word from the cloud that it will take this node away: polled, believed, passed on.

A source that fails is a source without news: it is logged once and asked again, since a node must not end for
want of a metadata service.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import httpx
from pydantic import AwareDatetime, BaseModel

log = logging.getLogger(__name__)

AFTER_FAILURE_S = 5.0


class Notices(Protocol):
    """Where notices come from."""

    @property
    def every_s(self) -> float:
        """How long to wait after an answer before the next question."""

    async def deadline_ms(self) -> int | None:
        """When the node is taken away, in ms since the epoch; None while nothing is said.

        May wait for news, for a minute at most.

        Raises:
            OSError, httpx.HTTPError: there is no answer.
            ValueError: the answer is none; the text says what was expected.
        """

    async def aclose(self) -> None:
        """Close what is open."""


@dataclass(frozen=True)
class FixedNotice:
    """The double."""

    deadline: int | None = None
    every_s: float = 3600.0

    async def deadline_ms(self) -> int | None:
        return self.deadline

    async def aclose(self) -> None:
        """There is nothing open."""


@dataclass(frozen=True)
class FileNotice:
    """A file that somebody drops: the local cloud, or a person. It holds the time, in ms since the epoch."""

    path: Path
    every_s: float = 1.0

    async def deadline_ms(self) -> int | None:
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return None
        if not text.strip().isdecimal():
            raise ValueError(f"{self.path}: {text[:40]!r}, expected milliseconds since the epoch")
        return int(text)

    async def aclose(self) -> None:
        """There is nothing open."""


class AwsNotices:
    """EC2's spot interruption notice, two minutes ahead, by IMDSv2.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    """

    every_s = 5.0  # as that page recommends
    TOKEN, ACTION = "/latest/api/token", "/latest/meta-data/spot/instance-action"
    TOKEN_S = 21_600

    def __init__(self, base_url: str = "http://169.254.169.254") -> None:
        self._client = _client(base_url)
        self._token: str | None = None

    async def deadline_ms(self) -> int | None:
        answer = await self._ask()
        if answer.status_code == httpx.codes.UNAUTHORIZED:  # the token's time is over
            self._token = None
            answer = await self._ask()
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        action = _InstanceAction.model_validate_json(answer.raise_for_status().text)
        return int(action.time.timestamp() * 1000)

    async def _ask(self) -> httpx.Response:
        if self._token is None:
            lives = {"X-aws-ec2-metadata-token-ttl-seconds": str(self.TOKEN_S)}
            answer = await self._client.put(self.TOKEN, headers=lives)
            self._token = answer.raise_for_status().text
        return await self._client.get(self.ACTION, headers={"X-aws-ec2-metadata-token": self._token})

    async def aclose(self) -> None:
        await self._client.aclose()


class _InstanceAction(BaseModel):
    """`action` is stop, terminate or hibernate: the node is gone after each of them."""

    time: AwareDatetime


class GcpNotices:
    """Compute Engine's preemption of a spot VM, 30 s ahead.

    https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption and
    https://cloud.google.com/compute/docs/metadata/querying-metadata#waitforchange
    """

    every_s = 1.0  # the server keeps a question until there is news
    PREEMPTED = "/computeMetadata/v1/instance/preempted"
    WAIT_S = 60
    NOTICE_MS = 30_000

    def __init__(
        self,
        base_url: str = "http://metadata.google.internal",
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._client = _client(base_url, self.WAIT_S)
        self._now_ms = now_ms
        self._etag = "NONE"  # of no answer: the first question is answered at once
        self._deadline_ms: int | None = None

    async def deadline_ms(self) -> int | None:
        if self._deadline_ms is not None:
            return self._deadline_ms  # it is not taken back
        question = {"wait_for_change": "true", "timeout_sec": str(self.WAIT_S), "last_etag": self._etag}
        answer = await self._client.get(
            self.PREEMPTED, params=question, headers={"Metadata-Flavor": "Google"}
        )
        answer.raise_for_status()
        if answer.headers.get("metadata-flavor") != "Google":
            raise ValueError(f"{answer.url}: answered by no metadata server of Google's")
        self._etag = answer.headers.get("etag", "NONE")
        if answer.text.strip() == "TRUE":
            self._deadline_ms = self._now_ms() + self.NOTICE_MS
        return self._deadline_ms

    async def aclose(self) -> None:
        await self._client.aclose()


def _client(base_url: str, wait_s: float = 0.0) -> httpx.AsyncClient:
    """No proxy ever stands between a machine and its own metadata."""
    timeout = httpx.Timeout(2.0, read=2.0 + wait_s)
    return httpx.AsyncClient(base_url=base_url, timeout=timeout, trust_env=False)


def metadata_service(kind: Literal["none", "aws", "gcp"]) -> tuple[Notices, ...]:
    """The notices of a cloud, none or one source, as `schemas.settings.NodeSettings.notices` has it."""
    sources: dict[str, Callable[[], Notices]] = {"aws": AwsNotices, "gcp": GcpNotices}
    return (sources[kind](),) if kind in sources else ()


async def watch(source: Notices, tell: Callable[[int], None]) -> None:
    """Pass on what a source says, until cancelled; the same deadline may be told again and again."""
    failing = False
    try:
        while True:
            try:
                deadline_ms = await source.deadline_ms()
            except (OSError, ValueError, httpx.HTTPError) as error:
                if not failing:
                    log.warning("no notices: %s: %s", type(error).__name__, error)
                failing = True
                await asyncio.sleep(AFTER_FAILURE_S)
                continue
            failing = False
            if deadline_ms is not None:
                tell(deadline_ms)
            await asyncio.sleep(source.every_s)
    finally:
        await source.aclose()
