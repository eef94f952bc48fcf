"""Why the planner rates a node as it does."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from streams.commands import shared
from streams.commands.explain_plan import explain_plan
from streams.commands.explain_template import explain_template
from streams.commands.headroom import explain_headroom

if TYPE_CHECKING:
    from schemas.catalog import Model, ServiceLevel, Variant
    from schemas.settings import Settings
    from solver.explanation import Bound, Explanation
    from solver.figures import Figures
    from solver.roofline import Roofline

T = TypeVar("T")
PANEL = "Performance"
LEAST_GAIN = 0.0005
"""Smaller ones would be shown as 0.0%."""
app = typer.Typer()
explain_app = typer.Typer(no_args_is_help=True, help="Why a figure is what it is.")
app.add_typer(explain_app, name="explain", rich_help_panel=PANEL)
explain_app.command("headroom")(explain_headroom)
explain_app.command("template")(explain_template)
explain_app.command("plan")(explain_plan)


@explain_app.command("node")
def explain_node(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="A public model of the catalog.")],
    gpu: Annotated[str, typer.Option(help="A node configuration of the catalog, such as 2xL40S.")],
    layers: Annotated[int, typer.Option(help="How many of the model's layers the node holds.")],
    phase: Annotated[str, typer.Option(help="prefill, decode or both.")] = "both",
    variant: Annotated[str | None, typer.Option(help="Default: the first that runs on the GPU.")] = None,
    slo_class: Annotated[str | None, typer.Option(help="Default: the model's first.")] = None,
    stages: Annotated[
        int | None, typer.Option(help="Stages in all; default: as many as such nodes would need.")
    ] = None,
    place: Annotated[
        str | None, typer.Option(help="alone, first, middle or last in the chain; default: middle, or alone.")
    ] = None,
    tp: Annotated[int | None, typer.Option(help="GPUs that share a layer; default: the best.")] = None,
    catalog: shared.CatalogOption = None,
    efficiencies: Annotated[Path | None, typer.Option(help="Default: those of the settings.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Say what a node gives while it holds so many layers, and which limit binds, with the numbers."""
    from schemas.performance import load_efficiencies
    from solver.explain import explain
    from solver.explanation import PLACES
    from solver.figures import Figures
    from solver.profiles import load_profile

    settings: Settings = context.obj
    with shared.bad_input():
        known = shared.read_catalog(settings, catalog)
        node = _one_of("gpu", gpu, {c.name: c for c in known.configurations})
        at = None if place is None else _one_of("place", place, {name: name for name in PLACES})
        with shared.reading("profiles"):
            profile = load_profile(settings.profiles, known)
        with shared.reading("efficiencies" if efficiencies is None else "--efficiencies"):
            figures = Figures(known, load_efficiencies(efficiencies or settings.efficiencies), profile)
        roofline = _roofline(figures, model, variant, slo_class, phase, node.gpu)
        found = explain(roofline, node, layers, stages=stages, place=at, tp=tp)
    typer.echo(found.model_dump_json() if as_json else "\n".join(_lines(found)))


def _roofline(
    figures: "Figures", model: str, variant: str | None, slo_class: str | None, phase: str, gpu: str
) -> "Roofline":
    """What is asked about.

    Raises:
        ValueError: a name is unknown; those that are known are given.
    """
    from schemas.catalog import Phase
    from solver.correction import correction_of
    from solver.roofline import Roofline

    catalog, efficiencies, profile = figures
    found = _one_of("model", model, {m.name: m for m in catalog.models})
    chosen = _variant(found, variant, gpu)
    level = _level(found, slo_class)
    phases: dict[str, Phase] = {"prefill": "prefill", "decode": "decode", "both": "both"}
    gpus = {g.name: g for g in catalog.gpus}
    asked = _one_of("phase", phase, phases)
    correction = correction_of(profile, catalog, efficiencies, found, chosen)
    return Roofline(found, chosen, level, gpus, efficiencies, asked, correction)


def _variant(model: "Model", name: str | None, gpu: str) -> "Variant":
    if name is not None:
        return _one_of("variant", name, {v.name: v for v in model.variants})
    fitting = [v for v in model.variants if gpu in v.gpus]
    if not fitting:
        raise ValueError(f"--gpu: {gpu}, expected a GPU that a variant of {model.name} runs on")
    return fitting[0]


def _level(model: "Model", name: str | None) -> "ServiceLevel":
    levels = {level.slo_class: level for level in model.levels}
    if not levels:
        raise ValueError(f"--model: {model.name} has no service level, so nothing is promised for it")
    return next(iter(levels.values())) if name is None else _one_of("slo-class", name, levels)


def _one_of(option: str, given: str, known: dict[str, T]) -> T:
    if given not in known:
        raise ValueError(f"--{option}: {given!r}, expected one of {', '.join(known)}")
    return known[given]


# ------------------------------------------------------------------------------------------------- text


def _lines(found: "Explanation") -> Iterator[str]:
    step, memory = found.step, found.memory
    where = "all of it" if found.place == "alone" else f"the {found.place} of {found.stages} stages"
    yield f"{found.model} {found.variant}, {found.slo_class}, {found.phase}: {found.layers} layers, {where}"
    yield f"  on {found.configuration}: {found.replicas} x tp {found.tp}"
    yield f"  binds       {found.binds}" + _beside(found)
    yield f"  throughput  {_figure(found.throughput)} {found.unit} of the node, batch {found.batch:.1f}"
    yield (
        f"  step        {step.total_ms:.2f} ms = layers {step.layers_ms:.2f}"
        f" + embedding {step.embedding_ms:.2f} + head {step.head_ms:.2f}"
        f" + sending {step.send_ms:.2f} + overhead {step.overhead_ms:.2f}"
    )
    alone = sorted(step.alone_ms.items(), key=lambda item: -item[1])
    yield f"  alone       {', '.join(f'{name} {ms:.2f}' for name, ms in alone)} ms, which overlap"
    yield (
        f"  memory      {memory.total_gb:g} GB a GPU = weights {memory.weights_gb:.2f}"
        f" + KV {memory.kv_gb:.2f} + reserved {memory.reserved_gb:.2f} + free {memory.free_gb:.2f}"
    )
    for number, bound in enumerate(found.bounds):
        yield f"  {'' if number else 'limits':<10}  {_bound(bound)}"
    yield f"  next batch  {_next(found)}"
    if found.gains:
        gains = sorted(found.gains.items(), key=lambda item: -item[1])
        shown = [f"of {name} gives {gain:+.1%}" for name, gain in gains if gain >= LEAST_GAIN]
        yield f"  10% more    {', '.join(shown) or 'of any one thing gives nothing'}"


def _beside(found: "Explanation") -> str:
    if found.throughput == 0:
        broken = ", ".join(_bound(bound) for bound in found.bounds if bound.broken)
        return f": even the smallest batch is beyond it ({broken})"
    if found.binds == found.busiest:
        return ": the step spends most time on it"
    return f": a larger batch would give more; the step spends most time on {found.busiest}"


def _next(found: "Explanation") -> str:
    following = found.next_batch
    if following is None:
        return "none larger is tried"
    would = f"{following.batch:.1f} would give {_figure(following.throughput)} {found.unit}"
    violates = ", ".join(_bound(bound) for bound in following.violates)
    return f"{would}, but {violates}" if violates else f"{would}, within all limits"


def _bound(bound: "Bound") -> str:
    sign = ">" if bound.broken else "<="
    return f"{bound.what} {_figure(bound.needs)} {sign} {_figure(bound.allowed)} {bound.unit}"


def _figure(value: float) -> str:
    """Four digits, and no powers of ten for large ones."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
