"""One line for each record and effect of a world's history, for people to read and diffs to show."""

from schemas.base import Frozen
from schemas.events import (
    ControlEvent,
    DemandClosed,
    FleetAlive,
    Leading,
    NodeReported,
    Published,
    Solved,
    Tick,
)
from schemas.plans import Plan
from streams.core.effects import Alert, Effect, Publish, PutAside, Solve, WakeAt
from streams.core.record import Malformed
from tests.streams.world import START_MS, World


def transcript(world: World) -> str:
    """What happened and what was decided; wake-ups, and records of which nothing came, are left out."""
    told: dict[int, list[str]] = {}
    for offset, effect in world.effects:
        if not isinstance(effect, WakeAt):
            told.setdefault(offset, []).append(f"           -> {_effect(effect)}")
    lines = []
    for record in world.records:
        said = _event(record.event)
        if said is not None or record.offset in told:
            at = (record.timestamp_ms - START_MS) / 1000
            lines.append(f"{at:8.1f} s  {said or type(record.event).__name__}")
        lines += told.get(record.offset, [])
    return "\n".join(lines) + "\n"


QUIET = (FleetAlive, Tick, Published)


def _event(event: ControlEvent | Malformed) -> str | None:  # noqa: PLR0911  one flat table
    match event:
        case Malformed():
            return f"(unreadable: {event.reason})"
        case DemandClosed():
            rate = event.offered * 1000 / (event.end_ms - event.start_ms)
            return f"DemandClosed {event.key}: {rate:g} requests/s"
        case NodeReported():
            stages = [
                f"{s.instance}#{s.attempt} {s.refusal or s.phase or s.state}" for s in event.report.stages
            ]
            return f"NodeReported {event.report.node}: {', '.join(stages) or 'empty'}"
        case Solved():
            chosen = [
                f"{c.count} x {'+'.join(c.template.nodes)} in {c.pool.key}" for c in event.answer.chosen
            ]
            unmet = [f"unmet {u.share:.0%} ({u.binding})" for u in event.answer.unmet]
            return f"Solved {event.problem}: {', '.join(chosen + unmet) or 'nothing'}"
        case Leading():
            return f"Leading {event.token}"
        case _ if isinstance(event, QUIET):
            return None
        case _:
            return f"{type(event).__name__} {_short(event)}"


def _short(event: Frozen) -> str:
    fields = {k: v for k, v in event.model_dump(mode="json").items() if k not in ("at_ms", "partition")}
    if "offer" in fields:
        offer = fields.pop("offer")
        fields = {"offer": f"{offer['configuration']} in {offer['pool']['region']}", **fields}
    return " ".join(
        f"{name}={value}" for name, value in fields.items() if value is not None and value is not False
    )


def _effect(effect: Effect) -> str:
    match effect:
        case Solve():
            demands = [f"{d.service.key} {d.rate:g}" for d in effect.problem.demands]
            stocks = [
                f"{s.nodes} {s.configuration} in {s.pool.region} at {s.usd_per_hour:g}"
                for s in effect.problem.stocks
            ]
            running = sum(r.count for r in effect.problem.running)
            unfit = [
                f"; {u.model} unfit for {u.configuration} in {u.pool.region} but {u.tries}"
                for u in effect.problem.unfit
            ]
            asked = f"{', '.join(demands)}; stock {', '.join(stocks)}; {running} running"
            return f"Solve {effect.problem.id}: {asked}{''.join(unfit)}"
        case Publish():
            return f"Publish {effect.plan.id}: {_plan(effect.plan)}"
        case Alert():
            return f"Alert {effect.name}: {effect.text}"
        case PutAside():
            return f"PutAside {effect.offset}: {effect.reason}"
        case WakeAt():
            return f"WakeAt {effect.at_ms}"


def _plan(plan: Plan) -> str:
    claims = [f"{c.id}={c.node or '?'}" for c in plan.claims]
    instances = [f"{i.id}#{i.attempt} {i.role}" for i in plan.instances]
    target = f"{plan.target.id} ({plan.target.reason})"
    pulls = f"; pulls {' '.join(plan.pulls)}" if plan.pulls else ""
    return f"{target}; claims {' '.join(claims) or '-'}; {', '.join(instances) or '-'}{pulls}"
