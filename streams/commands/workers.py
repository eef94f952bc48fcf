"""The control plane's workers, one process each: fold, control, the provisioner, the feeds."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from schemas.settings import Settings
from streams.commands import shared

app = typer.Typer()
command = partial(app.command, rich_help_panel="Control plane")


@command()
def fold(context: typer.Context) -> None:
    """Run one fold worker: telemetry, offers and heartbeats become records of the control log."""
    from streams.fold import run

    shared.trace()
    shared.need_topics(context.obj)
    run(context.obj)


@command()
def control(context: typer.Context) -> None:
    """Run one control worker: the leader decides, the others stand by."""
    from streams.control import run

    shared.trace()
    shared.need_topics(context.obj)
    with shared.bad_input():
        run(context.obj)


@command()
def provision(
    context: typer.Context,
    static: Annotated[Path | None, typer.Option(help="Inventory of nodes that already run (YAML).")] = None,
    local: Annotated[Path | None, typer.Option(help="Stock of the local cloud (YAML).")] = None,
    time_scale: Annotated[
        float, typer.Option(callback=shared.scale, help="Passed to the nodes that `--local` starts.")
    ] = 1.0,
) -> None:
    """Bring and give back the nodes that plans claim."""
    from streams.provisioning import run

    settings: Settings = context.obj
    shared.trace()
    shared.need_topics(settings)
    with shared.bad_input():
        if static is None and local is None:
            raise ValueError("--static, --local: none given, expected at least one")
        run(settings, static=static, local=local, time_scale=time_scale)


@command()
def feed(context: typer.Context, plan: shared.File) -> None:
    """Play recorded traffic, list prices and availability onto the topics, as PLAN (YAML) says."""
    from agents.bus import Bus
    from agents.feeds import FeedPlan, run_feeds
    from schemas.catalog import load_catalog
    from schemas.yamlfile import load_yaml

    settings: Settings = context.obj
    shared.trace()

    async def play() -> None:
        async with Bus(settings.kafka, settings.topic_prefix, "feed") as bus:
            await run_feeds(bus, feeds, catalog)

    shared.need_topics(settings)
    with shared.bad_input():
        feeds, catalog = load_yaml(FeedPlan, plan), load_catalog(settings.catalog)
        asyncio.run(play())
