"""The reconciler over simulated engines, without Kafka, and what a node keeps on disk."""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from agents import engine_room
from agents.engine import End, EngineError, EngineSpec, Up
from agents.identity import NodeIdentity
from agents.ledger import Attempt as AttemptKey
from agents.ledger import Gone, Ledger, RankKey, Spot, Start, advance
from agents.node import run_node
from agents.reconciler import AGENT_RESTARTED, Reconciler
from agents.simulated import SimulatedEngine
from agents.state_dir import StateDir, StateError
from schemas.events import StageReport
from schemas.settings import KafkaSettings
from tests.agents.making import POOL, instance, plan, rank

HANG_S = 30.0
IDENTITY = NodeIdentity("n1", POOL, "4xL4", devices=4, memory_gb=96.0)


class Bench:
    """A reconciler, its engines in order of their start, and a clock that only a test moves."""

    def __init__(self, path: Path, kind: type[SimulatedEngine] = SimulatedEngine) -> None:
        self.state = StateDir(path)
        self.kind = kind
        self.engines: list[SimulatedEngine] = []
        self.now_ms = 0
        path.mkdir(exist_ok=True)
        self.node = self.reconciler("b1")

    def reconciler(self, boot: str) -> Reconciler:
        return Reconciler(IDENTITY, self.state, self._engine, lambda: self.now_ms, boot=boot)

    def _engine(self) -> SimulatedEngine:
        self.engines.append(self.kind(time_scale=0.1, linger_s=0.0))
        return self.engines[-1]

    def stages(self) -> tuple[StageReport, ...]:
        return self.node.heartbeat().stages

    async def until(self, *states: str) -> tuple[StageReport, ...]:
        async with asyncio.timeout(HANG_S):
            while tuple(stage.state for stage in self.stages()) != states:
                self.node.changed.clear()
                await self.node.changed.wait()
        return self.stages()


async def turns() -> None:
    """Let everything happen that waits for nothing but its turn."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path / "state")
    await made.node.begin()
    yield made
    await asyncio.wait_for(made.node.end(), HANG_S)


async def test_a_plan_becomes_engines_and_they_report(bench: Bench) -> None:
    bench.node.accept(plan(1, instance("i1", rank(device=0), rank(device=1))))
    starting = bench.stages()
    assert [stage.state for stage in starting] == ["starting", "starting"]
    head, tail = await bench.until("ready", "ready")
    assert head.endpoint is not None
    assert (tail.endpoint, tail.verified) == (None, None)
    assert head.verified is True
    assert head.start_s is not None
    assert head.start_s > 0
    assert bench.node.heartbeat().plan == "1-1-1"
    bench.node.accept(plan(2, instance("i1", rank(device=0), rank(device=1), role="draining")))
    await bench.until("drained", "drained")
    assert bench.node.idle.is_set()
    bench.node.accept(plan(3))
    assert bench.stages() == ()


async def test_older_plans_are_dropped(bench: Bench) -> None:
    bench.node.accept(plan(5, instance("i1")))
    bench.node.accept(plan(4))
    bench.node.accept(plan(9, epoch=0))
    assert bench.node.newest == (1, 1, 5)
    await bench.until("ready")


async def test_waiting_is_reported_as_starting_with_its_reason(bench: Bench) -> None:
    bench.node.accept(plan(1, instance("i1")))
    await bench.until("ready")
    bench.node.accept(plan(2, instance("i2")))
    waiting = next(stage for stage in bench.stages() if stage.instance == "i2")
    assert (waiting.state, waiting.reason) == ("starting", "waiting for devices [0], held by i1")
    assert waiting.phase == "waiting"
    (ready,) = await bench.until("ready")
    assert ready.instance == "i2"


async def test_a_crash_is_reported_and_nothing_starts_by_itself(bench: Bench) -> None:
    bench.node.accept(plan(1, instance("i1")))
    await bench.until("ready")
    await bench.engines[0].crash("killed by signal 9")
    (failed,) = await bench.until("failed")
    assert failed.reason == "killed by signal 9"
    bench.node.accept(plan(2, instance("i1")))
    assert len(bench.engines) == 1
    bench.node.accept(plan(3, instance("i1", attempt=2)))
    (again,) = await bench.until("ready")
    assert again.attempt == 2


async def test_an_engine_that_cannot_be_launched_fails_with_its_reason(tmp_path: Path) -> None:
    class Broken(SimulatedEngine):
        async def start(self, spec: EngineSpec) -> None:
            raise EngineError(f"no weights of {spec.template.checkpoint}")

    bench = Bench(tmp_path / "state", Broken)
    await bench.node.begin()
    bench.node.accept(plan(1, instance("i1")))
    (failed,) = await bench.until("failed")
    assert failed.reason == "no weights of tiny"


@pytest.mark.parametrize("how", ["start", "end"])
async def test_an_engine_that_finds_it_impossible_is_refused(tmp_path: Path, how: str) -> None:
    class Refusing(SimulatedEngine):
        async def start(self, spec: EngineSpec) -> None:
            if how == "start":
                raise EngineError(f"port of {spec.key.instance} is taken", "port_taken")

        async def gone(self) -> End:
            return End("port of i1 is taken", "port_taken")

    bench = Bench(tmp_path / "state", Refusing)
    await bench.node.begin()
    bench.node.accept(plan(1, instance("i1")))
    (refused,) = await bench.until("refused")
    assert (refused.refusal, refused.reason) == ("port_taken", "port of i1 is taken")


async def test_an_engine_that_breaks_its_word_is_stopped_too(tmp_path: Path) -> None:
    stopped = asyncio.Event()

    class Broken(SimulatedEngine):
        async def ready(self) -> Up:
            raise RuntimeError("unreadable status")

        async def stop(self) -> None:
            await super().stop()
            stopped.set()

    bench = Bench(tmp_path / "state", Broken)
    await bench.node.begin()
    bench.node.accept(plan(1, instance("i1")))
    (failed,) = await bench.until("failed")
    assert failed.reason == "RuntimeError: unreadable status"
    await asyncio.wait_for(stopped.wait(), HANG_S)


async def test_a_request_that_fails_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_room, "AGAIN_S", 0.0)
    failures = [OSError(28, "No space left on device")] * 3

    class Full(SimulatedEngine):
        async def drain(self) -> None:
            if failures:
                raise failures.pop()
            await super().drain()

    bench = Bench(tmp_path / "state", Full)
    await bench.node.begin()
    bench.node.accept(plan(1, instance("i1")))
    await bench.until("ready")
    bench.node.accept(plan(2, instance("i1", role="draining")))
    await bench.until("drained")
    assert not failures


async def test_a_pull_slot_reaches_what_is_starting(tmp_path: Path) -> None:
    granted: list[RankKey] = []

    class Pulling(SimulatedEngine):
        async def start(self, spec: EngineSpec) -> None:
            self.key = spec.key

        async def may_pull(self) -> None:
            granted.append(self.key)

    bench = Bench(tmp_path / "state", Pulling)
    await bench.node.begin()
    bench.node.accept(plan(1, instance("i1")))
    bench.node.accept(plan(2, instance("i1")).model_copy(update={"pulls": ("c2",)}))
    await turns()
    assert granted == [], "the slot is the neighbour's"
    bench.node.accept(plan(3, instance("i1")).model_copy(update={"pulls": ("c1",)}))
    await turns()
    assert set(granted) == {RankKey("i1", 1, 0, 0)}
    both = (instance("i1"), instance("i2", rank(device=1)))
    bench.node.accept(plan(4, *both).model_copy(update={"pulls": ("c1",)}))
    await turns()
    assert set(granted) == {RankKey("i1", 1, 0, 0), RankKey("i2", 1, 0, 0)}
    await bench.node.let_go()


async def test_a_disk_that_fails_ends_the_agent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(ledger: Ledger) -> None:
        raise OSError(28, "No space left on device")

    bench.node.accept(plan(1, instance("i1")))
    with monkeypatch.context() as patched:
        patched.setattr(bench.state, "write_ledger", full)
        await asyncio.wait_for(bench.engines[0].ready(), HANG_S)
        await asyncio.sleep(0.01)
    with pytest.raises(OSError, match="No space left"):
        bench.node.reconcile()
    await bench.engines[0].stop()
    await asyncio.wait_for(bench.engines[0].gone(), HANG_S)
    bench.node = bench.reconciler("b2")


async def test_the_drain_deadline_kills(bench: Bench) -> None:
    bench.node.accept(plan(1, instance("i1", drain_deadline_ms=1_000)))
    (ready,) = await bench.until("ready")
    assert ready.endpoint is not None
    host, _, port = ready.endpoint.partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = b'{"model": "tiny", "prompt": "x", "max_tokens": 100000, "stream": true}'
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    async with asyncio.timeout(HANG_S):
        while not bench.stages()[0].in_flight:  # noqa: ASYNC110  a count to poll, not an event
            await asyncio.sleep(0.01)
    bench.node.accept(plan(2))
    bench.now_ms = 999
    bench.node.reconcile()
    assert (bench.stages()[0].state, bench.stages()[0].in_flight) == ("draining", 1)
    bench.now_ms = 1_000
    bench.node.reconcile()
    await bench.until()
    writer.close()


async def test_leaving_drains_everything_and_says_so(bench: Bench) -> None:
    bench.node.accept(plan(1, instance("i1")))
    await bench.until("ready")
    bench.node.leave(60_000)
    assert bench.node.heartbeat().leaving
    await asyncio.wait_for(bench.node.idle.wait(), HANG_S)
    assert [stage.state for stage in bench.stages()] == ["drained"]


async def test_a_notice_is_reported_and_drains_at_the_last(bench: Bench) -> None:
    bench.node.accept(plan(1, instance("i1")))
    await bench.until("ready")
    bench.node.notice(50_000)
    bench.node.notice(90_000)
    assert bench.node.heartbeat().notice_deadline_ms == 50_000
    assert [stage.state for stage in bench.stages()] == ["ready"]
    bench.now_ms = 20_000
    bench.node.reconcile()
    (drained,) = await bench.until("drained")
    assert drained.reason == "the node is about to end"


async def test_ending_starts_nothing_that_waited(bench: Bench) -> None:
    bench.node.accept(plan(1, instance("i1")))
    await bench.until("ready")
    bench.node.accept(plan(2, instance("i2")))
    await asyncio.wait_for(bench.node.end(), HANG_S)
    assert len(bench.engines) == 1


async def test_a_restarted_agent_reports_what_ended_with_the_old_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "state")
    wish = plan(1, instance("i1"))
    bench.state.write_plan(wish)
    bench.state.write_ledger(
        advance(Ledger(), Start(AttemptKey("i1", 1), (Spot(RankKey("i1", 1, 0, 0), (0,)),)))
    )
    await bench.node.begin()
    assert bench.node.newest == wish.order
    (failed,) = bench.stages()
    assert (failed.state, failed.reason) == ("failed", AGENT_RESTARTED)
    assert len(bench.engines) == 1, "asked whether it could be adopted, never started"
    bench.node.accept(plan(2, instance("i1", attempt=2)))
    await bench.until("ready")
    await bench.node.end()


async def test_it_begins_from_its_disk_where_kafka_is_away(tmp_path: Path) -> None:
    StateDir(tmp_path).write_plan(plan(1, instance("i1")))
    made: asyncio.Queue[SimulatedEngine] = asyncio.Queue()

    def make() -> SimulatedEngine:
        made.put_nowait(engine := SimulatedEngine(time_scale=0.1, linger_s=0.0))
        return engine

    nowhere = KafkaSettings(bootstrap_servers="127.0.0.1:9")
    agent = asyncio.create_task(run_node(nowhere, "t", IDENTITY, tmp_path, make))
    await asyncio.wait_for(made.get(), HANG_S)  # asked whether it outlives its agent, and no more
    engine = await asyncio.wait_for(made.get(), HANG_S)
    assert (await asyncio.wait_for(engine.ready(), HANG_S)).endpoint is not None
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(engine.gone(), HANG_S) == End()
    await asyncio.wait_for(agent, HANG_S)
    gc.collect()  # meets a client that was left open, as a warning, which is an error here


# --- the folder --------------------------------------------------------------------------------------
def test_the_ledger_is_on_disk_before_an_engine_is_made(tmp_path: Path) -> None:
    found: list[Ledger] = []

    class Looking(SimulatedEngine):
        def __init__(self) -> None:
            super().__init__(time_scale=0.0)
            found.append(StateDir(tmp_path).read_ledger())

    async def scenario(look: Callable[[], SimulatedEngine]) -> None:
        node = Reconciler(IDENTITY, StateDir(tmp_path), look, lambda: 0, boot="b")
        await node.begin()
        node.accept(plan(1, instance("i1")))
        await asyncio.wait_for(node.end(), HANG_S)

    asyncio.run(scenario(Looking))
    assert found[0].attempts == {"i1": 1}


def test_state_survives_and_only_whole(tmp_path: Path) -> None:
    state, key = StateDir(tmp_path), RankKey("i1", 1, 0, 0)
    ledger = advance(Ledger(), Start(AttemptKey("i1", 1), (Spot(key, (0, 1)),)))
    ledger = advance(ledger, Gone(key, "x"))
    state.write_ledger(ledger)
    state.write_plan(plan(3, instance("i1")))
    assert state.read_ledger() == ledger
    assert state.read_plan() == plan(3, instance("i1"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.json", "plan.json"]


def test_an_unreadable_ledger_stops_the_agent(tmp_path: Path) -> None:
    (tmp_path / "ledger.json").write_text('{"attempts": 7}')
    with pytest.raises(StateError, match=r"ledger\.json: attempts: "):
        StateDir(tmp_path).read_ledger()


def test_one_agent_a_folder(tmp_path: Path) -> None:
    with (
        StateDir(tmp_path / "a").owned(),
        pytest.raises(StateError, match="another node agent"),
        StateDir(tmp_path / "a").owned(),
    ):
        pass
    with StateDir(tmp_path / "a").owned():
        pass
