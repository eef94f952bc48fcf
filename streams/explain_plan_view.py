"""A plan among its neighbours, for people and as JSON."""

from collections.abc import Iterator

from rich.table import Table

from solver.explain_plan import Neighbour, Outcome, PlanExplanation
from solver.plan_reasons import short
from streams import plan_view
from streams.catalog_view import View, plain_table
from streams.plan_record import PlanRecord


def shown(record: PlanRecord, found: PlanExplanation) -> View:
    """Why these nodes, then what else there could be."""
    data = {
        "plan": record.model_dump(mode="json", exclude={"problem", "answer"}),
        "binding": [binding.model_dump(mode="json") for binding in record.answer.binding],
        **found.model_dump(mode="json", exclude={"plan"}),
        "next_cheapest": found.alternatives[0].model_dump(mode="json") if found.alternatives else None,
    }
    tables = (*plan_view.shown(record).tables, *_neighbours(found))
    return View(data, tables)


def _neighbours(found: PlanExplanation) -> Iterator[Table]:
    change = ("USD/h", "change", "proven between")
    table = plain_table("Without a place, the next cheapest first", "without", "nodes in use", *change)
    for other in found.alternatives:
        where = f"{other.configuration} in {short(other.pool)}"
        table.add_row(where, str(other.nodes), *_against(found.plan, other))
    yield table
    table = plain_table("With one node more to be had", "of", "price", "shadow price", *change)
    for more in found.one_more:
        where = f"{more.configuration} in {short(more.pool)}"
        prices = (f"{more.usd_per_hour:.2f}", f"{more.shadow_usd_per_hour:.2f}")
        table.add_row(where, *prices, *_against(found.plan, more))
    yield table
    table = plain_table("With simpler templates only", "of", *change)
    for simpler in found.simpler:
        table.add_row(simpler.templates, *_against(found.plan, simpler))
    yield table


def _against(here: Outcome, other: Neighbour) -> tuple[str, str, str]:
    """Cost, and how it compares: cost where as much is met, else what is not."""
    cost, by = f"{other.outcome.usd_per_hour:.2f}", other.change
    if by is None:
        worst, total = (
            f"{getattr(here, name):.2%} -> {getattr(other.outcome, name):.2%}"
            for name in ("worst_unmet", "total_unmet")
        )
        return cost, f"unmet: worst {worst}, in all {total}", ""
    share = f" ({by.found / here.usd_per_hour:+.2%})" if here.usd_per_hour else ""
    return cost, f"{by.found:+.2f}{share}", f"{by.at_least:+.2f} and {by.at_most:+.2f}"
