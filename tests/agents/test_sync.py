"""A balancer's list of endpoints, in step with the plan."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from agents import sync
from agents.proxy import new_runner
from agents.sync import InStep, ListFile, WorkerApi, endpoints, is_url
from tests.agents.router_rig import FakeEngine, planned

HANG_S = 30.0
ONE, TWO = FakeEngine("i1", endpoint="h1:1"), FakeEngine("i2", endpoint="h2:2")


class FakeBalancer:
    """The worker API of vllm-router."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.slow: set[str] = set()
        """Workers that never become healthy."""
        self.url = ""
        self.changed = asyncio.Event()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeBalancer"]:
        app = web.Application()
        app.add_routes(
            [
                web.get("/list_workers", self._list),
                web.post("/add_worker", self._add),
                web.post("/remove_worker", self._remove),
            ]
        )
        runner = new_runner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def has(self, *urls: str) -> None:
        """Wait until these are its workers."""
        async with asyncio.timeout(HANG_S):
            while set(self.urls) != set(urls):
                self.changed.clear()
                await self.changed.wait()

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"urls": self.urls})

    async def _add(self, request: web.Request) -> web.Response:
        url = request.query["url"]
        if url in self.slow:
            await asyncio.Event().wait()
        if url in self.urls:
            return web.Response(status=400, text=f"Worker {url} already exists")
        self.urls.append(url)
        self.changed.set()
        return web.Response(text=f"Successfully added worker: {url}")

    async def _remove(self, request: web.Request) -> web.Response:
        if request.query["url"] in self.urls:
            self.urls.remove(request.query["url"])
        self.changed.set()
        return web.Response()


@asynccontextmanager
async def kept(balancer: sync.Balancer) -> AsyncIterator[InStep]:
    step = InStep(balancer, None, None)
    keeping = asyncio.create_task(step.keep())
    try:
        yield step
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})


def test_endpoints_are_those_of_whole_instances_that_serve_the_model() -> None:
    plan = planned(1, ONE, TWO)
    assert endpoints(plan, None, None) == {"http://h1:1", "http://h2:2"}
    assert endpoints(plan, "tiny", "chat") == {"http://h1:1", "http://h2:2"}
    assert endpoints(plan, "tiny", "batch") == endpoints(plan, "other", None) == frozenset()
    assert endpoints(planned(1, ONE, TWO, phases=("both", "decode")), None, None) == {"http://h1:1"}


def test_a_model_must_be_named_where_there_are_several() -> None:
    plan = planned(1, ONE, TWO)
    other = plan.instances[1].service.model_copy(update={"model": "big"})
    several = plan.model_copy(
        update={"instances": (plan.instances[0], plan.instances[1].model_copy(update={"service": other}))}
    )
    with pytest.raises(ValueError, match=r"--model: not given, expected one of \['big', 'tiny'\]"):
        endpoints(several, None, None)
    assert endpoints(several, "big", None) == {"http://h2:2"}


async def test_workers_come_and_go_with_the_plan() -> None:
    async with FakeBalancer().serving() as balancer, aiohttp.ClientSession() as session:
        balancer.urls = ["http://stranger:1"]
        async with kept(WorkerApi(session, balancer.url + "/")) as step:
            step.take(planned(1, ONE))
            await balancer.has("http://h1:1")
            step.take(planned(2, ONE, TWO))
            await balancer.has("http://h1:1", "http://h2:2")
            step.take(planned(3, TWO))
            await balancer.has("http://h2:2")


async def test_a_worker_that_is_slow_to_be_healthy_keeps_no_other_in_the_list() -> None:
    async with FakeBalancer().serving() as balancer, aiohttp.ClientSession() as session:
        balancer.urls = ["http://h2:2", "http://drains:1"]
        balancer.slow = {"http://h1:1"}
        async with kept(WorkerApi(session, balancer.url)) as step:
            step.take(planned(1, ONE, TWO))
            await balancer.has("http://h2:2")


async def test_a_balancer_that_lost_its_list_is_put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "AGAIN_S", 0.05)
    async with (
        FakeBalancer().serving() as balancer,
        aiohttp.ClientSession() as session,
        kept(WorkerApi(session, balancer.url)) as step,
    ):
        step.take(planned(1, ONE))
        await balancer.has("http://h1:1")
        balancer.urls.clear()
        await balancer.has("http://h1:1")


async def test_a_balancer_that_is_away_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "AGAIN_S", 0.05)

    class Away(ListFile):
        failed = 0

        async def show(self, urls: frozenset[str]) -> None:
            if self.failed < 3:
                self.failed += 1
                raise aiohttp.ClientError
            done.set_result(urls)
            await asyncio.Event().wait()

    done: asyncio.Future[frozenset[str]] = asyncio.get_running_loop().create_future()
    async with kept(Away(Path("unused"))) as step:
        step.take(planned(1, ONE))
        assert await asyncio.wait_for(done, HANG_S) == {"http://h1:1"}


async def test_a_file_is_replaced_whole_and_only_on_news(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    balancer = ListFile(path)
    await balancer.show(frozenset({"http://b", "http://a"}))
    assert json.loads(path.read_text()) == ["http://a", "http://b"]
    inode = path.stat().st_ino
    await balancer.show(frozenset({"http://a", "http://b"}))
    assert path.stat().st_ino == inode
    await balancer.show(frozenset())
    assert json.loads(path.read_text()) == []


def test_an_address_or_a_file() -> None:
    assert is_url("http://h:1")
    assert is_url("https://h")
    assert not is_url("/etc/endpoints.json")
    assert not is_url("endpoints.json")


@pytest.mark.parametrize("to", ["ftp://x", "http://", "unix:///run/x", "http://h:99999"])
def test_a_url_of_another_scheme_or_without_a_host_is_no_balancer(to: str) -> None:
    with pytest.raises(ValueError, match="expected an http or https URL"):
        is_url(to)
