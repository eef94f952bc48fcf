"""A plan among its neighbours, for people and as JSON."""

from collections.abc import Iterator

from rich.table import Table

from solver.explain_plan import SAME, Neighbour, OneMore, Outcome, PlanExplanation, Scarcity
from solver.plan_reasons import short
from streams import plan_view
from streams.catalog_view import View, plain_table
from streams.plan_record import PlanRecord

NO_PLAN = "no plan was found that keeps all limits"
CENT = 0.005
"""USD per hour below which plans cost the same, to people."""
BRINGS = {
    "single nodes": "instances of several nodes",
    "nodes of one kind": "instances of several kinds of node",
    "GPUs of one kind": "instances of several kinds of GPU",
}
"""What a plan of simpler templates does without."""


def shown(record: PlanRecord, found: PlanExplanation) -> View:
    """In short, why these nodes, then what else there could be."""
    data = {
        "plan": record.model_dump(mode="json", exclude={"problem", "answer"}),
        "binding": [binding.model_dump(mode="json") for binding in record.answer.binding],
        **found.model_dump(mode="json", exclude={"plan"}),
        "next_cheapest": found.alternatives[0].model_dump(mode="json") if found.alternatives else None,
    }
    said = plain_table("Explained", "what else there could be")
    for line in in_short(record, found):
        said.add_row(line)
    return View(data, (*plan_view.shown(record).tables, said, *_neighbours(found)))


def in_short(record: PlanRecord, found: PlanExplanation) -> Iterator[str]:
    """A sentence for each question: the next cheapest, one more, what mixing brings."""

    def says(other: Neighbour, which: str = "plan") -> str:
        return NO_PLAN if other.outcome is None else f"the {which} {_says(record, found.plan, other)}"

    if found.alternatives:
        other, all_ = found.alternatives[0], len(found.alternatives) == found.places
        here = f"{other.nodes} x {other.configuration} in {short(other.pool)}"
        which = f"next cheapest plan{'' if all_ else ' of those tried'}"
        yield f"without {here}, {says(other, which)}"
    asked = [more for more in found.one_more if more.configuration == found.asked]
    if asked:
        yield f"with one {found.asked} more, {_at(asked[0])}, {says(asked[0])}"
    if found.one_more and found.one_more[0].configuration != found.asked:
        most = found.one_more[0]
        yield f"what helps most is one {most.configuration} more, {_at(most)}: {says(most)}"
    for simpler in found.simpler:
        yield f"without {BRINGS[simpler.templates]}, {says(simpler)}"


def _at(more: OneMore) -> str:
    return f"at {more.usd_per_hour:.2f} USD/h in {short(more.pool)}"


def _says(record: PlanRecord, here: Outcome, other: Neighbour) -> str:
    by, order = other.change, record.problem.policy.scarcity
    if by is None:
        return NO_PLAN if other.outcome is None else unmet_said(here, other.outcome, order)
    if abs(by.found) < CENT:
        return "costs the same"
    share = f" ({abs(by.found) / here.usd_per_hour:.2%})" if here.usd_per_hour else ""
    sure = "" if by.at_least > 0 or by.at_most < 0 else ", which is within the gap"
    return f"costs {abs(by.found):.2f} USD/h{share} {'more' if by.found > 0 else 'less'}{sure}"


def unmet_said(here: Outcome, there: Outcome, order: Scarcity) -> str:
    """Of which share more or less goes unmet: first that which counts first, then the other if it goes the
    other way."""
    worst = _moved(here.worst_unmet, there.worst_unmet, "of the worst service", ".2%")
    total = _moved(here.total_unmet, there.total_unmet, "in all", ".2f")
    moves = [move for move in ((worst, total) if order == "worst-first" else (total, worst)) if move]
    if not moves:
        return "leaves as much demand unmet"
    (more, where), *rest = moves
    turned = [f", but {word} {at}" for word, at in rest if word != more]
    return f"leaves {more} unmet {where}{''.join(turned)}"


def _moved(was: float, now: float, where: str, form: str) -> tuple[str, str] | None:
    """More or less, where and by how much; None where rounding is all."""
    if abs(now - was) <= SAME:
        return None
    return "more" if now > was else "less", f"{where}, {now:{form}} instead of {was:{form}}"


def _neighbours(found: PlanExplanation) -> Iterator[Table]:
    change = ("USD/h", "change", "proven between")
    tried = len(found.alternatives)
    of = "" if tried == found.places else f" (of {found.places} places the {tried} worth least)"
    table = plain_table(f"Without a place, the next cheapest first{of}", "without", "nodes in use", *change)
    for other in found.alternatives:
        where = f"{other.configuration} in {short(other.pool)}"
        table.add_row(where, str(other.nodes), *_against(found.plan, other))
    yield table
    table = plain_table("With one node more to be had", "of", "price", "shadow price", *change)
    for more in found.one_more:
        where = f"{more.configuration} in {short(more.pool)}"
        # Of the cost at the same unmet demand; where that moves too, it says nothing of the change.
        shadow = f"{more.shadow_usd_per_hour:.2f}" if more.change else ""
        table.add_row(where, f"{more.usd_per_hour:.2f}", shadow, *_against(found.plan, more))
    yield table
    table = plain_table("With simpler templates only", "of", *change)
    for simpler in found.simpler:
        table.add_row(simpler.templates, *_against(found.plan, simpler))
    yield table


def _against(here: Outcome, other: Neighbour) -> tuple[str, str, str]:
    """Cost, and how it compares: cost where as much is met, else what is not."""
    there, by = other.outcome, other.change
    if there is None:
        return "", NO_PLAN, ""
    cost = f"{there.usd_per_hour:.2f}"
    if by is None:
        worst = f"worst {here.worst_unmet:.1%} -> {there.worst_unmet:.1%}"
        return cost, f"unmet: {worst}, in all {here.total_unmet:.2f} -> {there.total_unmet:.2f}", ""
    share = f" ({by.found / here.usd_per_hour:+.2%})" if here.usd_per_hour else ""
    return cost, f"{_usd(by.found)}{share}", f"{_usd(by.at_least)} and {_usd(by.at_most)}"


def _usd(change: float) -> str:
    """Without the sign of what is rounded away."""
    return f"{change if abs(change) >= CENT else 0.0:+.2f}"
