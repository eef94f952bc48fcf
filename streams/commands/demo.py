"""The demo's command."""

from typing import Annotated

import typer

from schemas.settings import Settings
from streams.commands import shared

app = typer.Typer()


@app.command()
def demo(
    context: typer.Context,
    engine: Annotated[str, typer.Option(help="simulated, or vllm: real engines, on the CPU.")] = "simulated",
    seconds: Annotated[
        float | None,
        typer.Option(callback=shared.seconds, help="Stop after so long; until Ctrl-C if not given."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The summary as one JSON object, last line.")
    ] = False,
) -> None:
    """Run the whole loop on this machine: Kafka, fold, control, provisioner, nodes and real input.

    Of the settings it takes `kafka`, `state_dir` and, for vLLM, `node.vllm` and the path of model `tiny`; all
    others are the demo's own, in schemas/data/demo.
    """
    from streams.demo.run import run_demo
    from streams.demo.script import script_for

    settings: Settings = context.obj
    shared.trace()
    with shared.bad_input():
        script = script_for(engine, settings.node)
        code = run_demo(settings, script, seconds=seconds, as_json=as_json)
    raise typer.Exit(code)
