"""Notices of clouds that tests play over HTTP, and what is done when a source fails."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from agents import notices
from agents.notices import (
    AwsNotices,
    FileNotice,
    FixedNotice,
    GcpNotices,
    Notices,
    metadata_service,
    watch,
)

HANG_S = 30.0


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


# --- AWS ---------------------------------------------------------------------------------------------
class Ec2:
    """IMDSv2: tokens that can expire, and the action once there is one."""

    def __init__(self) -> None:
        self.action: str | None = None
        self.tokens = 0
        self.app = web.Application()
        self.app.router.add_put("/latest/api/token", self._token)
        self.app.router.add_get("/latest/meta-data/spot/instance-action", self._action)

    async def _token(self, request: web.Request) -> web.Response:
        if not request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "").isdecimal():
            return web.Response(status=400)
        self.tokens += 1
        return web.Response(text=f"token-{self.tokens}")

    async def _action(self, request: web.Request) -> web.Response:
        if request.headers.get("X-aws-ec2-metadata-token") != f"token-{self.tokens}":
            return web.Response(status=401)
        return web.Response(status=404) if self.action is None else web.Response(text=self.action)


async def test_aws_says_when() -> None:
    cloud = Ec2()
    async with serving(cloud.app) as url:
        source = AwsNotices(url)
        assert await source.deadline_ms() is None
        cloud.action = '{"action": "terminate", "time": "2026-03-04T05:06:07Z"}'
        assert await source.deadline_ms() == 1_772_600_767_000
        assert cloud.tokens == 1
        await source.aclose()


async def test_aws_tokens_are_renewed() -> None:
    cloud = Ec2()
    async with serving(cloud.app) as url:
        source = AwsNotices(url)
        assert await source.deadline_ms() is None
        cloud.tokens += 1  # the one it has is over
        assert await source.deadline_ms() is None
        assert cloud.tokens == 3
        await source.aclose()


@pytest.mark.parametrize("said", ["soon", '{"action": "stop"}', '{"action": "stop", "time": "2026-03-04"}'])
async def test_an_aws_answer_that_is_none_is_an_error(said: str) -> None:
    cloud = Ec2()
    cloud.action = said
    async with serving(cloud.app) as url:
        source = AwsNotices(url)
        with pytest.raises(ValueError, match=r"time|JSON"):
            await source.deadline_ms()
        await source.aclose()


# --- GCP ---------------------------------------------------------------------------------------------
class ComputeEngine:
    """Keeps a question that knows the present answer until there is another."""

    def __init__(self) -> None:
        self.preempted = asyncio.Event()
        self.asked: list[str] = []
        self.app = web.Application()
        self.app.router.add_get("/computeMetadata/v1/instance/preempted", self._answer)

    async def _answer(self, request: web.Request) -> web.Response:
        assert request.headers["Metadata-Flavor"] == "Google"
        assert request.query["wait_for_change"] == "true"
        assert int(request.query["timeout_sec"]) > 0
        self.asked.append(request.query["last_etag"])
        if request.query["last_etag"] == "of-false":
            await self.preempted.wait()
        said = "true" if self.preempted.is_set() else "false"
        headers = {"Metadata-Flavor": "Google", "ETag": f"of-{said}"}
        return web.Response(text=said.upper(), headers=headers)


async def test_gcp_says_it_at_once() -> None:
    cloud = ComputeEngine()
    async with serving(cloud.app) as url:
        source = GcpNotices(url, now_ms=lambda: 1_000)
        assert await asyncio.wait_for(source.deadline_ms(), HANG_S) is None
        waiting = asyncio.create_task(source.deadline_ms())
        while len(cloud.asked) < 2:  # noqa: ASYNC110  a count to poll, not an event
            await asyncio.sleep(0.01)
        cloud.preempted.set()
        assert await asyncio.wait_for(waiting, HANG_S) == 31_000
        assert await source.deadline_ms() == 31_000, "it is not taken back"
        assert cloud.asked == ["NONE", "of-false"]
        await source.aclose()


async def test_somebody_else_at_gcps_address_is_not_believed() -> None:
    async def portal(_: web.Request) -> web.Response:
        return web.Response(text="TRUE")

    app = web.Application()
    app.router.add_get("/{anything:.*}", portal)
    async with serving(app) as url:
        source = GcpNotices(url)
        with pytest.raises(ValueError, match="no metadata server of Google's"):
            await source.deadline_ms()
        await source.aclose()


# --- a file, and the choice --------------------------------------------------------------------------
async def test_a_file_holds_a_number(tmp_path: Path) -> None:
    source = FileNotice(tmp_path / "notice")
    assert await source.deadline_ms() is None
    source.path.write_text("123\n")
    assert await source.deadline_ms() == 123
    source.path.write_text("soon")
    with pytest.raises(ValueError, match="'soon', expected milliseconds since the epoch"):
        await source.deadline_ms()


async def test_each_cloud_has_its_own_source() -> None:
    assert metadata_service("none") == ()
    for kind, expected in (("aws", AwsNotices), ("gcp", GcpNotices)):
        (source,) = metadata_service(kind)  # type: ignore[arg-type]
        assert isinstance(source, expected)
        await source.aclose()


# --- the watch ---------------------------------------------------------------------------------------
class Script:
    """Answers, or errors, one after the other; then nothing more."""

    every_s = 0.0

    def __init__(self, *answers: int | Exception | None) -> None:
        self._answers = list(answers)
        self.closed = False

    async def deadline_ms(self) -> int | None:
        if not self._answers:
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def aclose(self) -> None:
        self.closed = True


async def watched(source: Notices, until: Callable[[list[int]], bool]) -> list[int]:
    told: list[int] = []
    watching = asyncio.create_task(watch(source, told.append))
    async with asyncio.timeout(HANG_S):
        while not until(told):  # noqa: ASYNC110  a list to poll, not an event
            await asyncio.sleep(0)
    watching.cancel()
    await asyncio.wait({watching})
    return told


async def test_a_failing_source_is_logged_once_and_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notices, "AFTER_FAILURE_S", 0.0)
    gone = httpx.ConnectError("no route to host")
    source = Script(gone, gone, ValueError("not a time"), None, 5, gone, 7)
    assert await watched(source, lambda told: len(told) == 2) == [5, 7]
    assert [record.getMessage() for record in caplog.records] == [
        "no notices: ConnectError: no route to host"
    ] * 2, "once for each time it began to fail"
    assert source.closed


async def test_the_double_says_the_same_always() -> None:
    assert await watched(FixedNotice(9, every_s=0.0), lambda told: len(told) == 3) == [9, 9, 9]
