"""The demo's command."""

from typing import Annotated

import typer

from streams.commands import shared

app = typer.Typer()


@app.command()
def demo(
    context: typer.Context,
    seconds: Annotated[
        float | None,
        typer.Option(callback=shared.seconds, help="Stop after so long; until Ctrl-C if not given."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The summary as one JSON object, last line.")
    ] = False,
) -> None:
    """Run the whole loop on this machine: Kafka, fold, control, provisioner, nodes and real input.

    Of the settings it takes `kafka` and `state_dir`; all others are the demo's own, those of
    schemas/data/demo/settings.yaml.
    """
    from streams.demo.run import run_demo

    shared.trace()
    with shared.bad_input():
        code = run_demo(context.obj, seconds=seconds, as_json=as_json)
    raise typer.Exit(code)
