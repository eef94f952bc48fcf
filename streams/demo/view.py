"""What the demo shows while it runs: its requests; and from the log's story demand, plan, cost, stages."""

from typing import Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from schemas.events import StageReport
from schemas.plans import Plan
from streams.core.demand import arrival_rate
from streams.demo.load import Tally
from streams.story import Story
from streams.watch import line_of


class View:
    """A live screen on a terminal; elsewhere a line for every plan."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._shown: str | None = None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, story: Story, tally: Tally | None, passed_s: float) -> None:
        if self._live is not None:
            self._live.update(_screen(story, tally, passed_s), refresh=True)
        elif story.plan is not None and story.plan.id != self._shown:
            self._shown = story.plan.id
            line = f"{passed_s:6.1f} s  {line_of(story.plan)}"
            if tally is not None:
                line += f"; {_requests(tally)}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _screen(story: Story, tally: Tally | None, passed_s: float) -> Group:
    head = [Text(f"Coral, {passed_s:.0f} s", style="bold")]
    if tally is not None:
        head += [Text(_requests(tally)), Text(f"newest answer: {tally.last_words or '-'}", style="dim")]
    if story.plan is None:
        return Group(*head, Text("waiting for the first window, offers and nodes ..."))
    return Group(*head, Text(line_of(story.plan)), _demand(story), _nodes(story, story.plan), _reasons(story))


def _requests(tally: Tally) -> str:
    errors = sum(tally.errors.values())
    return (
        f"{tally.served} answers of {tally.tokens} tokens, {tally.in_flight} under way,"
        f" {tally.refused} refused, {errors} errors"
    )


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)


def _demand(story: Story) -> Table:
    table = _table("Demand", "service", "requests/s now", "planned for", "unmet")
    unmet = {u.service.key: u.share for u in story.plan.target.unmet} if story.plan is not None else {}
    for key, planned in sorted(story.state.planned_for.items()):
        windows = story.state.demand.get(key.rpartition("/")[0], [])
        table.add_row(key, f"{arrival_rate(windows, 2):.2f}", f"{planned:.2f}", f"{unmet.get(key, 0):.0%}")
    return table


def _nodes(story: Story, plan: Plan) -> Table:
    table = _table("Nodes", "node", "where", "what", "USD/h", "model/layers")
    for claim in plan.claims:
        node = story.state.nodes.get(claim.node or "")
        runs = [_stage(plan, report) for report in (node.report.stages if node else ())]
        where = f"{claim.pool.cloud} {claim.pool.region} {claim.pool.market}"
        usd = f"{claim.usd_per_hour:.2f}"
        table.add_row(claim.node or "(claimed)", where, claim.configuration, usd, ", ".join(runs) or "-")
    return table


def _stage(plan: Plan, report: StageReport) -> str:
    """What a node says of one stage, with the model and the layers that the plan gives it."""
    instance = next((i for i in plan.instances if i.id == report.instance), None)
    if instance is None:
        return f"{report.instance} {report.state}"
    stage = instance.stages[report.stage]
    return f"{instance.service.model}/{stage.layers} {report.state}"


def _reasons(story: Story) -> Text:
    told = ", ".join(f"{reason} {count}" for reason, count in sorted(story.reasons.items()))
    return Text(f"targets by reason: {told}")
