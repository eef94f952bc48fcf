"""Why a plan is what it is, and what would change it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streams.commands import plan as planning
from streams.commands import shared

if TYPE_CHECKING:
    from schemas.problems import Answer, Problem
    from schemas.settings import Settings
    from solver.library import Library
    from streams.plan_record import PlanRecord


def explain_plan(
    context: typer.Context,
    plan: Annotated[
        Path | None, typer.Argument(help="A plan that `coral plan` wrote; default: one is made.")
    ] = None,
    one_more: Annotated[
        str | None,
        typer.Option(help="A configuration, such as 1xH100; default: the dearest GPU, as it is sold."),
    ] = None,
    places: Annotated[
        int, typer.Option(help="How many places to plan without, those worth least first.")
    ] = 6,
    setup: planning.SetupName = "core",
    demand: planning.Demand = None,
    availability: planning.Availability = None,
    prices: planning.Prices = None,
    running: planning.RunningFile = None,
    policy: planning.Policy = None,
    seed: planning.Seed = 0,
    stock: planning.StockScale = "full",
    runtime: planning.RuntimeName = None,
    n_max: planning.NMax = None,
    rho: planning.Rho = None,
    library: planning.LibraryFile = None,
    as_json: planning.Json = False,
) -> None:
    """Say why these nodes, what the next cheapest plan is, what one more node is worth, what mixing brought.

    Each is answered by planning again under a question that differs in that alone.
    """
    from solver.explain_plan import explain_plan as explain
    from streams import catalog_view, explain_plan_view

    with shared.bad_input():
        if places < 0:
            raise ValueError(f"--places: {places}, expected at least 0")
        if plan is not None:
            _alone(context)
            record, known = _opened(context.obj, plan, library)
        else:
            given = planning.given_of(demand, availability, prices, running, policy, seed, stock)
            asked, known = planning.prepared(context.obj, setup, runtime, n_max, rho, library)
            record = planning.solved(setup, asked, known, given)
        found = explain(record.problem, record.answer, known, _neighbour, one_more, places)
        view = explain_plan_view.shown(record, found)
    if as_json:
        typer.echo(view.as_json())
    else:
        catalog_view.show(view)


def _neighbour(problem: "Problem", library: "Library") -> "Answer | None":
    """None where no plan was found that keeps all limits."""
    from solver.allocation import NoAnswerError

    try:
        return planning.answered(problem, library)[0]
    except NoAnswerError:
        return None


def _alone(context: typer.Context) -> None:
    """Raises ValueError: an option that asks for another plan than the one that is given."""
    for name in sorted(set(context.params) - {"plan", "one_more", "places", "library", "as_json"}):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "--" + name.replace("_", "-")
            raise ValueError(
                f"{option}: goes with no PLAN, which has its own question; expected one of the two"
            )


def _opened(settings: "Settings", path: Path, library: Path | None) -> "tuple[PlanRecord, Library]":
    """A plan with the library that it was chosen from.

    Raises:
        OSError, ValueError: it cannot be read, the library cannot be had any more, or it is not from there.
    """
    from solver.setups import PAPER_SETUPS

    record = planning.opened(path)
    limits = record.limits
    if limits.setup not in PAPER_SETUPS and not Path(limits.setup).is_file():
        expected = "expected the file of the set-up, from where it was planned"
        raise ValueError(f"{path}: limits.setup: {limits.setup!r} is not there, {expected}")
    _, known = planning.prepared(settings, limits.setup, limits.runtime, limits.n_max, limits.rho, library)
    if known.digest != limits.library:
        raise ValueError(
            f"{path}: limits.library: {limits.library!r}, expected {known.digest}, as of {limits.setup} now"
        )
    planning.keeping(path, record, known)
    return record, known
