"""How far above the measured demand of a service is planned, and why."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from streams.commands import shared

if TYPE_CHECKING:
    from streams.allowances import Explained

LEAST_RATE, MOST_RATE = 1e-6, 1e9
"""Requests/s: one in eleven days, and a fifth of mankind every second."""


def explain_headroom(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="A public model of the catalog.")],
    rate: Annotated[float, typer.Option(help="Requests/s that come to it.")],
    slo_class: Annotated[str | None, typer.Option(help="Default: the model's first.")] = None,
    phase: Annotated[str, typer.Option(help="prefill, decode or both.")] = "both",
    catalog: shared.CatalogOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Say what demand is multiplied by so that bursts keep the promises, by promise and by rate."""
    from schemas.catalog import Phase
    from streams.allowances import check_services, explain

    with shared.bad_input():
        levels = {
            (m.name, level.slo_class): level
            for m in shared.read_catalog(context.obj, catalog).models
            for level in m.levels
        }
        kinds = [kind for kind in levels if kind[0] == model and slo_class in (None, kind[1])]
        if not kinds:
            asked, known = "/".join(filter(None, (model, slo_class))), ", ".join("/".join(k) for k in levels)
            raise ValueError(f"--model, --slo-class: {asked!r}, expected one of {known}")
        phases: dict[str, Phase] = {name: name for name in get_args(Phase)}
        if phase not in phases:
            raise ValueError(f"--phase: {phase!r}, expected one of {', '.join(phases)}")
        if not LEAST_RATE <= rate <= MOST_RATE:
            raise ValueError(f"--rate: {rate:g}, expected {LEAST_RATE:g} to {MOST_RATE:g} requests/s")
        check_services(context.obj, levels)
        found = explain(context.obj, kinds[0], levels[kinds[0]], phases[phase], rate)
    typer.echo(found.model_dump_json() if as_json else "\n".join(_lines(found)))


def _lines(found: "Explained") -> Iterator[str]:
    yield f"{found.service} at {found.requests_per_s:g} requests/s: demand x {found.factor:.2f}"
    yield f"  setting     {found.setting}" + (
        ", at most " * found.capped + f"{found.at_most:g}" * found.capped
    )
    yield f"  binds       {found.binding}, with {found.slots:.1f} requests at once"
    for name, kept in found.promises.items():
        yield (
            f"  {name:<10}  x {kept.factor:.2f} (x {kept.without_bursts:.2f} without bursts)"
            f" for {kept.percentile:g}% of requests: busy {kept.busy_s:.2f} s, may wait {kept.wait_s:.2f} s,"
            f" lengths' cv^2 {kept.length_cv2:.2f}"
        )
    bursts = ", ".join(f"{cv2:.3f} over {interval_s} s" for interval_s, cv2 in found.rate_cv2.items())
    known = bursts or "none in the catalog: Poisson arrivals, the least there can be"
    yield f"  rate's cv^2 {known}"
    yield f"  horizon     {found.horizon_s:g} s: what moves slower, planning anew follows"
    yield f"  by rate     {', '.join(f'{rate}: x {factor:.2f}' for rate, factor in found.by_rate.items())}"
