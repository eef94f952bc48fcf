"""Catalogs: is one right, and what is in it."""

from pathlib import Path
from typing import Annotated

import typer

from streams.commands import shared

PANEL = "Performance"
app = typer.Typer()
catalog_app = typer.Typer(no_args_is_help=True, help="Models, GPUs, regions, prices and promises.")
app.add_typer(catalog_app, name="catalog", rich_help_panel=PANEL)

Where = Annotated[
    Path | None,
    typer.Argument(help="File or folder; or `shipped`, or `paper`; the settings' catalog if not given."),
]


@catalog_app.command("validate")
def validate(context: typer.Context, path: Where = None) -> None:
    """Say all that is wrong with a catalog, each with file, line and key; exit code 2 if anything is."""
    from schemas.catalog import draft_catalog
    from solver.catalog_check import implausible

    with shared.bad_input(), shared.reading("catalog" if path is None else "PATH"):
        catalog, faults = draft_catalog(shared.catalog_at(context.obj, path), implausible)
    for fault in faults:
        typer.echo(str(fault), err=True)
    if faults:
        raise shared.refused(f"{len(faults)} fault{'s' if len(faults) > 1 else ''}")
    typer.echo(
        f"valid: {len(catalog.models)} models, {len(catalog.gpus)} GPUs, "
        f"{len(catalog.configurations)} configurations, {len(catalog.regions)} regions, "
        f"{len(catalog.prices)} prices; digest {catalog.digest}"
    )


@catalog_app.command("show")
def show(
    context: typer.Context,
    path: Where = None,
    model: Annotated[str | None, typer.Option(help="One model: shape, sizes, checkpoints, promises.")] = None,
    gpu: Annotated[str | None, typer.Option(help="One GPU: figures, configurations, prices.")] = None,
    prices: Annotated[bool, typer.Option("--prices", help="Every price, by region and market.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show what a catalog says, in short or of one model, one GPU, or its prices."""
    from streams import catalog_view

    with shared.bad_input():
        if sum((model is not None, gpu is not None, prices)) > 1:
            raise ValueError("--model, --gpu, --prices: several given, expected at most one")
        catalog = shared.read_catalog(context.obj, path, "PATH")
        view = catalog_view.view_of(catalog, model=model, gpu=gpu, prices=prices)
    if as_json:
        typer.echo(view.as_json())
    else:
        catalog_view.show(view)
