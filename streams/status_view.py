"""A fleet's status for people: what is wrong first, then demand, instances, nodes."""

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from streams.status import NodeStatus, Status

WIDE = 160
"""Columns where the output is no terminal: a pipe has no width, and tables are not to be cut for it."""
QUIET_S = 10.0
"""Fold writes `FleetAlive` every 2 s and the leader its plan every minute; beyond these somebody is down."""
LATE_PLAN_S = 90.0


def show(status: Status) -> None:
    console = Console(markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(width=WIDE, markup=False, emoji=False)
    console.print(_headline(status), highlight=False, soft_wrap=True)
    for name, text in _wrong(status):
        console.print(f"  {name}: {text}", style="bold red", highlight=False, soft_wrap=True)
    for table in (_services(status), _instances(status), _nodes(status)):
        if table.row_count:
            console.print(table)


def _headline(status: Status) -> str:
    seen = f"fleet {status.fleet}, as of {status.age_s:.0f} s ago"
    if status.plan is None:
        return f"{seen}: no plan yet"
    return (
        f"{seen}: plan {status.plan} ({status.reason}), {status.usd_per_hour:.2f} USD/h"
        f" (target {status.target_usd_per_hour:.2f}), {len(status.nodes)} nodes,"
        f" {len(status.instances)} instances"
    )


def _wrong(status: Status) -> Iterator[tuple[str, str]]:
    """Standing alerts, and what only somebody outside can see: that nobody writes any more."""
    if status.age_s > QUIET_S:
        yield (
            "LogQuiet",
            f"nothing was logged for {status.age_s:.0f} s: no `coral fold` runs, or Kafka is away",
        )
    if status.plan is not None and status.plan_age_s > LATE_PLAN_S:
        yield "PlanLate", f"the plan was last sent {status.plan_age_s:.0f} s ago: no `coral control` leads"
    yield from status.alerts.items()
    if status.waiting_claims:
        yield "waiting", f"claims without a node: {', '.join(status.waiting_claims)}"


def _table(title: str, *columns: str) -> Table:
    return Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)


def _services(status: Status) -> Table:
    table = _table("Demand", "service", "requests/s", "head-room", "planned for", "unmet", "because of")
    for s in status.services:
        short = (f"{s.unmet:.0%}", s.binding or "") if s.unmet else ("-", "")
        table.add_row(
            s.service, f"{s.requests_per_s:.2f}", f"x {s.headroom:.2f}", f"{s.planned_for:.2f}", *short
        )
    return table


def _instances(status: Status) -> Table:
    table = _table(
        "Instances", "instance", "service", "role", "ready", "nodes", "door", "verified", "engine", ""
    )
    for i in status.instances:
        verified = {None: "-", True: "yes", False: "NO"}[i.verified]
        table.add_row(
            f"{i.instance}/{i.attempt}",
            i.service,
            i.role,
            f"{i.ready}/{i.ranks}",
            ", ".join(i.nodes),
            i.endpoint or "-",
            verified,
            i.engine or "-",
            i.saying or "",
        )
    return table


def _nodes(status: Status) -> Table:
    table = _table("Nodes", "node", "where", "what", "state", "engine", "GPU, driver", "runs")
    for n in status.nodes:
        where = f"{n.pool.cloud} {n.pool.region} {n.pool.zone} {n.pool.market}"
        runs = ", ".join(f"{s.instance}/{s.attempt}:{s.stage} {s.state}" for s in n.stages)
        devices = ", ".join(filter(None, (n.gpu, n.driver))) or "-"
        kept = runs or ("held, empty" if n.claims else "spare")
        table.add_row(n.node, where, n.configuration, _condition(n), n.engine or "-", devices, kept)
    return table


def _condition(node: NodeStatus) -> str:
    match node.condition:
        case "silent" | "suspect":
            return f"{node.condition} {node.silent_s:.0f} s"
        case "drained":
            return f"drained by {node.drained_by}"
        case _:
            return node.condition
