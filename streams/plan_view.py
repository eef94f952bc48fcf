"""A plan for people: what it costs and how sure that is, where the instances are and why, what binds."""

from collections.abc import Iterator

from rich.table import Table

from solver.plan_reasons import short
from streams.catalog_view import View, plain_table
from streams.plan_record import PlanRecord

SHOWN = 8
"""Of the limits that bind, and of prices that go unused; JSON has all."""


def shown(record: PlanRecord) -> View:
    """Tables of a plan; as JSON the record itself."""
    tables = [_headline(record), _instances(record), _nodes(record), _unmet(record), _binding(record)]
    return View(record.model_dump(mode="json"), tables)


def short_service(key: str) -> str:
    """Such as `qwen3-32b prefill`: the class goes without saying where it is the usual one."""
    return " ".join(part for part in key.split("/") if part != "interactive")


def rate(given: float) -> str:
    """Tokens/s or requests/s, four digits at least."""
    return f"{given:,.0f}" if given >= 1000 else f"{given:.4g}"


def summary(record: PlanRecord) -> Iterator[str]:
    """In a few lines: cost, proof, what it was chosen from."""
    parts = [f"bill {record.bill_usd_per_hour:.2f}"]
    if record.penalty_usd_per_hour:
        parts.append(f"starting instances {record.penalty_usd_per_hour:.2f}")
    if record.answer.policy_usd_per_hour:
        parts.append(f"policies {record.answer.policy_usd_per_hour:.2f}")
    yield f"{record.cost_usd_per_hour:.2f} USD/h: {', '.join(parts)}"
    as_much = "meets as much, and is short of no more," if record.answer.breaches else "meets as much"
    yield f"no plan that {as_much} costs less than {record.bound_usd_per_hour:.2f}: gap {record.gap:.3%}"
    limits = record.limits
    yield (
        f"{record.columns:,} columns of {limits.templates:,} templates (library {limits.library}, runtime "
        f"{limits.runtime}, N_max {limits.n_max}), solved in {record.seconds:.2f} s, "
        f"{record.processor_seconds:.2f} s of the processor"
    )
    if record.unmet:
        for step in record.answer.steps:
            value, bound = step.value, step.bound
            if step.minimised == "worst":
                yield f"largest unmet share, by weight: {value:.2%}, at least {bound:.2%} in any plan"
            if step.minimised == "total":
                yield f"unmet shares added up, by weight: {value:.3f}, at least {bound:.3f} in any such plan"
    for breach in record.answer.breaches:
        yield f"{breach.policy} of {breach.subject}: {breach.got}, asked for {breach.asked}"
    if record.answer.kept:
        yield "what runs is kept: no plan was found that betters it by enough"
    for what in record.answer.ignored:
        yield f"{what}, so it counts for nothing"


def unused(record: PlanRecord) -> Iterator[str]:
    """What was given for nothing, a line each, and how many more."""
    for price in record.unused[:SHOWN]:
        yield f"{price} goes unused: no stock there"
    if (more := len(record.unused) - SHOWN) > 0:
        yield f"and {more} more prices go unused (`unused` of --json)"


def _headline(record: PlanRecord) -> Table:
    table = plain_table(f"Plan for {record.problem.id}", "in short")
    for line in summary(record):
        table.add_row(line)
    return table


def _instances(record: PlanRecord) -> Table:
    columns = ("service", "", "instances of", "in", "each gives", "USD/h each", "of best", "why")
    table = plain_table("Instances", *columns)
    before = None
    for row in record.instances:
        service = short_service(row.service) if row.service != before else ""
        before = row.service
        figures = (rate(row.throughput), f"{row.usd_per_hour:.2f}", f"{row.of_best:.1%}")
        table.add_row(service, str(row.count), row.nodes, short(row.pool), *figures, row.why)
    return table


def _nodes(record: PlanRecord) -> Table:
    table = plain_table(
        "Nodes bought, of kinds that instances share", "configuration", "in", "nodes", "USD/h each"
    )
    for bought in record.answer.nodes:
        figures = (str(bought.count), f"{bought.usd_per_hour:.2f}")
        table.add_row(bought.configuration, short(bought.pool.key), *figures)
    return table


def _unmet(record: PlanRecord) -> Table:
    table = plain_table("Unmet demand", "service", "share", "rate", "because of")
    for row in record.unmet:
        table.add_row(short_service(row.service), f"{row.share:.2%}", rate(row.rate), row.binding)
    return table


def _binding(record: PlanRecord) -> Table:
    worth = "looser by one would save, in fractions of nodes, USD/h"
    table = plain_table("What binds", "limit", f"{worth}, as much being unmet" if record.unmet else worth)
    for binding in record.answer.binding[:SHOWN]:
        table.add_row(short(binding.limit), f"{binding.usd_per_hour:.2f}")
    return table
