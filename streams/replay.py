"""Does the log lead to the same decisions again? The same `step`, effects off, for audit.

Three comparisons, each with what was said at the time: the running digest that `Leading` and
`Published` carry, the plan that each `Published` confirms, and, on a live system, the plans that are
on `coral.plans`.
"""

from collections.abc import Iterable

from aiokafka.structs import ConsumerRecord
from pydantic import computed_field

from agents.bus import Bus, read_to_end
from schemas import codec, topics
from schemas.base import Count, Frozen
from schemas.events import Leading, Published
from schemas.plans import Order, Plan
from streams import log, snapshots
from streams.core.effects import Publish
from streams.core.record import LogRecord, Malformed
from streams.core.state import State
from streams.core.step import step
from streams.log import Entry


class Report(Frozen):
    """What a replay found; `difference` is the first one, None if there is none."""

    first_offset: int
    """Of the first record replayed; above 0 where a snapshot stood in for what is no longer kept."""
    records: Count = 0
    malformed: Count = 0
    leaders: Count = 0
    decided: Count = 0
    """Plans that the replay decided."""
    published: Count = 0
    """Plans that were confirmed on the log and compared."""
    digests: Count = 0
    """Running digests compared."""
    unchecked: Count = 0
    """Digests and plans that rest on records before `first_offset`."""
    on_topic: Count = 0
    """Plans compared with `coral.plans`."""
    history: str = ""
    """The running digest after the last record."""
    difference: str | None = None

    @computed_field  # type: ignore[prop-decorator]  # so that it is printed, too
    @property
    def equal(self) -> bool:
        return self.difference is None


class Replay:
    """One replay under way: `follow` each entry, then `compare` the plans, then `report`.

    Args:
        state: where to start; the empty state, or a snapshot's.
    """

    def __init__(self, state: State | None = None) -> None:
        self.state = state or State()
        self._first = self.state.offset + 1
        self._histories = {self.state.offset: self.state.history}
        self._plans: dict[str, str] = {}
        self._confirmed: list[str] = []
        self._newest: Order = (0, 0, 0)
        self._counts: dict[str, int] = {}
        self._difference: str | None = None

    def follow(self, entry: Entry) -> None:
        """Step over the next entry of the log, and check what it says about the past."""
        if entry.offset != self.state.offset + 1:
            missing = f"{self.state.offset + 1} to {entry.offset - 1}"
            self._differ(f"offset {entry.offset}: offsets {missing} are missing from the log")
        record = entry.record()
        effects = step(self.state, record)
        self._histories[record.offset] = self.state.history
        self._count("records")
        for effect in effects:
            if isinstance(effect, Publish):
                self._count("decided")
                self._plans[effect.plan.id] = effect.plan.digest
                self._newest = max(self._newest, effect.plan.order)
        self._check(record)

    def compare(self, plans: Iterable[Plan], *, complete: bool) -> None:
        """Compare with the plans on `coral.plans`; those of other lineages or of later are passed over.

        Args:
            complete: nothing was deleted from the topic, so every confirmed plan must be there.
        """
        found = set()
        for plan in plans:
            found.add(plan.id)
            if plan.lineage == self.state.lineage and plan.order <= self._newest:
                self._check_plan(f"plan {plan.id} on the topic", plan.id, plan.epoch, plan.digest, "on_topic")
        if complete and (lost := [plan for plan in self._confirmed if plan not in found]):
            self._differ(f"plan {lost[0]} was confirmed and is not on the topic")

    def report(self) -> Report:
        return Report(
            first_offset=self._first,
            history=self.state.history,
            difference=self._difference,
            **self._counts,
        )

    def _check(self, record: LogRecord) -> None:
        where = f"offset {record.offset}"
        match record.event:
            case Malformed():
                self._count("malformed")
            case Leading() as event:
                self._count("leaders")
                self._check_history(where, event.history_offset, event.history)
            case Published() as event:
                self._confirmed.append(event.plan)
                self._check_history(where, event.history_offset, event.history)
                self._check_plan(where, event.plan, event.epoch, event.digest, "published")
            case _:
                pass

    def _check_history(self, where: str, offset: int, said: str) -> None:
        if offset < self._first - 1:
            self._count("unchecked")
            return
        self._count("digests")
        found = self._histories.get(offset)
        if found != said:
            self._differ(f"{where}: the history at {offset} was {said}, the replay has {found}")

    def _check_plan(self, where: str, plan_id: str, epoch: int, said: str, count: str) -> None:
        found = self._plans.get(plan_id)
        if found is None and epoch < self._first:
            self._count("unchecked")
            return
        self._count(count)
        if found != said:
            self._differ(f"{where}: plan {plan_id} was {said}, the replay has {found}")

    def _count(self, name: str) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1

    def _differ(self, text: str) -> None:
        self._difference = self._difference or text


def replay(entries: Iterable[Entry]) -> Report:
    """Replay an exported log from its record 0."""
    run = Replay()
    for entry in entries:
        run.follow(entry)
    return run.report()


async def replay_live(bus: Bus) -> Report:
    """Replay what the topics hold now, from record 0 or, where that is gone, the oldest snapshot.

    Raises:
        LogTruncatedError: the log's head is gone and no snapshot reaches up to what is kept.
    """
    control, plans = bus.name(topics.CONTROL), bus.name(topics.PLANS)
    first, _ = await log.bounds(bus.kafka, control)
    run = Replay(None if first == 0 else await snapshots.load(bus, oldest=True))
    async for entry in log.read(bus.kafka, control, run.state.offset + 1):
        run.follow(entry)
    # Read after the log: every plan it confirms is there by now.
    kept, _ = await log.bounds(bus.kafka, plans)
    run.compare(filter(None, map(_plan, await read_to_end(bus.kafka, plans))), complete=kept == 0)
    return run.report()


def _plan(record: ConsumerRecord) -> Plan | None:
    try:
        plan = codec.decode(topics.PLANS, record.value, record.headers)
    except codec.MessageError:
        return None  # No plan of ours: whoever follows the topic puts it aside.
    return plan if isinstance(plan, Plan) else None
