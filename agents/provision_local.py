"""The demo's cloud: nodes are processes on this machine, with a stock that can refuse and preempt.

What it starts outlives it. Each node has a record, written before its process is started, by which it is
adopted after a restart, preempted or ended. One process at a time works on a state folder.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from agents import local_process
from agents.files import write_atomically
from agents.processes import Started
from agents.provision import OUT_OF_STOCK_MS, Gone, Place, Refused, place_of
from schemas.base import Count, Frozen, Millis, Name
from schemas.events import AvailabilityOffered
from schemas.plans import Claim
from schemas.problems import Pool

log = logging.getLogger(__name__)


class LocalStock(Frozen):
    """There are `nodes` of this configuration in this pool, until a source of levels says otherwise."""

    pool: Pool
    configuration: Name
    nodes: Count


class LocalCloud(Frozen):
    """What the local cloud has and how it behaves."""

    stock: tuple[LocalStock, ...]
    levels_from: Name | None = None
    """Source on coral.availability whose offers are the *levels* of the stock, such as `bamboo`."""
    startup_ms: Millis = 2_000
    notice_ms: Millis = 3_000
    """How long before its end a preempted node is told."""


class LocalNode(Frozen):
    """The record of one node."""

    claim: Name
    node: Name
    pool: Pool
    configuration: Name
    number: Count
    """Counts the nodes started; the youngest has the greatest."""
    state: Literal["running", "noticed", "released"] = "running"
    deadline_ms: Millis | None = None
    """When a noticed node is taken away."""
    started: Started | None = None
    """None while it is being started."""

    @property
    def place(self) -> Place:
        return (self.pool, self.configuration)

    @property
    def identity(self) -> tuple[str, ...]:
        """The options its command ends with."""
        pool = self.pool
        return (
            *("--name", self.node, "--cloud", pool.cloud, "--region", pool.region, "--zone", pool.zone),
            *("--market", pool.market, "--configuration", self.configuration, "--claim", self.claim),
        )


def victims(nodes: Iterable[LocalNode], level: int) -> list[LocalNode]:
    """Which of these running nodes of one place have to go at this level: the youngest."""
    return sorted(nodes, key=lambda node: node.number)[level:]


class LocalProvisioner:
    """Starts `command` with a node's identity appended: one process, in a session of its own, is one node.

    Whatever the node starts inherits its tag and ends with it: engines and guards, in sessions of their own.

    Args:
        state_dir: holds `nodes/FLEET/CLAIM.json` and `logs/NODE.log`.
        nodes_dir: the parent of the nodes' own state folders, which are named after them; a preempted node
            finds a file `notice` there with its deadline, in milliseconds since the epoch.

    Raises:
        OSError, pydantic.ValidationError: a record is there and cannot be read.
    """

    def __init__(
        self,
        cloud: LocalCloud,
        command: Sequence[str],
        state_dir: Path,
        nodes_dir: Path,
        fleet: str,
        *,
        name: str = "local",
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.name = name
        self.fleet = fleet
        self._cloud = cloud
        self._command = tuple(command)
        self._dir = state_dir.resolve()
        self._nodes_dir = nodes_dir
        self._now_ms = now_ms
        self._levels: dict[Place, int] = {(s.pool, s.configuration): s.nodes for s in cloud.stock}
        paths = self._path("any").parent.glob("*.json")
        records = [LocalNode.model_validate_json(path.read_text()) for path in paths]
        self._nodes = {record.claim: self._adopt(record) for record in records}

    @property
    def places(self) -> frozenset[Place]:
        return frozenset(self._levels)

    async def create(self, claim: Claim) -> str:
        if claim.id in self._nodes:
            return self._nodes[claim.id].node
        place = place_of(claim)
        running, level = len(self._running(place)), self._levels[place]
        if running >= level:
            taken = f"{running} of {level} {claim.configuration} in {claim.pool.key}"
            raise Refused(f"out of stock: {taken} taken", retry_after_ms=OUT_OF_STOCK_MS)
        return self._start(claim).node

    async def release(self, claim: str, node: str) -> bool:
        """End all its processes; `node` is only what the caller calls it."""
        record = self._nodes.get(claim)
        if record is None:
            return True
        self._keep(record.model_copy(update={"state": "released"}))
        ended = await self._end([record])
        if not ended:
            log.warning("node %s: a process outlasts SIGKILL", node)
        return ended

    async def forget(self, claim: str) -> None:
        if self._nodes.pop(claim, None) is not None:
            self._path(claim).unlink(missing_ok=True)

    async def held(self) -> Mapping[str, str]:
        return {record.claim: record.node for record in self._nodes.values()}

    async def gone(self) -> Sequence[Gone]:
        """Takes away those whose notice is over, and what is left of those that ended by themselves."""
        due = [record for record in self._nodes.values() if self._is_over(record)]
        if due:
            await self._end(due)
        return [
            Gone(record.claim, record.node, "preempted" if record.state == "noticed" else "terminated")
            for record in due
            if not self._lives(record)
        ]

    async def stock(self) -> Mapping[Place, int]:
        return {place: max(0, level - len(self._running(place))) for place, level in self._levels.items()}

    def hear(self, offer: AvailabilityOffered) -> None:
        """Set the level of a place, and give notice to the nodes that it has no room for.

        Only a level that was heard takes nodes away: one that is merely configured may be older than they.
        """
        place = (offer.offer.pool, offer.offer.configuration)
        if offer.offer.source != self._cloud.levels_from or place not in self._levels:
            return
        self._levels[place] = offer.obtainable
        for record in victims(self._running(place), offer.obtainable):
            self._notice(record)

    def destroy_all(self) -> bool:
        """End everything that was ever started here; whether none is left. Blocks for seconds at most."""
        ended = local_process.end({self._tag(claim) for claim in self._nodes})
        if ended:
            for claim in list(self._nodes):
                self._nodes.pop(claim)
                self._path(claim).unlink(missing_ok=True)
        return ended

    # --- one node ----------------------------------------------------------------------------------
    def _start(self, claim: Claim) -> LocalNode:
        record = LocalNode(
            claim=claim.id,
            node=f"{self.name}-{claim.id}",
            pool=claim.pool,
            configuration=claim.configuration,
            number=1 + max((node.number for node in self._nodes.values()), default=0),
        )
        try:
            self._keep(record)  # first: a process without a record would never be found again
            started = local_process.start(
                (*self._command, *record.identity),
                tag=self._tag(record.claim),
                delay_s=self._cloud.startup_ms / 1000,
                log=self._dir / "logs" / f"{record.node}.log",
            )
        except OSError as error:
            self._nodes.pop(record.claim, None)
            self._path(record.claim).unlink(missing_ok=True)
            raise Refused(f"cannot start a process: {error}") from error
        return self._keep(record.model_copy(update={"started": started}))

    def _adopt(self, record: LocalNode) -> LocalNode:
        """A record without a process was written just before a crash; the process may have been started."""
        if record.started is None:
            return record.model_copy(update={"started": local_process.find(self._tag(record.claim))})
        return record

    def _notice(self, record: LocalNode) -> None:
        deadline_ms = self._now_ms() + self._cloud.notice_ms
        log.info("node %s is preempted at %d", record.node, deadline_ms)
        self._keep(record.model_copy(update={"state": "noticed", "deadline_ms": deadline_ms}))
        write_atomically(self._nodes_dir / record.node / "notice", f"{deadline_ms}\n")

    def _running(self, place: Place) -> list[LocalNode]:
        return [node for node in self._nodes.values() if node.place == place and node.state == "running"]

    def _is_over(self, record: LocalNode) -> bool:
        if record.state == "released":
            return False
        due = record.deadline_ms is not None and record.deadline_ms <= self._now_ms()
        return due or not self._lives(record)

    def _lives(self, record: LocalNode) -> bool:
        return record.started is not None and local_process.lives(record.started, record.identity)

    async def _end(self, records: Iterable[LocalNode]) -> bool:
        return await asyncio.to_thread(local_process.end, {self._tag(record.claim) for record in records})

    def _tag(self, claim: str) -> str:
        return f"{self._dir}/{self.fleet}/{claim}"

    def _path(self, claim: str) -> Path:
        return self._dir / "nodes" / self.fleet / f"{claim}.json"

    def _keep(self, record: LocalNode) -> LocalNode:
        write_atomically(self._path(record.claim), record.model_dump_json())
        self._nodes[record.claim] = record
        return record
