"""Performance profiles: take a user's measurements, measure a live endpoint, fit the model to data."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streams.commands import shared
from streams.interrupts import INTERRUPTED

if TYPE_CHECKING:
    from schemas.catalog import Catalog
    from schemas.performance import Efficiencies
    from solver.correction import Compared
    from solver.points import Point, Profile

PANEL = "Performance"
app = typer.Typer()
profile_app = typer.Typer(no_args_is_help=True, help="Measured performance, which the planner goes by.")
app.add_typer(profile_app, name="profile", rich_help_panel=PANEL)

WRITABLE = "a place for a file that can be written"
UNUSABLE = 1
"""Something was measured, and nothing can be made of it."""


@profile_app.command("import")
def import_(
    context: typer.Context,
    file: shared.File,
    out: Annotated[
        Path | None,
        typer.Option(help="The profile to write, .yaml or .json; FILE with .profile.yaml if none."),
    ] = None,
) -> None:
    """Check measured points (CSV as of `vllm bench serve`, docs/profiles.md) and store them as a profile.

    Says how far the performance model is from each. Name the profile in `profiles` of the settings, and the
    planner goes by it.
    """
    from agents.files import write_atomically
    from schemas.performance import load_efficiencies
    from solver.points import Profile
    from solver.profile_csv import read
    from solver.strict_csv import TableError

    target = file.with_suffix(".profile.yaml") if out is None else out
    with shared.bad_input():
        if target.suffix not in {".yaml", ".yml", ".json"}:
            raise ValueError(f"--out: {target}, expected a name that ends in .yaml or .json")
        catalog = shared.read_catalog(context.obj, None)
        try:
            points = read(file.read_bytes(), str(file), catalog)
            profile = Profile(points=tuple(points))
            with shared.reading("efficiencies"):
                efficiencies = load_efficiencies(context.obj.efficiencies)
            _compare(str(file), points, profile, catalog, efficiencies)
        except TableError as error:
            raise shared.refused(str(error)) from error
        with shared.reading("--out", WRITABLE):
            write_atomically(target, _spelt(profile, as_json=target.suffix == ".json"))
    typer.echo(f"{target}: {len(profile.points)} points, digest {profile.digest}")


def _compare(
    file: str,
    lines: "Mapping[Point, int]",
    profile: "Profile",
    catalog: "Catalog",
    efficiencies: "Efficiencies",
) -> None:
    """Print how far the model is off each point.

    Raises:
        TableError: a time is so short that no factor reaches it.
    """
    from solver.correction import compare
    from solver.strict_csv import Problem, TableError

    compared: list[Compared] = []
    for name, variant_name in sorted({(p.model, p.variant) for p in profile.points}):
        model = catalog.model(name)
        variant = next(v for v in model.variants if v.name == variant_name)
        compared += compare(catalog, efficiencies, model, variant, profile.of(name, variant_name)).points
    if beyond := [
        Problem(lines[one.point], f"mean_{one.what.lower()}_ms", f"{one.measured_ms:g}", _more_than(one))
        for one in compared
        if one.beyond
    ]:
        raise TableError(file, beyond)
    for one in compared:
        point = one.point
        place = f"{point.model}/{point.variant} on {point.tp}x{point.gpu}, pp {point.pp}"
        load = f"{one.at:.4g} {'prompt tokens' if one.what == 'TTFT' else 'sequences'}"
        times = f"measured {one.measured_ms:.4g} ms, modelled {one.modelled_ms:.4g} ms"
        typer.echo(f"{place}, {load}: {one.what} {times}, layers x {one.factor:.3g}")


def _more_than(one: "Compared") -> str:
    seconds = "; is it in seconds?" if 1000 * one.measured_ms > one.least_ms else ""
    return f"more than {one.least_ms:.3g} ms, which its fixed parts are modelled to take{seconds}"


def _spelt(profile: "Profile", *, as_json: bool) -> str:
    import yaml

    plain = profile.model_dump(mode="json")
    return json.dumps(plain, indent=1) + "\n" if as_json else yaml.safe_dump(plain, sort_keys=False)


@profile_app.command()
def run(
    context: typer.Context,
    url: Annotated[str, typer.Option(help="The endpoint's root, http://host:port.")],
    model: Annotated[str, typer.Option(help="Model of the catalog.")],
    gpu: Annotated[str, typer.Option(help="GPU of the catalog on which the endpoint runs it.")],
    variant: Annotated[str | None, typer.Option(help="Variant; may be left out if there is one.")] = None,
    served_as: Annotated[
        str | None, typer.Option(help="The endpoint's name of the model, if another.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="GPUs a stage.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Stages.")] = 1,
    phase: Annotated[str, typer.Option(help="prefill, decode or both; prefill asks for one token.")] = "both",
    engine: Annotated[str | None, typer.Option(help="What serves, with its version; else /version.")] = None,
    concurrency: Annotated[str, typer.Option(help="Closed loops: requests in flight, by commas.")] = "1,4,16",
    rate: Annotated[str, typer.Option(help="Open loops: Poisson arrivals a second, by commas.")] = "",
    input_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt, about.")] = 512,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 128,
    seconds: Annotated[float, typer.Option(help="To measure each load, after its warm-up.")] = 60.0,
    warmup: Annotated[float, typer.Option(help="Seconds of warm-up of each load, at the least.")] = 5.0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request has failed.")] = 600.0,
    chat: Annotated[bool, typer.Option(help="Ask for chats, not for completions.")] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as a bearer token.")
    ] = None,
    source: Annotated[
        str, typer.Option(help="Who measured, where; goes into the file.")
    ] = "coral profile run",
    out: Annotated[Path, typer.Option(help="The CSV file to write; must not exist.")] = Path("profile.csv"),
) -> None:
    """Measure a live OpenAI-compatible endpoint at several loads and write what `coral profile import` takes.

    Prompts are all different, so that no prefix cache flatters the figures. Ctrl-C ends it; the loads that
    were measured by then are in the file. Nobody else should use the endpoint meanwhile.
    """
    from agents.load_endpoint import Target
    from streams.commands.profile_run import Plan, Subject, loads, measure

    answered = 1 if phase == "prefill" else output_tokens
    with shared.bad_input():
        plan = Plan(
            Subject(model, variant or "", gpu, tp, pp, phase, engine, source),
            Target(url, served_as or model, input_tokens, answered, chat),
            loads(concurrency, rate, seconds, warmup),
            api_key,
            timeout,
            out,
        )
        plan.check()
        catalog = shared.read_catalog(context.obj, None)
        plan = plan.in_words_of(catalog)
        rows, interrupted = asyncio.run(measure(plan, typer.echo))
    if rows:
        typer.echo(f"{out}: {len(rows)} points")
        _would_be_refused(out, catalog)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if len(rows) < len(plan.loads):
        raise typer.Exit(UNUSABLE)


def _would_be_refused(out: Path, catalog: "Catalog") -> None:
    """End with the reasons if `coral profile import` would not take the file."""
    from solver.profile_csv import read
    from solver.strict_csv import TableError

    try:
        read(out.read_bytes(), str(out), catalog)
    except TableError as error:
        typer.echo(f"coral profile import would refuse it:\n{error}", err=True)
        raise typer.Exit(UNUSABLE) from error


@profile_app.command()
def fit(
    context: typer.Context,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of measurements, laid out as schemas/data/measured; the shipped ones if none."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file of efficiencies to write.")] = Path("efficiencies.yaml"),
) -> None:
    """Fit every GPU's efficiencies to measurements, on two thirds of them, and write them with their errors.

    Name the file in `efficiencies` of the settings, and the planner goes by it.
    """
    from agents.files import write_atomically
    from solver.fitting import fit as fit_all
    from solver.measured_check import TOLD, impossible
    from solver.measurements import SHIPPED, load, place_of
    from solver.validation import compare

    with shared.bad_input():
        catalog = shared.read_catalog(context.obj, None)
        folder = SHIPPED if data is None else data
        with shared.reading("--data"):
            measured = load(folder)
        if wrong := list(impossible(measured, {gpu.name: gpu for gpu in catalog.gpus})):
            raise shared.refused(
                "\n".join(
                    f"{place_of(folder, w.table, w.row)}, {w.column}: {w.value}, expected {w.expected}"
                    for w in wrong[:TOLD]
                )
            )
        efficiencies = fit_all(measured, catalog.gpus)
        with shared.reading("--out", WRITABLE):
            write_atomically(out, efficiencies.yaml())
    for one in compare(measured, catalog.gpus, efficiencies):
        if (errors := one.errors()).points:
            off = f"median error {errors.median:.1%}, p90 {errors.p90:.1%}, bias {errors.bias:+.1%}"
            typer.echo(f"{one.gpu} {one.level} {one.phase}, {one.source}: {errors.points} held out, {off}")
    typer.echo(f"{out}: {len(efficiencies.gpus)} GPUs")
