"""What a node does about the newest plan: absent -> starting -> ready -> draining -> absent. Pure.

Laws
1. An (instance, attempt) is taken up at most once ever: the ledger knows each instance's highest attempt.
2. Nothing starts by itself a second time. What ended says so, and waits for a higher attempt.
3. The newest plan is the whole wish. What it drains, names no longer, or names with a higher attempt ends
   here; so does the rest of an attempt of which a rank ended here: the instance is the restart unit.
4. Ending is gentle: what is starting is cancelled, what is ready is drained; only the drain deadline kills.
   What cannot finish is stopped at once, ready or not: the rest of a broken attempt, and an attempt that the
   plan has left behind, since the core counts one up only after it saw the last end, or gave it up.
5. An attempt starts with all its ranks of this node or with none, and never on a device, nor beside an
   older attempt, that still lives here: it waits until that is gone.
6. What this node can never do is refused, with the reason.
7. What ended stays in the ledger, and is reported, until the plan no longer has its (instance, attempt).
8. Without a plan nothing starts, and nothing ends before the node itself is to end.

The states and the moves between them are the table `agents.ledger.MOVES`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from agents.deployable import undeployable
from agents.ledger import Action, Attempt, Decline, Drain, Forget, Held, Ledger, RankKey, Spot, Start, Stop
from schemas.events import Refusal
from schemas.plans import Instance, Plan, Rank, Role


@dataclass(frozen=True)
class Means:
    """What this node is and may do now."""

    node: str
    devices: int
    memory_gb: float
    """Of all devices together; they are alike."""
    engine: str | None = None
    """Engine version of this node."""
    until_ms: int | None = None
    """The node ends then (a spot notice, a shutdown): nothing new starts, no drain goes on longer."""
    last_ms: int = 30_000
    """So long before `until_ms` all is drained, replaced or not: what would still come in would be cut."""
    leaving: bool = False
    """It ends of its own accord, and ends what it has whatever the plan says."""


@dataclass(frozen=True)
class Decision:
    """What to do now, and what cannot be started yet, with the reason."""

    actions: tuple[Action, ...]
    waiting: Mapping[RankKey, str]


@dataclass(frozen=True)
class Share:
    """This node's part of one attempt of an instance."""

    attempt: Attempt
    role: Role
    spots: tuple[Spot, ...]
    drain_deadline_ms: int
    cannot: "Cannot | None"


class Cannot(NamedTuple):
    """Why this node can never do its part."""

    refusal: Refusal
    reason: str


def decide(ledger: Ledger, plan: Plan | None, me: Means, now_ms: int) -> Decision:
    """What to do about `plan`, given what the node has; the same question gets the same answer.

    Args:
        plan: the newest one by `order`; None while there is none.
        now_ms: compared with drain deadlines only.
    """
    shares = {} if plan is None else _shares(plan, me)
    actions: list[Action] = list(_ending(ledger, plan, shares, me, now_ms))
    waiting: dict[RankKey, str] = {}
    if plan is not None:
        named = {Attempt(instance.id, instance.attempt) for instance in plan.instances}
        actions += [Forget(h.key) for h in ledger.held if not h.live and h.key.of not in named]
        for share in shares.values():
            if any(held.key.of == share.attempt for held in ledger.held):
                continue
            choice = _taking_up(ledger, share, me)
            if isinstance(choice, str):
                waiting |= {spot.key: choice for spot in share.spots}
            else:
                actions.append(choice)
    return Decision(tuple(actions), waiting)


def _shares(plan: Plan, me: Means) -> dict[Attempt, Share]:
    """What the plan wants of this node: of each instance the highest attempt only."""
    claim = plan.claim_of(me.node)
    if claim is None:
        return {}
    newest: dict[str, Instance] = {}
    for instance in plan.instances:
        if instance.id not in newest or instance.attempt > newest[instance.id].attempt:
            newest[instance.id] = instance
    shares = (_share(plan, instance, claim.id, me) for instance in newest.values())
    return {share.attempt: share for share in shares if share.spots}


def _share(plan: Plan, instance: Instance, claim: str, me: Means) -> Share:
    mine = [
        (RankKey(instance.id, instance.attempt, stage.index, place), rank)
        for stage in instance.stages
        for place, rank in enumerate(stage.ranks)
        if rank.claim == claim
    ]
    return Share(
        Attempt(instance.id, instance.attempt),
        instance.role,
        tuple(Spot(key, rank.device_ids) for key, rank in mine),
        instance.drain_deadline_ms,
        _cannot_run(plan, instance, me)
        or next((why for key, rank in mine if (why := _cannot_hold(key, rank, me))), None),
    )


def _cannot_run(plan: Plan, instance: Instance, me: Means) -> Cannot | None:
    if instance.engine is not None and instance.engine != me.engine:
        return Cannot("engine_version", f"engine {instance.engine} is asked for, this node has {me.engine}")
    if why := undeployable(instance, plan.template(instance)):
        return Cannot("not_deployable", why)
    return None


def _cannot_hold(key: RankKey, rank: Rank, me: Means) -> Cannot | None:
    where = f"stage {key.stage} rank {key.rank}"
    if missing := [device for device in rank.device_ids if device >= me.devices]:
        return Cannot(
            "devices", f"{where}: device_ids {missing} do not exist, this node has {me.devices} devices"
        )
    has = me.memory_gb * len(rank.device_ids) / me.devices
    if rank.memory_gb > has + 1e-6:
        return Cannot(
            "memory", f"{where}: memory_gb {rank.memory_gb:g} is more than the {has:g} of its devices"
        )
    return None


def _taking_up(ledger: Ledger, share: Share, me: Means) -> Start | Decline | str:
    """Start an attempt that is not here yet, answer for it, or (a text) wait, and for what."""
    instance, attempt = share.attempt
    if share.role == "draining":
        return Decline(share.attempt, share.spots, "spare", "drained before it was started here")
    if attempt <= (highest := ledger.attempts.get(instance, 0)):
        reason = f"attempt {highest} was taken up here before; a higher one is needed"
        return Decline(share.attempt, share.spots, "lapse", reason)
    if share.cannot:
        return Decline(share.attempt, share.spots, "refuse", share.cannot.reason, share.cannot.refusal)
    if me.leaving or me.until_ms is not None:
        return "this node is about to end"
    return _in_the_way(ledger.live, share) or Start(share.attempt, share.spots, share.drain_deadline_ms)


def _in_the_way(live: Iterable[Held], share: Share) -> str | None:
    devices = {device for spot in share.spots for device in spot.devices}
    for held in live:
        if held.instance == share.attempt.instance:
            return f"waiting for attempt {held.attempt} to end"
        if taken := sorted(devices.intersection(held.devices)):
            return f"waiting for devices {taken}, held by {held.instance}"
    return None


def _ending(
    ledger: Ledger, plan: Plan | None, shares: Mapping[Attempt, Share], me: Means, now_ms: int
) -> Iterator[Drain | Stop]:
    over = set() if plan is None else {held.key.of for held in ledger.held if not held.live}
    for held in ledger.live:
        if held.stopped:
            continue
        if reason := _why_stop(held, shares, over):
            yield Stop(held.key, reason)
        elif held.state == "draining":
            if any(ms is not None and now_ms >= ms for ms in (held.deadline_ms, me.until_ms)):
                yield Stop(held.key, "killed at its drain deadline")
        elif reason := _why_drain(held, plan, shares, me, now_ms):
            if held.state == "starting":
                yield Stop(held.key, f"cancelled: {reason}")
            else:
                yield Drain(held.key, now_ms + held.drain_deadline_ms, reason)


def _why_stop(held: Held, shares: Mapping[Attempt, Share], over: set[Attempt]) -> str | None:
    """Why there is no point in letting it finish."""
    for instance, attempt in shares:
        if instance == held.instance and attempt > held.attempt:
            return f"attempt {attempt} takes its place"
    if held.state != "draining" and held.key.of in over:
        return "another rank of its attempt ended here"
    return None


def _why_drain(
    held: Held, plan: Plan | None, shares: Mapping[Attempt, Share], me: Means, now_ms: int
) -> str | None:
    if me.leaving:
        return "the node is leaving"
    if me.until_ms is not None and now_ms >= me.until_ms - me.last_ms:
        return "the node is about to end"
    if plan is None:
        return None
    share = shares.get(held.key.of)
    if share is None:
        return f"plan {plan.id} has it no more"
    return f"plan {plan.id} drains it" if share.role == "draining" else None
