"""`coral`: the composition root. It reads settings, builds what a command needs, and nothing else does.

Here the settings are loaded; the commands themselves are in `streams.commands`, by who gives them. Bad input
ends with exit code 2 and one line that names the field, the value and what was expected.
"""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from agents.quiet import Repeats
from schemas.settings import load_settings
from streams.commands import (
    catalogs,
    demo,
    evaluate,
    explain,
    looking,
    models,
    nodes,
    operating,
    plan,
    profiles,
    routing,
    templates,
    workers,
)
from streams.commands.shared import bad_input, refused

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Serve many LLMs on mixed cloud GPUs at least cost: an event-driven control plane.",
)
for part in (
    demo,
    workers,
    nodes,
    models,
    catalogs,
    profiles,
    templates,
    plan,
    explain,
    evaluate,
    routing,
    operating,
    looking,
):
    app.add_typer(part.app)


@app.callback()
def main(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).", envvar="CORAL_CONFIG")] = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option(help="Kafka, host:port[,host:port]; overrides the settings.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Settings come from defaults, then --config, then CORAL_... variables, then options."""
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise refused(f"--log-level: {log_level!r}, expected debug, info, warning or error")
    lines = logging.StreamHandler(sys.stderr)
    lines.addFilter(Repeats())
    logging.basicConfig(
        level=level, handlers=[lines], format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    for chatty in ("aiokafka", "faust", "httpx", "mode"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
    with bad_input():
        given = {} if bootstrap_servers is None else {"kafka": {"bootstrap_servers": bootstrap_servers}}
        context.obj = load_settings(config, **given)


if __name__ == "__main__":
    app()
