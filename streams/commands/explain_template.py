"""Why a template gives what it gives, and what would change it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streams.commands import shared

if TYPE_CHECKING:
    from schemas.settings import Settings
    from solver.explain_template import NodeShare, StageShare, TemplateExplanation
    from solver.library import Library, Shelf

SHOWN = 5
"""Of the nodes that could be added; JSON has all."""
LIKELY = 200
"""Templates of a service that give most per USD: who asks for one mostly saw it among them."""


def explain_template(
    context: typer.Context,
    template: Annotated[str, typer.Argument(help="Its id, as `coral templates best` shows it.")],
    library: Annotated[
        Path | None, typer.Option(help="Default: the controller's, in `state_dir/libraries`.")
    ] = None,
    service: Annotated[str | None, typer.Option(help="MODEL/CLASS/PHASE to look in; default: all.")] = None,
    catalog: Annotated[
        Path | None,
        typer.Option(help="Default: the settings', or the paper's if the library was built from that."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Say which stage binds and why, and what one more layer or one more node would change."""
    from solver.explain_template import explain_template as explain
    from solver.placement import throughput_of

    with shared.bad_input():
        shelf, row = _found(context.obj, template, library, service, catalog)
        whole, known = shelf.rated(row), shelf.library.inputs.configurations
        found = explain(
            shelf.inputs,
            whole.template,
            whole.rating.throughput,
            {node.name: node for node in known},
            lambda nodes: throughput_of(shelf.inputs, nodes),
            known,
        )
    typer.echo(found.model_dump_json() if as_json else "\n".join(_lines(found)))


def _found(
    settings: "Settings", template: str, library: Path | None, service: str | None, catalog: Path | None
) -> "tuple[Shelf, int]":
    """Where a template is.

    Raises:
        OSError, ValueError: a library cannot be read, there is none, or it is in none of them.
    """
    from solver.worth import Prices, best
    from streams.library_view import shelves_of

    opened, passed_over = _opened(settings, library, shared.catalog_named(settings, catalog))
    shelves = [shelf for one in opened for shelf in shelves_of(one, service)]
    likely = [[w.row for w in best(s, Prices(s.library.rated_by.catalog), LIKELY)] for s in shelves]
    for rows in (likely, [None] * len(shelves)):
        for shelf, some in zip(shelves, rows, strict=True):
            if (row := shelf.find(template, some)) is not None:
                return shelf, row
    looked = f"{len(opened)} looked through"
    said = f"{template}: no template's id, expected one in a library that is up to date ({looked})"
    raise ValueError("; ".join([said, *passed_over]))


def _opened(
    settings: "Settings", library: Path | None, catalog: Path | None
) -> "tuple[list[Library], list[str]]":
    """The library asked for, or the controller's; and why which of these are of no use any more."""
    from solver.library import LibraryError
    from solver.library_file import SUFFIX
    from streams.libraries import open_library

    if library is not None:
        return [open_library(settings, library, catalog)], []
    folder = settings.state_dir / "libraries"
    opened, passed_over = [], []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            opened.append(open_library(settings, path, catalog))
        except LibraryError as error:
            passed_over.append(str(error))
    if not opened and not passed_over:
        raise FileNotFoundError(f"--library: none is in {folder}; `coral templates build` makes one")
    return opened, passed_over


# ------------------------------------------------------------------------------------------------- text


def _lines(found: "TemplateExplanation") -> Iterator[str]:
    service = f"{found.model} {found.variant}, {found.slo_class}, {found.phase}"
    yield f"{found.id}: {service}, runtime {found.runtime}"
    yield f"  throughput  {_figure(found.throughput)} {found.unit}, as much as its slowest stage"
    for index, stage in enumerate(found.stages):
        yield _stage(found, index, stage)
    yield from _labelled("binds", dict.fromkeys(_binding(found)))
    yield from _one_more_node(found)


def _stage(found: "TemplateExplanation", index: int, stage: "StageShare") -> str:
    from streams.library_view import combination_text

    nodes = [
        f"{node.configuration} ({f'{node.replicas} x ' * (node.replicas > 1)}tp {node.tp})"
        for node in stage.nodes
    ]
    mark = "  <- slowest" if index == found.bottleneck else ""
    after = f"one more: {_figure(stage.with_one_more)}" if stage.with_one_more else "one more: does not go"
    where = combination_text(nodes)
    return (
        f"  stage {index + 1:<5} {stage.layers} layers on {where}: {_figure(stage.throughput)}, {after}{mark}"
    )


def _binding(found: "TemplateExplanation") -> Iterator[str]:
    """What the slowest stage spends its time on, and what forbids larger batches: there, or anywhere in
    runtime `vllm`, where all stages have the same batch."""
    for node in found.stages[found.bottleneck].nodes:
        yield f"{node.configuration}: the step spends most time on {node.busiest}"
    for index, stage in enumerate(found.stages):
        for node in stage.nodes:
            if node.violates and (found.runtime == "vllm" or index == found.bottleneck):
                yield f"stage {index + 1}: a larger batch would break {_violations(node)}"


def _violations(node: "NodeShare") -> str:
    return ", ".join(
        f"{b.what} {_figure(b.needs)} > {_figure(b.allowed)} {b.unit} on {node.configuration}"
        for b in node.violates
    )


def _one_more_node(found: "TemplateExplanation") -> Iterator[str]:
    """Those first that gain most from being together."""
    return _labelled(
        "1 more node",
        (
            f"{one.configuration} makes it {_figure(one.throughput)} ({one.adds / found.throughput:+.1%}), "
            f"adds {_figure(one.adds)}, alone gives {_figure(one.alone)}"
            + ": better together"
            * (one.adds > one.alone)
            for one in found.one_more_node[:SHOWN]
        ),
    )


def _labelled(label: str, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f"  {'' if number else label:<11} {line}"


def _figure(value: float) -> str:
    """Four digits, and no powers of ten for large ones."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
