"""An agent whose engines outlive it is killed at every point of a node's life, and the next one goes on."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.identity import NodeIdentity
from agents.ledger import Ledger, RankKey
from agents.reconciler import AGENT_RESTARTED, Reconciler
from agents.state_dir import StateDir
from schemas.plans import Plan
from tests.agents.making import POOL, instance, plan, rank
from tests.agents.outliving import AgentKilled, Machine

IDENTITY = NodeIdentity("n1", POOL, "4xL4", devices=4, memory_gb=96.0)
TWO = (rank(device=0), rank(device=1))
FIRST, OTHER, NEXT = RankKey("i1", 1, 0, 0), RankKey("i1", 1, 1, 0), RankKey("i2", 1, 0, 0)


class DyingState(StateDir):
    """A disk whose agent may be killed just before or just after a write."""

    def __init__(self, path: Path, machine: Machine) -> None:
        super().__init__(path)
        self._machine = machine

    def write_ledger(self, ledger: Ledger) -> None:
        self._machine.effect()
        super().write_ledger(ledger)
        self._machine.effect()

    def write_plan(self, plan: Plan) -> None:
        self._machine.effect()
        super().write_plan(plan)
        self._machine.effect()


class World:
    """A machine, the newest plan on the topic, and agents one after the other."""

    def __init__(self, path: Path, *crash_at: int) -> None:
        self.machine = Machine(crash_at=frozenset(crash_at))
        self.path = path
        self.plan: Plan | None = None
        self.lives = 0
        self.failed: set[RankKey] = set()
        """What heartbeats would have said has failed."""
        self.missing: set[RankKey] = set()
        """What the ledger had started when the agent died, and the machine had not."""

    async def boot(self) -> None:
        """A new agent, which finds the newest plan on the topic."""
        self.lives += 1
        self.machine.crashed = False
        self.node = Reconciler(
            IDENTITY,
            DyingState(self.path, self.machine),
            self.machine.engine,
            lambda: 0,
            boot="b",
            sweep=self.machine.sweep,
        )
        await self._live(self.node.begin())
        if self.plan is not None and not self.machine.crashed:
            await self.say(self.plan)

    async def say(self, wish: Plan) -> None:
        self.plan = wish

        async def hear() -> None:
            self.node.accept(wish)

        await self._live(hear())

    async def happens(self, what: Callable[[], object]) -> None:
        what()
        await self._live(asyncio.sleep(0))

    async def _live(self, what: object) -> None:
        assert asyncio.iscoroutine(what)
        doing = asyncio.create_task(what)
        for _ in range(30):  # as many turns of the loop as anything here takes
            await asyncio.sleep(0)
        assert doing.done(), "it takes more turns than that"
        error = doing.exception()
        assert error is None or isinstance(error, AgentKilled), error
        if self.machine.crashed:
            await bury()
            live = StateDir(self.path).read_ledger().live
            self.missing |= {held.key for held in live if held.key not in self.machine.processes}
            await self.boot()
        else:
            stages = self.node.heartbeat().stages
            self.failed |= {
                RankKey(stage.instance, stage.attempt, stage.stage, stage.rank)
                for stage in stages
                if stage.state == "failed"
            }


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent dies here, not the machine: what was written is there without waiting for the disk."""
    monkeypatch.setattr("os.fsync", lambda _: None)


async def bury() -> None:
    """A dead agent's tasks do nothing more."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def a_whole_life(world: World) -> None:
    """Two ranks rise, are drained, and another instance takes their devices."""
    machine = world.machine
    await world.boot()
    await world.say(plan(1, instance("i1", *TWO)))
    await world.happens(machine.rise)
    await world.say(plan(2, instance("i1", *TWO, role="draining"), instance("i3", rank(device=3))))
    await world.happens(machine.finish_told)
    await world.say(plan(3, instance("i2", *TWO)))
    await world.happens(machine.rise)
    await world.say(plan(4))
    await world.happens(machine.finish_told)


async def test_every_crash_point_is_safe(tmp_path: Path) -> None:
    """It costs an attempt only between the ledger's word and the start, when nobody knows whether it was."""
    whole = World(tmp_path)
    await a_whole_life(whole)
    assert whole.machine.effects > 40
    assert whole.lives == 1
    costly = 0
    for point in range(whole.machine.effects):
        world = World(tmp_path / str(point), point)
        world.path.mkdir()
        await a_whole_life(world)
        check(world)
        assert world.lives == 2, point
        assert world.failed == world.missing, point
        costly += bool(world.missing)
    print(f"killed at {whole.machine.effects} points, {costly} of which cost an attempt")
    assert costly


def check(world: World) -> None:
    points = sorted(world.machine.crash_at)
    assert set(world.machine.starts.values()) <= {1}, f"{points}: started twice"
    assert not world.machine.live, f"{points}: an engine is left over"
    assert world.node.heartbeat().stages == (), f"{points}: something is still reported"
    assert world.node.newest == (1, 1, 4)
    assert world.failed <= world.missing, f"{points}: what was there has failed"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(0, 90), min_size=2, max_size=6))
def test_so_is_every_set_of_them(tmp_path_factory: pytest.TempPathFactory, points: set[int]) -> None:
    """Also those in the life of the next agent, before it has done what the last one left."""
    world = World(tmp_path_factory.mktemp("state"), *points)

    async def live() -> None:
        await a_whole_life(world)
        check(world)

    asyncio.run(live())


async def test_what_is_ready_stays_ready_over_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.boot()
    await world.say(plan(1, instance("i1", *TWO)))
    await world.happens(world.machine.processes[FIRST].rise)
    for _ in range(3):
        await world.node.let_go()
        await world.boot()
    head, tail = world.node.heartbeat().stages
    assert (head.state, head.endpoint, head.verified, head.start_s) == ("ready", "127.0.0.1:1", True, 1.0)
    assert (tail.state, tail.phase) == ("starting", "loading")
    assert world.machine.starts == {FIRST: 1, OTHER: 1}
    assert not any(process.told for process in world.machine.processes.values())
    await world.happens(world.machine.processes[OTHER].rise)
    assert [stage.state for stage in world.node.heartbeat().stages] == ["ready", "ready"]
    await bury()


async def test_what_ended_while_no_agent_was_there_says_why(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.boot()
    await world.say(plan(1, instance("i1")))
    await world.node.let_go()
    world.machine.processes[FIRST].finish("killed by signal 9")
    await world.boot()
    (failed,) = world.node.heartbeat().stages
    assert (failed.state, failed.reason) == ("failed", "killed by signal 9")


async def test_what_the_ledger_does_not_know_is_swept(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.boot()
    await world.say(plan(1, instance("i1"), instance("i2", rank(device=1))))
    await world.node.let_go()
    state = StateDir(tmp_path)
    ledger = state.read_ledger()
    state.write_ledger(ledger.model_copy(update={"held": ledger.held[:1]}))
    await world.boot()
    assert set(world.machine.live) == {FIRST}
    await bury()


async def test_what_the_plan_dropped_meanwhile_is_drained(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.boot()
    await world.say(plan(1, instance("i1"), instance("i2", rank(device=1))))
    await world.happens(world.machine.rise)
    await world.node.let_go()
    world.plan = plan(2, instance("i1"))
    await world.boot()
    assert world.machine.processes[NEXT].told == ["drain"]
    assert world.machine.processes[FIRST].told == []
    await bury()


async def test_an_engine_that_cannot_be_adopted_is_swept_and_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    await world.boot()
    await world.say(plan(1, instance("i1")))
    await world.node.let_go()

    async def unreadable(self: object, key: RankKey) -> bool:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("tests.agents.outliving.Outliving.adopt", unreadable)
    await world.boot()
    assert world.machine.processes[FIRST].end.result().reason == "swept"
    (failed,) = world.node.heartbeat().stages
    assert (failed.state, failed.reason) == ("failed", AGENT_RESTARTED)
