"""A world around the core, without Kafka, clocks or processes: log, cloud, nodes and solver as doubles.

Time moves only by `wait`; nodes start, drain and fail in log time. The solver double is greedy: it
covers each service with one-node templates from the cheapest stock.
"""

import heapq
from collections.abc import Callable
from itertools import count

from schemas.base import Frozen
from schemas.events import (
    AvailabilityChanged,
    ClaimGranted,
    ClaimRefused,
    ControlEvent,
    DeadLettered,
    DemandClosed,
    FleetAlive,
    Heartbeat,
    Leading,
    LineageStarted,
    NodeReported,
    Offer,
    PriceChanged,
    Published,
    Refusal,
    Solved,
    StageReport,
    Tick,
)
from schemas.plans import Instance, Plan
from schemas.policy import CorePolicy
from schemas.problems import (
    Answer,
    Pool,
    Problem,
)
from streams.core.effects import Effect, Publish, PutAside, Solve, WakeAt
from streams.core.record import LogRecord, Malformed
from streams.core.state import State
from streams.core.step import step
from tests.streams.doubles import EAST, WEST, contact, greedy, policy

WINDOW_MS = 10_000
START_MS = 1_700_000_000_000
BROKEN = ("StepFailed", "cannot be absorbed")
"""How alerts begin, and reasons to put a record aside, that only a bug of the core brings about."""
LIVES = (None, "starting", "ready")
"""What a stage to be drained may be before; None is not started at all."""

StageKey = tuple[str, int, int]
"""(instance, attempt, stage)"""


class World:
    """Feeds the core and performs its effects the way live parts would, only at once and in order."""

    def __init__(
        self, given: CorePolicy | None = None, solver: Callable[[Problem], Answer] = greedy, lead: bool = True
    ) -> None:
        self.state = State()
        self.solver = solver
        self.records: list[LogRecord] = []
        self.effects: list[tuple[int, Effect]] = []
        self.now_ms = START_MS
        self.level: dict[tuple[str, str], int] = {}
        self.pools: dict[str, Pool] = {}
        self.prices: dict[tuple[str, str], float] = {}
        self.nodes: dict[str, Heartbeat] = {}
        self.granted: dict[str, str] = {}
        self.dead: set[str] = set()
        self.idle: list[str] = []
        """Static nodes that no claim has; what is given back goes to the end."""
        self.engine = "simulated-1"
        """Engine version of the nodes that are made from now on."""
        self.startup_ms = 2_000
        self.pull_ms = 0
        """A rank waits for a pull slot and pulls for so long, if it is not 0."""
        self.drain_ms = 2_000
        self.refuse = False
        """The cloud has none, whatever it says."""
        self.refuses: Callable[[Heartbeat, str], Refusal | None] = lambda _node, _model: None
        """What a node refuses to start."""
        self.silent_partitions = False
        self.expects_bugs = False
        self._names = count(1)
        self._later: list[tuple[int, int, Callable[[], object]]] = []
        self._order = count()
        self._wake: int | None = None
        self.given = given or policy()
        self.say(LineageStarted(lineage=1))
        if lead:
            self.lead("a")

    # --- the log
    def say(self, event: ControlEvent | Malformed, value: bytes = b"") -> list[Effect]:
        """Append one record and perform what the core wants."""
        raw = value or (event.model_dump_json().encode() if isinstance(event, Frozen) else b"?")
        record = LogRecord(len(self.records), self.now_ms, raw, event)
        self.records.append(record)
        effects = step(self.state, record)
        self.effects += [(record.offset, effect) for effect in effects]
        broken = [e for e in effects if getattr(e, "name", getattr(e, "reason", "")).startswith(BROKEN)]
        assert self.expects_bugs or not broken, broken
        for effect in effects:
            self._perform(effect)
        return effects

    def lead(self, token: str) -> None:
        self.say(
            Leading(
                token=token,
                fleet="f",
                policy=self.given,
                library="lib",
                version="0",
                history=self.state.history,
                history_offset=self.state.offset,
            )
        )

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Solve():
                answer = self.solver(effect.problem)
                event = Solved(epoch=effect.epoch, problem=effect.problem.id, answer=answer)
                self.after(100, lambda: self.say(event))
            case Publish():
                done = Published(
                    epoch=effect.epoch,
                    plan=effect.plan.id,
                    digest=effect.plan.digest,
                    history="",
                    history_offset=effect.cause_offset,
                )
                self.after(1, lambda: self.say(done))
                self._apply(effect.plan)
            case WakeAt():
                self._wake = effect.at_ms
            case PutAside():
                self.after(1, lambda: self.say(DeadLettered(offset=effect.offset)))
            case _:
                pass

    # --- time
    def after(self, delay_ms: int, action: Callable[[], object]) -> None:
        heapq.heappush(self._later, (self.now_ms + delay_ms, next(self._order), action))

    def wait(self, span_ms: int) -> None:
        """Let log time pass; fleet partitions are listened to every 2 s, wake-ups come when due."""
        until = self.now_ms + span_ms
        while True:
            beat = (self.now_ms // 2_000 + 1) * 2_000
            wake = self._wake if self._wake is not None else until + 1
            later = self._later[0][0] if self._later else until + 1
            due = min(beat, max(wake, self.now_ms), later)
            if due > until:
                break
            self.now_ms = due
            if self._later and later == due:
                heapq.heappop(self._later)[2]()
            elif self._wake is not None and wake <= due:
                at, self._wake = self._wake, None
                self.say(Tick(due_ms=at))
            elif not self.silent_partitions:
                self.say(FleetAlive(partition=0, count=len(self.nodes)))
        self.now_ms = until

    # --- the market
    def offer(self, pool: Pool, usd: float, nodes: int, configuration: str = "1xL4") -> None:
        self.pools[pool.key] = pool
        self.prices[pool.key, configuration] = usd
        self.level[pool.key, configuration] = nodes
        offered = Offer(pool=pool, configuration=configuration, source="test")
        self.say(PriceChanged(offer=offered, usd_per_hour=usd, at_ms=self.now_ms))
        self.stock(pool, configuration)

    def stock(self, pool: Pool, configuration: str = "1xL4") -> None:
        offered = Offer(pool=pool, configuration=configuration, source="test")
        left = max(0, self.level[pool.key, configuration] - self.held(pool, configuration))
        self.say(AvailabilityChanged(offer=offered, obtainable=left, at_ms=self.now_ms))

    def held(self, pool: Pool, configuration: str = "1xL4") -> int:
        return sum(
            1
            for name in self.granted.values()
            if name in self.nodes
            and self.nodes[name].pool == pool
            and self.nodes[name].configuration == configuration
        )

    # --- demand
    def demand(self, rate: float, windows: int = 1, model: str = "m") -> None:
        """`windows` closed windows at `rate` requests/s."""
        for _ in range(windows):
            self.wait(WINDOW_MS)
            offered = round(rate * WINDOW_MS / 1000)
            self.say(
                DemandClosed(
                    model=model,
                    slo_class="interactive",
                    start_ms=self.now_ms - WINDOW_MS,
                    end_ms=self.now_ms,
                    partition=0,
                    sources=1,
                    offered=offered,
                    refused=0,
                    finished=offered,
                    input_tokens=100 * offered,
                    cached_input_tokens=0,
                    output_tokens=10 * offered,
                )
            )

    # --- cloud and nodes
    def _apply(self, plan: Plan) -> None:
        claims = {claim.id: claim for claim in plan.claims}
        for claim_id, name in list(self.granted.items()):
            if claim_id not in claims:
                del self.granted[claim_id]
                if name in self.nodes and self.nodes[name].claim is None:
                    self.idle.append(name)
                self.after(1, lambda name=name: self._release(name))  # type: ignore[misc]
        for claim in plan.claims:
            if claim.id not in self.granted and claim.node is None:
                self._grant(claim.id, claim.pool, claim.configuration)
        for node in plan.claims:
            if node.node is not None and node.node in self.nodes:
                self._run(plan, node.id, node.node)

    def _grant(self, claim: str, pool: Pool, configuration: str) -> None:
        if self.refuse or self.held(pool, configuration) >= self.level[pool.key, configuration]:
            refused = ClaimRefused(claim=claim, reason="out of stock")
            self.after(50, lambda: self.say(refused))
            return
        alike = (n for n in self.idle if self._place(n) == (pool, configuration))
        name = next(alike, None) or self._make(pool, configuration, claim)
        self.idle = [other for other in self.idle if other != name]
        self.granted[claim] = name
        self.after(50, lambda: self.say(ClaimGranted(claim=claim, node=name)))
        self.after(500, lambda: self.report(name))
        self.after(60, lambda: self.stock(pool, configuration))

    def _place(self, name: str) -> tuple[Pool, str]:
        return (self.nodes[name].pool, self.nodes[name].configuration)

    def _make(self, pool: Pool, configuration: str, claim: str | None) -> str:
        number = next(self._names)
        name = f"n{number}"
        self.nodes[name] = Heartbeat(
            node=name,
            boot="b",
            at_ms=self.now_ms,
            pool=pool,
            configuration=configuration,
            devices=1,
            memory_gb=24.0,
            contact=contact(number),
            engine=self.engine,
            claim=claim,
        )
        return name

    def static(self, pool: Pool, usd: float, *engines: str, configuration: str = "1xL4") -> list[str]:
        """Nodes that already run, one of each engine version, offered at a price; returns their names."""
        names = []
        for engine in engines:
            name = self._make(pool, configuration, None)
            self.nodes[name] = self.nodes[name].model_copy(update={"engine": engine})
            names.append(name)
            self.report(name)
        self.idle += names
        self.offer(pool, usd, len(names), configuration)
        return names

    def change(self, name: str, **news: object) -> None:
        """A node says something new of itself."""
        self.nodes[name] = self.nodes[name].model_copy(update=news)
        self.report(name)

    def _release(self, name: str) -> None:
        node = self.nodes.get(name)
        if node is None:
            return
        if node.claim is not None:
            del self.nodes[name]
            self.dead.add(name)
        self.stock(node.pool, node.configuration)

    def report(self, name: str) -> None:
        if name in self.nodes and name not in self.dead:
            self.nodes[name] = self.nodes[name].model_copy(update={"at_ms": self.now_ms})
            self.say(NodeReported(partition=0, report=self.nodes[name]))

    def _run(self, plan: Plan, claim: str, name: str) -> None:
        """Reconcile one node to the plan, as a node agent does."""
        mine = {
            (i.id, i.attempt, stage.index): i
            for i in plan.instances
            for stage in i.stages
            if any(rank.claim == claim for rank in stage.ranks)
        }
        have = {(s.instance, s.attempt, s.stage): s.state for s in self.nodes[name].stages}
        live = {key for key, state in have.items() if state in ("starting", "ready", "draining")}
        stages = (s for s in self.nodes[name].stages if (s.instance, s.attempt, s.stage) in live | set(mine))
        self.nodes[name] = self.nodes[name].model_copy(update={"stages": tuple(stages)})
        for key in sorted(live | set(mine)):
            # What the plan has no more is drained like what it drains.
            if (key not in mine or mine[key].role == "draining") and have.get(key) in LIVES:
                self.set_stage(name, key, "draining")
                self.after(self.drain_ms, lambda key=key: self.set_stage(name, key, "drained"))  # type: ignore[misc]
            elif key in mine and mine[key].role != "draining" and key not in have:
                self._start(name, key, mine[key])
        if claim in plan.pulls:
            self._pull(name)

    def _start(self, name: str, key: StageKey, instance: Instance) -> None:
        refusal = self.refuses(self.nodes[name], instance.service.model)
        if instance.engine != self.nodes[name].engine:
            refusal = "engine_version"
        if refusal is not None:
            self.set_stage(name, key, "refused", "it cannot", refusal=refusal)
        elif self.pull_ms:
            self.set_stage(name, key, "starting", phase="queued")
        else:
            self.set_stage(name, key, "starting")
            self.after(self.startup_ms, lambda: self._up(name, key))

    def _pull(self, name: str) -> None:
        """A pull slot is there: what waits for one pulls, and starts."""
        for stage in self.nodes[name].stages:
            key = (stage.instance, stage.attempt, stage.stage)
            if stage.phase == "queued":
                self.set_stage(name, key, "starting", phase="downloading")
                self.after(self.pull_ms, lambda key=key: self._pulled(name, key))  # type: ignore[misc]

    def _pulled(self, name: str, key: StageKey) -> None:
        if self._is_starting(name, key):
            self.set_stage(name, key, "starting", phase="loading")
            self.after(self.startup_ms, lambda: self._up(name, key))

    def _up(self, name: str, key: StageKey) -> None:
        if self._is_starting(name, key):
            head: dict[str, object] = {"endpoint": f"{name}:8000", "verified": True} if key[2] == 0 else {}
            self.set_stage(name, key, "ready", None, start_s=(self.startup_ms + self.pull_ms) / 1000, **head)

    def _is_starting(self, name: str, key: StageKey) -> bool:
        stages = self.nodes[name].stages if name in self.nodes else ()
        return any((s.instance, s.attempt, s.stage) == key and s.state == "starting" for s in stages)

    def set_stage(
        self, name: str, key: StageKey, state: str, reason: str | None = None, **more: object
    ) -> None:
        node = self.nodes.get(name)
        if node is None or name in self.dead:
            return
        others = tuple(s for s in node.stages if (s.instance, s.attempt, s.stage) != key)
        stage = StageReport.model_validate(
            {"instance": key[0], "attempt": key[1], "stage": key[2], "state": state, "reason": reason, **more}
        )
        self.nodes[name] = node.model_copy(update={"stages": (*others, stage)})
        self.after(1, lambda: self.report(name))

    # --- what to look at
    @property
    def plans(self) -> list[Plan]:
        found = [e.plan for _, e in self.effects if isinstance(e, Publish)]
        return [p for i, p in enumerate(found) if p not in found[:i]]

    @property
    def targets(self) -> list[str]:
        """Reasons of the successive targets."""
        seen: dict[str, str] = {}
        for plan in self.plans:
            seen.setdefault(plan.target.id, plan.target.reason)
        return list(seen.values())

    @property
    def alerts(self) -> list[str]:
        return [e.name for _, e in self.effects if type(e).__name__ == "Alert"]  # type: ignore[union-attr]

    def serving(self, model: str = "m") -> int:
        plan = self.state.plan
        if plan is None:
            return 0
        return sum(i.role == "serving" and i.service.model == model for i in plan.instances)


def settled(rate: float = 3.0, **given: object) -> World:
    """A fleet that serves `rate` on four obtainable nodes in the east, more in the west."""
    world = World(policy(**given))
    world.offer(EAST, 1.0, 4)
    world.offer(WEST, 2.0, 4)
    world.demand(rate, windows=2)
    return world
