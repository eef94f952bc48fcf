"""What a person asks of a fleet, and what has to be there before it runs."""

import asyncio
import getpass
import os
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from schemas.settings import Settings
from streams.commands import shared

app = typer.Typer()
topics_app = typer.Typer(no_args_is_help=True, help="Make and show the Kafka topics.")
PANEL = "Operating"
command = partial(app.command, rich_help_panel=PANEL)
app.add_typer(topics_app, name="topics", rich_help_panel=PANEL)


@command()
def drain(
    context: typer.Context,
    node: Annotated[str, typer.Argument(help="A node as `coral status` names it.")],
    undo: Annotated[bool, typer.Option("--undo", help="Use the node again.")] = False,
) -> None:
    """Empty a node: nothing new goes there, and what runs there is replaced first and then drained.

    Returns at once; `coral status` shows when nothing runs there any more.
    """
    from streams.operating import request_drain

    shared.need_topics(context.obj)
    with shared.bad_input():
        status = asyncio.run(request_drain(context.obj, node, undo=undo, by=_me()))
    typer.echo(f"{node}: {'to be used again' if undo else 'to be emptied'}")
    if not undo:
        stages = next(n.stages for n in status.nodes if n.node == node)
        running = [f"{s.instance} (stage {s.stage}, {s.state}, {s.in_flight} in flight)" for s in stages]
        typer.echo(f"runs now: {', '.join(running) or 'nothing'}")


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container that runs under a number without a name
        return f"uid {os.getuid()}"


@topics_app.command("create")
def topics_create(context: typer.Context) -> None:
    """Create what is missing and start the control log's lineage."""
    from agents.admin import create_topics

    with shared.asking_kafka():
        made = asyncio.run(create_topics(context.obj))
    for name, created in made.items():
        typer.echo(f"{name}: {'created' if created else 'there'}")


@topics_app.command("list")
def topics_list(context: typer.Context) -> None:
    """Print the topic table."""
    from rich.table import Table

    from schemas.topics import TOPICS

    settings: Settings = context.obj
    table = Table("topic", "key", "partitions", "kept (days)", "from -> to", "types")
    for topic in TOPICS:
        types = ", ".join(t.__name__ for t in topic.types)
        days = f"{topic.retention_ms / 86_400_000:g}"
        table.add_row(
            settings.topic(topic), topic.key, str(settings.partitions(topic)), days, topic.flow, types
        )
    Console(markup=False, emoji=False).print(table)


@topics_app.command("asyncapi")
def topics_asyncapi() -> None:
    """Print the topics and all messages on them as an AsyncAPI document (YAML)."""
    from schemas.asyncapi import text

    typer.echo(text(), nl=False)
