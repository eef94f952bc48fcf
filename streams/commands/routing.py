"""What stands between clients and instances, and tells how much is asked for."""

import socket
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError

from schemas.base import Name as PlainName
from schemas.settings import Settings
from streams.commands import shared

app = typer.Typer()
command = partial(app.command, rich_help_panel="Requests")

Name = Annotated[
    str | None, typer.Option("--name", help="Of this process, unique in the fleet; the machine's if none.")
]


@command()
def router(
    context: typer.Context,
    name: Name = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Overrides the settings; 0 picks a free one.")
    ] = None,
    prefer_region: Annotated[
        str | None, typer.Option(help="Instances of this region first; overrides the settings.")
    ] = None,
    sync_to: Annotated[
        str | None,
        typer.Option(help="Route nothing; keep another balancer in step instead: its URL, or a file."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="With --sync-to: whose instances.")] = None,
    slo_class: Annotated[
        str | None, typer.Option(help="With --sync-to: of which class; all if none.")
    ] = None,
) -> None:
    """Be an OpenAI-compatible door of the fleet, and tell what is asked for on `coral.telemetry`.

    It looks for neither Kafka nor the topics first: it goes on by the last plan on its disk.
    """
    settings: Settings = context.obj
    shared.trace()
    with shared.bad_input():
        called = _name(name)
        if sync_to is not None:
            _refuse("with --sync-to", **{"--port": port, "--prefer-region": prefer_region})
            _sync(settings, called, sync_to, model, slo_class)
        else:
            _refuse("without --sync-to", **{"--model": model, "--slo-class": slo_class})
            _route(settings, called, {"port": port, "prefer_region": prefer_region})


def _route(settings: Settings, name: str, given: dict[str, object]) -> None:
    from agents.router import run
    from schemas.catalog import load_catalog
    from streams.served import levels_of

    chosen = settings.router.model_copy(update={k: v for k, v in given.items() if v is not None})
    levels = levels_of(settings, load_catalog(settings.catalog))
    with shared.own_folder(settings, "router", "routers", name) as kept:
        run(settings.kafka, settings.topic_prefix, kept, chosen, name, levels)


def _sync(settings: Settings, name: str, to: str, model: str | None, slo_class: str | None) -> None:
    from agents.sync import run
    from schemas.catalog import load_catalog
    from streams.served import levels_of

    served = levels_of(settings, load_catalog(settings.catalog))
    models = sorted({known for known, _ in served})
    if model is not None and model not in models:
        raise ValueError(f"--model: {model!r} is not served, expected one of {', '.join(models)}")
    if model is None and len(models) > 1:
        raise ValueError(f"--model: missing, expected one of {', '.join(models)}: a balancer knows one model")
    if slo_class is not None and (model or models[0], slo_class) not in served:
        raise ValueError(f"--slo-class: {slo_class!r} is no class of {model or models[0]}")
    _check_balancer(to)
    with shared.own_folder(settings, "router", "syncs", name) as kept:
        run(settings.kafka, settings.topic_prefix, kept, to, name, model, slo_class)


def _check_balancer(to: str) -> None:
    from agents.sync import check_file, is_url

    try:
        if not is_url(to):
            check_file(Path(to))
    except OSError as error:
        raise ValueError(f"--sync-to: {to} cannot be written: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"--sync-to: {error}") from error


@command()
def scrape(
    context: typer.Context,
    urls: Annotated[
        list[str] | None,
        typer.Argument(metavar="URL", help="Engines to read; those of the plan if none."),
    ] = None,
    name: Name = None,
    slo_class: Annotated[
        str | None, typer.Option(help="With URLs: the class that their requests are counted as.")
    ] = None,
) -> None:
    """Tell demand from the engines' own metrics, where another router stands in front of them.

    What nothing serves cannot be seen to be asked for: a fleet behind it never starts from nothing.
    """
    from agents.scrape import run, targets_of

    settings: Settings = context.obj
    shared.trace()
    with shared.bad_input():
        called = _name(name)
        if (slo_class is None) != (not urls):
            raise ValueError(f"--slo-class: {slo_class!r}, expected with URLs and only with them")
        if slo_class is not None:
            _check(slo_class, "--slo-class", PlainName, "a name without white space, `/` and `|`")
        try:
            targets = targets_of(urls or [], slo_class or "")
        except ValueError as error:
            raise ValueError(f"URL: {error}") from error
        with shared.own_folder(settings, "scrape", "scrapers", called) as kept:
            run(settings.kafka, settings.topic_prefix, kept, called, targets)


def _refuse(when: str, **given: object) -> None:
    """Refuse options that mean nothing `when`."""
    for option, value in given.items():
        if value is not None:
            raise ValueError(f"{option}: {value!r}, expected none {when}")


def _name(given: str | None) -> str:
    """Checked, since it is a folder's name, too."""
    from agents.identity import NodeName

    name = socket.gethostname() if given is None else given
    _check(name, "--name", NodeName, "letters, digits, `.`, `_`, `-`, the first a letter or a digit")
    return name


def _check(given: str, option: str, kind: Any, expected: str) -> None:
    try:
        TypeAdapter(kind).validate_python(given)
    except ValidationError as error:
        raise ValueError(f"{option}: {given!r}, expected {expected}") from error
