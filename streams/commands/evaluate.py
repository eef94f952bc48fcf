"""Studies of the planner itself, on what the catalogs have."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streams.commands import shared

if TYPE_CHECKING:
    from schemas.problems import Service
    from solver.sensitivity import Trial
    from solver.setups import Setup

PANEL = "Planning"
app = typer.Typer()
evaluate_app = typer.Typer(no_args_is_help=True, help="Studies of the planner itself.")
app.add_typer(evaluate_app, name="evaluate", rich_help_panel=PANEL)


@evaluate_app.callback()
def _group() -> None:
    """With one command alone, typer would make it the group."""


@evaluate_app.command("sensitivity")
def sensitivity(
    context: typer.Context,
    setup: Annotated[str, typer.Option(help="core, extended, or a file.")] = "extended",
    model: Annotated[str, typer.Option(help="One of the set-up's.")] = "gpt-oss-120b",
    phase: Annotated[str, typer.Option(help="prefill, decode or both.")] = "prefill",
    runtime: Annotated[str | None, typer.Option(help="vllm or coral; default: the set-up's.")] = None,
    n_max: Annotated[str, typer.Option(help="Most nodes, with commas.")] = "1,2,3,4,5,6,7",
    rho: Annotated[str, typer.Option(help="Most GPU memory over weights, with commas.")] = "2,4,6,8,12,16",
    cores: Annotated[int | None, typer.Option(help="How many to use; default: all.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="A plot to write, .svg or .png; needs matplotlib.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show what larger limits of a library give: templates, seconds, the best one (the paper's Fig. 13)."""
    import os
    import time

    from solver.sensitivity import trials
    from solver.worth import Prices
    from streams import catalog_view, sensitivity_view
    from streams.libraries import figures_for, runtime_of, setup_of

    with shared.bad_input():
        n_maxes, rhos = _whole("--n-max", n_max), _numbers("--rho", rho)
        if cores is not None and cores < 1:
            raise ValueError(f"--cores: {cores}, expected at least 1")
        asked = setup_of(context.obj, setup)
        asked, service = _narrowed(asked, model, phase)
        scope = asked.scope.with_limits(runtime_of(runtime))
        figures, prices = figures_for(context.obj, asked.catalog), Prices(asked.catalog, asked.regions)
        found = list(trials(figures, scope, prices, n_maxes, rhos, time.perf_counter, cores))
        if plot is not None:
            _plot(service, found, plot)
    view = sensitivity_view.shown(service, found, cores or len(os.sched_getaffinity(0)))
    if as_json:
        typer.echo(view.as_json())
    else:
        catalog_view.show(view)


def _narrowed(setup: "Setup", model: str, phase: str) -> "tuple[Setup, Service]":
    """The set-up with one service alone."""
    from dataclasses import replace
    from typing import get_args

    from schemas.catalog import Phase
    from schemas.problems import Service

    phases: dict[str, Phase] = {name: name for name in get_args(Phase)}
    if phase not in phases:
        raise ValueError(f"--phase: {phase!r}, expected one of {', '.join(phases)}")
    levels = dict(reversed(setup.scope.levels))  # a model's first class
    if model not in levels:
        raise ValueError(f"--model: {model!r}, expected one of {', '.join(reversed(levels))}")
    scope = replace(setup.scope, levels=((model, levels[model]),), phases=(phases[phase],))
    return replace(setup, scope=scope), Service(model=model, slo_class=levels[model], phase=phases[phase])


def _numbers(option: str, given: str) -> list[float]:
    try:
        found = [float(text) for text in given.split(",")]
    except ValueError:
        found = []
    if not found or not all(1 <= number < float("inf") for number in found):
        raise ValueError(f"{option}: {given!r}, expected numbers of at least 1 with commas between them")
    return found


def _whole(option: str, given: str) -> list[int]:
    found = _numbers(option, given)
    if not all(number.is_integer() for number in found):
        raise ValueError(f"{option}: {given!r}, expected whole numbers")
    return [int(number) for number in found]


def _plot(service: "Service", found: "list[Trial]", path: Path) -> None:
    from streams import sensitivity_view

    try:
        sensitivity_view.plot(service, found, path)
    except ModuleNotFoundError as error:
        raise ValueError(f"--plot: needs matplotlib, which is not installed ({error})") from error
