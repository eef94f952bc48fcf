"""Looking on: what is planned, what was decided, and whether it would be decided so again."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from streams.commands import shared

app = typer.Typer()
log_app = typer.Typer(no_args_is_help=True, help="The control log: the one ordered history.")
PANEL = "Looking on"
command = partial(app.command, rich_help_panel=PANEL)
app.add_typer(log_app, name="log", rich_help_panel=PANEL)

DIFFERENT = 1


@command()
def status(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Say how the fleet stands: what is wrong, demand, instances, nodes, by the log as it is now."""
    from streams.operating import current_status
    from streams.status_view import show

    shared.need_topics(context.obj)
    with shared.bad_input():
        now = asyncio.run(current_status(context.obj))
    if as_json:
        typer.echo(now.model_dump_json())
    else:
        show(now)


@command()
def plans(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a plan.")] = False,
    once: Annotated[bool, typer.Option(help="Print the current plan and end.")] = False,
) -> None:
    """Follow the plan topic."""
    from streams.watch import follow

    shared.need_topics(context.obj)
    with shared.bad_input():
        asyncio.run(follow(context.obj, as_json=as_json, once=once))


@log_app.command("export")
def log_export(
    context: typer.Context,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File; standard output if none.")
    ] = None,
) -> None:
    """Write the control log as JSON lines, every byte kept."""
    from streams.audit import export

    shared.need_topics(context.obj)
    with shared.bad_input():
        written = asyncio.run(export(context.obj, output))
    typer.echo(f"{written} records", err=True)


@command()
def replay(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="An exported log; the live topics if none.")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Decide everything again from the log and compare; exit code 1 and the first difference otherwise."""
    from streams.audit import replay_from

    if file is None:
        shared.need_topics(context.obj)
    with shared.bad_input():
        report = asyncio.run(replay_from(context.obj, file))
    if as_json:
        typer.echo(report.model_dump_json())
    else:
        typer.echo(
            f"{report.records} records, {report.decided} plans decided, {report.published} confirmed, "
            f"{report.digests} digests compared: {'equal' if report.equal else 'DIFFERENT'}"
        )
    if not report.equal:
        typer.echo(report.difference, err=True)
        raise typer.Exit(DIFFERENT)
