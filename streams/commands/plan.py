"""Plan what to run where, and compare two plans."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streams.commands import shared
from streams.commands.templates import asked_setup

if TYPE_CHECKING:
    from schemas.problems import Answer, Problem
    from schemas.settings import Settings
    from solver.library import Library
    from solver.setups import Setup
    from streams.plan_record import PlanRecord
    from streams.planning import Given

PANEL = "Planning"
TOLD = 3
"""Faults of a plan, after which nobody reads on."""
app = typer.Typer()

SetupName = Annotated[
    str, typer.Option("--setup", help="core or extended (the paper's), or a file (docs/templates.md).")
]
Demand = Annotated[Path | None, typer.Option(help="By model; default: the paper's.")]
Availability = Annotated[
    Path | None, typer.Option(help="Nodes by region and configuration; default: follows from --seed.")
]
Prices = Annotated[Path | None, typer.Option(help="Over the list prices that ship.")]
RunningFile = Annotated[
    Path | None, typer.Option(help="Instances that run, or a plan that this command wrote.")
]
Policy = Annotated[
    Path | None,
    typer.Option(help="What is asked beyond least cost; default: nothing in paper mode, else robustness."),
]
Seed = Annotated[int, typer.Option(help="Of the stock, where no file says it.")]
StockScale = Annotated[str, typer.Option("--stock", help="full, scarce, x0.3 or x0.15, with --seed.")]
RuntimeName = Annotated[str | None, typer.Option("--runtime", help="vllm or coral; default: the set-up's.")]
NMax = Annotated[int | None, typer.Option(help="Most nodes of a template; default: the set-up's.")]
Rho = Annotated[float | None, typer.Option(help="Most GPU memory over weights; default: the set-up's.")]
LibraryFile = Annotated[
    Path | None,
    typer.Option("--library", help="Default: `state_dir/libraries`, built there if it is missing."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]
PlanFile = Annotated[Path, typer.Argument(help="A plan that `coral plan` wrote.")]


@app.command("plan", rich_help_panel=PANEL)
def plan(
    context: typer.Context,
    setup: SetupName = "core",
    demand: Demand = None,
    availability: Availability = None,
    prices: Prices = None,
    running: RunningFile = None,
    policy: Policy = None,
    seed: Seed = 0,
    stock: StockScale = "full",
    runtime: RuntimeName = None,
    n_max: NMax = None,
    rho: Rho = None,
    library: LibraryFile = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A file for the plan, as --json prints it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan which instances to run where, at least cost, with a proof of how far from the least it may be.

    Without files it plans a paper's set-up: its own demand, the shipped prices, stock that follows from a
    seed. Demand that cannot be met is told and is no failure.
    """
    from streams import catalog_view, plan_view

    with shared.bad_input():
        given = given_of(demand, availability, prices, running, policy, seed, stock)
        asked, known = prepared(context.obj, setup, runtime, n_max, rho, library)
        record = solved(setup, asked, known, given)
        if out is not None:
            with shared.reading("--out", "a file that can be written"):
                out.write_text(record.model_dump_json() + "\n")
    if as_json:
        typer.echo(record.model_dump_json())
    else:
        catalog_view.show(plan_view.shown(record))
    for line in plan_view.unused(record):
        typer.echo(f"coral: {line}", err=True)


@app.command("diff", rich_help_panel=PANEL)
def diff(first: PlanFile, second: PlanFile, as_json: Json = False) -> None:
    """Show how two plans differ: what they cost, what stays, starts, stops and moves, and why."""
    from streams import catalog_view, plan_diff

    with shared.bad_input():
        view = plan_diff.difference(opened(first), opened(second))
    if as_json:
        typer.echo(view.as_json())
    else:
        catalog_view.show(view)


# ------------------------------------------------------------------------------- shared with `explain plan`


def given_of(
    demand: Path | None,
    availability: Path | None,
    prices: Path | None,
    running: Path | None,
    policy: Path | None,
    seed: int,
    stock: str,
) -> "Given":
    """Raises ValueError: a stock that is none of the four, or a file that cannot be read."""
    from solver.scarcity import SCALES
    from streams.planning import Given

    scales = {name: name for name in SCALES}
    if stock not in scales:
        raise ValueError(f"--stock: {stock!r}, expected one of {', '.join(scales)}")
    given = Given(demand, availability, prices, running, policy, seed, scales[stock])
    for name in ("demand", "availability", "prices", "running", "policy"):
        readable(f"--{name}", getattr(given, name))
    return given


def readable(option: str, path: Path | None) -> None:
    """Raises ValueError: a file that is named and cannot be read, before anything long begins."""
    if path is not None:
        with shared.reading(option, "a file that can be read"):
            path.open("rb").close()


def opened(path: Path) -> "PlanRecord":
    """A plan that was written before.

    Raises:
        ValueError: it cannot be read, is none, or breaks its own question.
    """
    from streams.plan_record import read_record

    readable("PLAN", path)
    record = read_record(path)
    keeping(path, record)
    return record


def keeping(path: Path, record: "PlanRecord", library: "Library | None" = None) -> None:
    """Raises ValueError: a plan that breaks its own question, or has ratings that are not its library's."""
    from streams.plan_record import faults_of

    faults = list(faults_of(record, library))
    if faults:
        more = f"; and {len(faults) - TOLD} more" if len(faults) > TOLD else ""
        told = f"{'; '.join(faults[:TOLD])}{more}"
        raise ValueError(f"{path}: no plan that keeps its question: {told}; expected one as it was written")


def prepared(
    settings: "Settings",
    setup: str,
    runtime: str | None,
    n_max: int | None,
    rho: float | None,
    library: Path | None,
) -> "tuple[Setup, Library]":
    """The set-up and its library: the one given, or the one in the cache, built if it is missing.

    Raises:
        OSError, ValueError: a file cannot be read, limits cannot be, or the library is not the set-up's.
    """
    from solver.building import inputs_of
    from solver.library_file import load_library
    from streams.library_cache import cached_library

    readable("--library", library)
    asked, figures = asked_setup(settings, setup, runtime, n_max, rho)
    if library is not None:
        return asked, load_library(library, figures, inputs_of(figures, asked.scope))
    return asked, cached_library(figures, asked.scope, shared.state_folder(settings, "libraries"))


def solved(name: str, setup: "Setup", library: "Library", given: "Given") -> "PlanRecord":
    """The plan.

    Raises:
        OSError, ValueError: a file cannot be read or says what cannot be, or no plan was found that keeps all
            limits.
    """
    from solver.allocation import NoAnswerError
    from streams.plan_record import record_of
    from streams.planning import question_of

    question = question_of(setup, library, given)
    try:
        answer, processor_s = answered(question.problem, library)
    except NoAnswerError as error:
        raise ValueError(f"policy: {error}") from error
    return record_of(name, library, question.problem, answer, processor_s, question.unused)


def answered(problem: "Problem", library: "Library") -> "tuple[Answer, float]":
    """The answer to a question, checked, and the processor seconds that it took.

    Raises:
        NoAnswerError: no plan was found that keeps all limits.
        RuntimeError: the answer does not satisfy its question, which is our fault.
    """
    import time

    from solver.answers import METHOD
    from solver.methods import method
    from solver.verify import verify

    solve = method(METHOD)
    start_s = time.process_time()
    answer = solve(problem, library, clock=time.perf_counter)
    spent_s = time.process_time() - start_s
    if violations := verify(problem, answer):
        raise RuntimeError(f"the plan breaks its question: {violations[0].name}: {violations[0].detail}")
    return answer, spent_s
