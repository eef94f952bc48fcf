"""A plan among its neighbours, for people and as JSON."""

from collections.abc import Iterator

from rich.table import Table

from solver.explain_plan import Outcome, PlanExplanation
from solver.plan_reasons import short
from streams import plan_view
from streams.catalog_view import View, plain_table
from streams.plan_record import PlanRecord


def shown(record: PlanRecord, found: PlanExplanation) -> View:
    """Why these nodes, then what else there could be."""
    data = {
        "plan": record.model_dump(mode="json", exclude={"problem", "answer"}),
        **found.model_dump(mode="json", exclude={"plan"}),
        "next_cheapest": found.alternatives[0].model_dump(mode="json") if found.alternatives else None,
    }
    tables = (*plan_view.shown(record).tables, *_neighbours(found))
    return View(data, tables)


def _neighbours(found: PlanExplanation) -> Iterator[Table]:
    here = found.plan
    table = plain_table(
        "Without a place, the next cheapest first", "without", "nodes in use", "USD/h", "change"
    )
    for other in found.alternatives:
        where = f"{other.configuration} in {short(other.pool)}"
        table.add_row(where, str(other.nodes), *_against(here, other.outcome))
    yield table
    table = plain_table("One node more", "of", "price", "shadow price", "USD/h", "change")
    for more in found.one_more:
        where = f"{more.configuration} in {short(more.pool)}"
        prices = (f"{more.usd_per_hour:.2f}", f"{more.shadow_usd_per_hour:.2f}")
        table.add_row(where, *prices, *_against(here, more.outcome))
    yield table
    table = plain_table("Simpler templates only", "with", "USD/h", "what the others bring")
    for simpler in found.simpler:
        table.add_row(simpler.templates, *_against(here, simpler.outcome))
    yield table


def _against(here: Outcome, other: Outcome) -> tuple[str, str]:
    """Cost, and how it compares: cost where as much is met, else what is not."""
    cost = f"{other.usd_per_hour:.2f}"
    if abs(other.total_unmet - here.total_unmet) > plan_view.SAME_SHARE:
        return cost, f"worst unmet {here.worst_unmet:.1%} -> {other.worst_unmet:.1%}"
    change = other.usd_per_hour - here.usd_per_hour
    return cost, f"{change:+.2f} ({change / here.usd_per_hour:+.2%})" if here.usd_per_hour else "none"
