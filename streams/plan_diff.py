"""How two plans differ: what they cost, what they were asked, which instances and nodes come and go."""

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

from rich.table import Table

from schemas.problems import Problem
from streams.catalog_view import View, plain_table
from streams.library_view import combination_text
from streams.plan_record import PlanRecord

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

FIGURES = (
    "cost_usd_per_hour",
    "bill_usd_per_hour",
    "penalty_usd_per_hour",
    "bound_usd_per_hour",
    "gap",
    "seconds",
    "columns",
)


def difference(old: PlanRecord, new: PlanRecord) -> View:
    """What the second plan has that the first has not, and the other way round."""
    figures = {name: [getattr(plan, name) for plan in (old, new)] for name in FIGURES}
    figures["instances"] = [sum(row.count for row in plan.instances) for plan in (old, new)]
    figures["worst_unmet_share"] = [max((u.share for u in plan.unmet), default=0.0) for plan in (old, new)]
    asked = _changes(_asked(old), _asked(new))
    instances = _changes(_instances(old), _instances(new))
    nodes = _changes(_nodes(old), _nodes(new))
    data = {
        "figures": figures,
        "asked": [{"what": what, "was": a, "is": b} for what, (a, b) in asked.items()],
        "instances": [
            dict(
                zip(("service", "nodes", "pool", "template"), key, strict=True), was=a or 0, **{"is": b or 0}
            )
            for key, (a, b) in instances.items()
        ],
        "nodes": [
            {"pool": pool, "configuration": name, "was": a or 0, "is": b or 0}
            for (pool, name), (a, b) in nodes.items()
        ],
    }
    return View(data, [_figures(figures), _asked_table(data), _instance_table(data), _node_table(data)])


# ------------------------------------------------------------------------------------------ what is compared


def _asked(plan: PlanRecord) -> dict[str, object]:
    """The question, a figure a name."""
    problem: Problem = plan.problem
    found: dict[str, object] = {"library": problem.library}
    found |= {f"demand of {d.service.key}": d.rate for d in problem.demands}
    for stock in problem.stocks:
        place = f"{stock.configuration} in {stock.pool.key}"
        found[f"nodes of {place}"] = stock.nodes
        found[f"price of {place}"] = stock.usd_per_hour
    found |= {f"start-up ratio of {model}": k for model, k in problem.startup_ratio.items()}
    found |= {f"policy {name}": value for name, value in problem.policy.model_dump(mode="json").items()}
    return found


def _instances(plan: PlanRecord) -> dict[tuple[str, str, str, str], int]:
    return {
        (c.service.key, combination_text(c.template.nodes), c.pool.key, c.template.id): c.count
        for c in plan.answer.chosen
    }


def _nodes(plan: PlanRecord) -> Counter[tuple[str, str]]:
    """By (pool, configuration), as templates use them."""
    found: Counter[tuple[str, str]] = Counter()
    for chosen in plan.answer.chosen:
        for name, count in chosen.template.uses().items():
            found[chosen.pool.key, name] += count * chosen.count
    return found


def _changes(old: Mapping[K, V], new: Mapping[K, V]) -> dict[K, tuple[V | None, V | None]]:
    """What is not the same, in the order of names."""
    keys = sorted(old.keys() | new.keys(), key=str)
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


# -------------------------------------------------------------------------------------------------- tables


def _figures(figures: Mapping[str, list[Any]]) -> Table:
    table = plain_table("Plans", "", "first", "second", "change")
    for name, (a, b) in figures.items():
        change = f"{b / a - 1:+.2%}" if a and name not in {"gap", "worst_unmet_share"} else ""
        table.add_row(name, f"{a:.6g}", f"{b:.6g}", change)
    return table


def _asked_table(data: Mapping[str, Any]) -> Table:
    table = plain_table("Asked otherwise", "what", "first", "second")
    for row in data["asked"]:
        table.add_row(row["what"], _text(row["was"]), _text(row["is"]))
    return table


def _instance_table(data: Mapping[str, Any]) -> Table:
    table = plain_table("Instances", "service", "of", "in", "first", "second", "change", "template")
    for row in data["instances"]:
        counts = (str(row["was"]), str(row["is"]), f"{row['is'] - row['was']:+d}")
        table.add_row(row["service"], row["nodes"], row["pool"], *counts, row["template"])
    return table


def _node_table(data: Mapping[str, Any]) -> Table:
    table = plain_table("Nodes in use", "configuration", "in", "first", "second", "change")
    for row in data["nodes"]:
        counts = (str(row["was"]), str(row["is"]), f"{row['is'] - row['was']:+d}")
        table.add_row(row["configuration"], row["pool"], *counts)
    return table


def _text(value: object) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
