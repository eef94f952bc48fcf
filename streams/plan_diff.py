"""How two plans differ: what they cost, what was asked and what of it counted, what becomes of instances."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from solver.plan_changes import Held, Moves, held, moves
from solver.plan_reasons import nodes_used, short
from solver.verify_parts import key_of
from streams.catalog_view import View, plain_table
from streams.library_view import combination_text
from streams.plan_record import PlanRecord
from streams.plan_view import short_service

FIGURES = (
    "cost_usd_per_hour",
    "bill_usd_per_hour",
    "penalty_usd_per_hour",
    "bound_usd_per_hour",
    "gap",
    "seconds",
    "columns",
)
ASKED = 20
"""Of what was asked otherwise; JSON has all."""
CENT = 0.005
"""USD per hour below which nothing is said of a price."""


def difference(first: PlanRecord, second: PlanRecord) -> View:
    """What becomes of the first plan's instances in the second, and why."""
    figures = {name: [getattr(plan, name) for plan in (first, second)] for name in FIGURES}
    figures["instances"] = [sum(row.count for row in plan.instances) for plan in (first, second)]
    becomes = moves(first.answer, second.answer)
    why = list(_why(first, second, held(second.problem, first.problem, first.answer)))
    data = {
        "figures": figures,
        "why": why,
        "unmet": _changes(
            {u.service: u.share for u in first.unmet}, {u.service: u.share for u in second.unmet}
        ),
        "asked": _changes(_asked(first), _asked(second)),
        "in_all": dict(zip(Moves._fields, map(sum, zip(*becomes.values(), strict=True)), strict=False)),
        "instances": list(_instances(first, second, becomes)),
        "nodes": _nodes(first, second),
    }
    tables = [_figures(figures), _lines(why), _unmet_table(data), _instance_table(data)]
    return View(data, [*tables, _node_table(data), _asked_table(data)])


# ------------------------------------------------------------------------------------------ what is compared


def _why(first: PlanRecord, second: PlanRecord, then: Held) -> Iterator[str]:
    """What kept the first plan from being the second, by what there is of it: demand, stock, prices."""
    asked = ({d.service.key: d.rate for d in plan.problem.demands} for plan in (first, second))
    moved = [(now or 0.0) - (was or 0.0) for _, was, now in _pairs(*asked)]
    ups, downs = sum(by > 0 for by in moved), sum(by < 0 for by in moved)
    if ups or downs:
        yield f"demand: {ups} services ask for more, {downs} for less"
    for service, share in then.unmet.items():
        yield f"demand: the first plan would leave {share:.2%} of {short_service(service)} unmet"
    for (pool, name), nodes in then.lacking.items():
        yield f"stock: the first plan has {nodes} {name} in {short(pool)} that are not to be had any more"
    dearer = then.bill_usd_per_hour - first.bill_usd_per_hour
    if abs(dearer) > CENT:
        yield f"prices: the first plan's nodes would cost {dearer:+.2f} USD/h"
    policies = (plan.problem.policy.model_dump() for plan in (first, second))
    names = [name for name, was, now in _pairs(*policies) if was != now]
    if first.problem.excluded_configurations != second.problem.excluded_configurations:
        names.append("excluded_configurations")
    if names:
        yield f"policy: {', '.join(names)}"
    if first.problem.library != second.problem.library:
        yield "templates: of another library"
    if then.does:
        but = "but for the policy, " if names else ""
        yield f"{but}the first plan would still do, for a bill of {then.bill_usd_per_hour:.2f} USD/h"


def _asked(plan: PlanRecord) -> dict[str, object]:
    """The question, a figure a name."""
    problem = plan.problem
    found: dict[str, object] = {"library": problem.library}
    found["instances that run"] = sum(run.count for run in problem.running)
    found |= {f"demand of {d.service.key}": d.rate for d in problem.demands}
    for stock in problem.stocks:
        place = f"{stock.configuration} in {stock.pool.key}"
        found[f"nodes of {place}"] = stock.nodes
        found[f"price of {place}"] = stock.usd_per_hour
    found |= {f"start-up ratio of {model}": k for model, k in problem.startup_ratio.items()}
    found |= {f"policy {name}": value for name, value in problem.policy.model_dump(mode="json").items()}
    found["policy excluded_configurations"] = list(problem.excluded_configurations)
    return found


def _instances(
    first: PlanRecord, second: PlanRecord, becomes: Mapping[tuple[str, str, str], Moves]
) -> Iterator[dict[str, Any]]:
    of = {key_of(c): c for plan in (first, second) for c in plan.answer.chosen}
    for key, move in becomes.items():
        nodes = combination_text(of[key].template.nodes)
        yield {"service": key[0], "nodes": nodes, "pool": key[2], "template": key[1], **move._asdict()}


def _nodes(first: PlanRecord, second: PlanRecord) -> list[dict[str, Any]]:
    """By place, where there are more or fewer."""
    was, now = (nodes_used(plan.problem, plan.answer) for plan in (first, second))
    return [
        {"pool": pool, "configuration": name, "was": was[pool, name], "is": now[pool, name]}
        for pool, name in sorted(Counter(was).keys() | now.keys())
        if was[pool, name] != now[pool, name]
    ]


def _changes(old: Mapping[str, object], new: Mapping[str, object]) -> list[dict[str, object]]:
    """What is not the same, in the order of names."""
    return [{"what": name, "was": a, "is": b} for name, a, b in _pairs(old, new) if a != b]


def _pairs(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[tuple[str, Any, Any]]:
    return ((name, old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys()))


# -------------------------------------------------------------------------------------------------- tables


def _figures(figures: Mapping[str, list[Any]]) -> Table:
    table = plain_table("Plans", "", "first", "second", "change")
    for name, (a, b) in figures.items():
        if name == "gap":
            table.add_row(name, f"{a:.3%}", f"{b:.3%}", "")
            continue
        change = f"{b / a - 1:+.2%}" if a and name != "seconds" else ""
        table.add_row(name, f"{a:.6g}", f"{b:.6g}", change)
    return table


def _lines(why: list[str]) -> Table:
    table = plain_table("Why", "what moved")
    for line in why:
        table.add_row(line)
    return table


def _unmet_table(data: Mapping[str, Any]) -> Table:
    table = plain_table("Unmet demand", "service", "first", "second")
    for row in data["unmet"]:
        table.add_row(short_service(row["what"]), *(f"{row[of] or 0:.2%}" for of in ("was", "is")))
    return table


def _instance_table(data: Mapping[str, Any]) -> Table:
    names = Moves._fields
    table = plain_table("Instances", "service", "of", "in", *(n.replace("_", " ") for n in names), "template")
    for row in data["instances"]:
        counts = (str(row[name] or "") for name in names)
        where = (short_service(row["service"]), row["nodes"], short(row["pool"]))
        table.add_row(*where, *counts, row["template"])
    if data["in_all"]:
        table.add_row("in all", "", "", *(str(data["in_all"][name] or "") for name in names), "")
    return table


def _node_table(data: Mapping[str, Any]) -> Table:
    table = plain_table("Nodes", "configuration", "in", "first", "second", "change")
    for row in data["nodes"]:
        counts = (str(row["was"]), str(row["is"]), f"{row['is'] - row['was']:+d}")
        table.add_row(row["configuration"], short(row["pool"]), *counts)
    return table


def _asked_table(data: Mapping[str, Any]) -> Table:
    table = plain_table("Asked otherwise", "what", "first", "second")
    for row in data["asked"][:ASKED]:
        table.add_row(row["what"], _text(row["was"]), _text(row["is"]))
    if (more := len(data["asked"]) - ASKED) > 0:
        table.add_row(f"and {more} more, with --json", "", "")
    return table


def _text(value: object) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
