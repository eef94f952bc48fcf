"""What a person asks of a fleet, and what has to be there before it runs."""

import asyncio
from functools import partial

import typer
from rich.console import Console

from schemas.settings import Settings
from streams.commands import shared

app = typer.Typer()
topics_app = typer.Typer(no_args_is_help=True, help="Make and show the Kafka topics.")
PANEL = "Operating"
command = partial(app.command, rich_help_panel=PANEL)
app.add_typer(topics_app, name="topics", rich_help_panel=PANEL)


@topics_app.command("create")
def topics_create(context: typer.Context) -> None:
    """Create what is missing and start the control log's lineage."""
    from agents.admin import create_topics

    with shared.asking_kafka(context.obj):
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
    Console().print(table)
