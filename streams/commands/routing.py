"""What stands between clients and instances, and tells how much is asked for."""

import socket
from functools import partial
from typing import Annotated

import typer

from schemas.settings import Settings
from streams.commands import shared

app = typer.Typer()
command = partial(app.command, rich_help_panel="Requests")


@command()
def router(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Option(help="Of this router, unique in the fleet; the machine's if not given.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Overrides the settings; 0 picks a free one.")
    ] = None,
    prefer_region: Annotated[
        str | None, typer.Option(help="Instances of this region first; overrides the settings.")
    ] = None,
) -> None:
    """Be an OpenAI-compatible door of the fleet, and tell what is asked for on `coral.telemetry`.

    It looks for neither Kafka nor the topics first: it goes on by the last plan on its disk.
    """
    from agents.router import run
    from schemas.catalog import load_catalog
    from streams.served import levels_of

    settings: Settings = context.obj
    shared.trace()
    given = {"port": port, "prefer_region": prefer_region}
    router_settings = settings.router.model_copy(update={k: v for k, v in given.items() if v is not None})
    with shared.bad_input():
        called = _name(name)
        run(
            settings.kafka,
            settings.topic_prefix,
            settings.state_dir.absolute() / "routers" / called,
            router_settings,
            called,
            levels_of(settings, load_catalog(settings.catalog)),
        )


def _name(given: str | None) -> str:
    """Checked, since it is a folder's name, too."""
    from pydantic import TypeAdapter

    from agents.identity import NodeName

    name: str = TypeAdapter(NodeName).validate_python(socket.gethostname() if given is None else given)
    return name
