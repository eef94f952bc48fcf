"""Follow the plan topic on a terminal."""

import typer

from agents.bus import Bus, follow_plans
from schemas.plans import Plan
from schemas.settings import Settings


async def follow(settings: Settings, *, as_json: bool, once: bool) -> None:
    """Print every newer plan; only the current one with `once`."""
    async with Bus(settings.kafka, settings.topic_prefix, "watch") as bus:
        async for plan in follow_plans(bus):
            typer.echo(plan.model_dump_json() if as_json else line_of(plan))
            if once:
                return


def line_of(plan: Plan) -> str:
    """One plan on one line: number, why, what it costs, who does what."""
    roles = [instance.role for instance in plan.instances]
    counts = ", ".join(f"{roles.count(r)} {r}" for r in ("starting", "serving", "draining") if r in roles)
    unmet = "".join(f"; unmet {u.share:.0%} of {u.service.key} ({u.binding})" for u in plan.target.unmet)
    return (
        f"plan {plan.id}  {plan.target.reason:<15} {plan.usd_per_hour:7.2f} USD/h  "
        f"{len(plan.claims)} nodes  {counts or 'nothing runs'}{unmet}"
    )
