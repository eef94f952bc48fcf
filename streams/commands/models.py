"""vLLM and what it serves: is it installed well, which revision is a checkpoint, what should it answer."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from schemas.settings import Settings
from streams.commands import shared

app = typer.Typer()
PANEL = "Nodes"
doctor_app = typer.Typer(no_args_is_help=True, help="Look whether what a node needs is there and works.")
model_app = typer.Typer(no_args_is_help=True, help="Checkpoints on this machine.")
reference_app = typer.Typer(no_args_is_help=True, help="What a checkpoint answers when all is well.")
app.add_typer(doctor_app, name="doctor", rich_help_panel=PANEL)
app.add_typer(model_app, name="model", rich_help_panel=PANEL)
app.add_typer(reference_app, name="reference", rich_help_panel=PANEL)

UNWELL = 1
Folder = Annotated[Path, typer.Argument(exists=True, file_okay=False, readable=True)]


@doctor_app.command("vllm")
def doctor_vllm(context: typer.Context) -> None:
    """Look whether vLLM, models, store, GPUs and memory are as `node` of the settings says.

    Starts no engine; takes as long as to import vLLM. Exit code 1 if something would keep engines away.
    """
    from agents.doctor import check

    node = context.obj.node
    found = check(
        node.vllm, platform=node.platform, models=node.models, address=node.address, store=node.store
    )
    for finding in found:
        typer.echo(f"{finding.level:<5} {finding.what:<15} {finding.text}")
    if any(finding.level == "bad" for finding in found):
        raise typer.Exit(UNWELL)


@model_app.command("revision")
def model_revision(path: Folder) -> None:
    """Print the revision of the checkpoint in the folder PATH: for `revision` of a catalog's variant."""
    from agents.weights import revision_of

    with shared.bad_input():
        typer.echo(revision_of(path))


@reference_app.command("make")
def reference_make(
    context: typer.Context,
    path: Folder,
    variant: Annotated[
        str | None,
        typer.Option(help="MODEL/VARIANT of the catalog, whose vLLM arguments it is for; none if not given."),
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Over how many of this machine's devices.")] = 1,
) -> None:
    """Run one unpartitioned vLLM on the checkpoint in PATH and keep its answers there, for admission checks.

    Takes a start of vLLM and some requests. The first `--tp` devices must be free and hold the whole model.
    """
    from agents import inventory
    from agents.engine import EngineError
    from agents.reference_make import make
    from streams.commands.engines_vllm import engine_of

    settings: Settings = context.obj
    with shared.bad_input():
        arguments = _arguments(settings, variant)
        seen = inventory.survey().devices if settings.node.platform == "cuda" else ()
        # On the CPU no share of device memory is taken: any figure does.
        engine = engine_of(settings.node, min((device.memory_gb for device in seen), default=1.0))
        if settings.node.platform == "cuda" and len(seen) < tp:
            raise ValueError(f"--tp: {tp}, expected at most the {len(seen)} devices of this machine")
        log = settings.state_dir / "reference.log"
        try:
            made = asyncio.run(make(path, engine, arguments, log=log, tp=tp))
        except EngineError as error:
            raise ValueError(str(error)) from error
    typer.echo(made)


def _arguments(settings: Settings, variant: str | None) -> dict[str, str]:
    from schemas.catalog import load_catalog

    if variant is None:
        return {}
    known = {f"{m.name}/{v.name}": v for m in load_catalog(settings.catalog).models for v in m.variants}
    if variant not in known:
        raise ValueError(f"--variant: {variant!r} is not in the catalog, expected one of {', '.join(known)}")
    return known[variant].vllm_args
