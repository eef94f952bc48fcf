"""`coral`: the composition root. It reads settings, builds what a command needs, and nothing else does.

Bad input ends with exit code 2 and one line that names the field, the value and what was expected.
"""

# Commands import what they need themselves: a node agent must not load Faust, nor anybody but the
# solver's own process Pyomo.
# ruff: noqa: PLC0415

import asyncio
import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from aiokafka.errors import KafkaConnectionError, KafkaError
from pydantic import ValidationError
from rich.console import Console

from schemas.codec import describe
from schemas.settings import Settings, load_settings

if TYPE_CHECKING:
    from agents.reconciler import NodeIdentity

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Serve many LLMs on mixed cloud GPUs at least cost: an event-driven control plane.",
)
topics_app = typer.Typer(no_args_is_help=True, help="Make and show the Kafka topics.")
log_app = typer.Typer(no_args_is_help=True, help="The control log: the one ordered history.")
app.add_typer(topics_app, name="topics")
app.add_typer(log_app, name="log")

BAD_INPUT, DIFFERENT = 2, 1
File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True)]


@app.callback()
def main(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="Settings file (YAML).", envvar="CORAL_CONFIG")] = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option(help="Kafka, host:port[,host:port]; overrides the settings.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Settings come from defaults, then --config, then CORAL_... variables, then options."""
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise _refused(f"--log-level: {log_level!r}, expected debug, info, warning or error")
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    for chatty in ("aiokafka", "faust", "mode"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
    with _bad_input():
        given = {} if bootstrap_servers is None else {"kafka": {"bootstrap_servers": bootstrap_servers}}
        context.obj = load_settings(config, **given)


def _refused(text: str) -> typer.Exit:
    Console(stderr=True, soft_wrap=True).print(f"coral: {text}", markup=False, highlight=False)
    return typer.Exit(BAD_INPUT)


@contextmanager
def _bad_input() -> Iterator[None]:
    """What a person gave and can mend: one line, exit code 2."""
    try:
        yield
    except ValidationError as error:
        raise _refused(describe(error)) from error
    except KafkaError as error:
        raise _refused(f"Kafka: {error}") from error
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise _refused(" ".join(str(error).split())) from error  # YAML's errors have several lines


@contextmanager
def _asking_kafka(settings: Settings) -> Iterator[None]:
    """As `_bad_input`, where Kafka is asked first: that no broker answers is said once, by us."""
    client = logging.getLogger("aiokafka")
    level = client.level
    client.setLevel(logging.CRITICAL)
    with _bad_input():
        try:
            yield
        except KafkaConnectionError as error:
            servers = settings.kafka.bootstrap_servers
            raise _refused(f"kafka.bootstrap_servers: no broker answers at {servers}") from error
        finally:
            client.setLevel(level)


async def _check_topics(settings: Settings) -> None:
    from agents.admin import missing_topics

    if missing := await missing_topics(settings):
        where = settings.kafka.bootstrap_servers
        raise ValueError(f"{', '.join(missing)}: not on {where}; `coral topics create` makes them")


def _need_topics(settings: Settings) -> None:
    """End the command unless Kafka answers and has the topics: clients would wait without a word."""
    with _asking_kafka(settings):
        asyncio.run(_check_topics(settings))


def _trace() -> None:
    """Give every message a traceparent. Exporting spans is for whoever adds an exporter."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    trace.set_tracer_provider(TracerProvider())


def _scale(given: float) -> float:
    if not (math.isfinite(given) and given >= 0):
        raise _refused(f"--time-scale: {given}, expected a finite number of at least 0")
    return given


def _seconds(given: float | None) -> float | None:
    if given is not None and not (math.isfinite(given) and given > 0):
        raise _refused(f"--seconds: {given}, expected a finite number above 0")
    return given


# --- workers ---------------------------------------------------------------------------------------
@app.command()
def fold(context: typer.Context) -> None:
    """Run one fold worker: telemetry, offers and heartbeats become records of the control log."""
    from streams.fold import run

    _trace()
    _need_topics(context.obj)
    run(context.obj)


@app.command()
def control(context: typer.Context) -> None:
    """Run one control worker: the leader decides, the others stand by."""
    from streams.control import run

    _trace()
    _need_topics(context.obj)
    with _bad_input():
        run(context.obj)


@app.command()
def provision(
    context: typer.Context,
    static: Annotated[Path | None, typer.Option(help="Inventory of nodes that already run (YAML).")] = None,
    local: Annotated[Path | None, typer.Option(help="Stock of the local cloud (YAML).")] = None,
    time_scale: Annotated[
        float, typer.Option(callback=_scale, help="Passed to the nodes that `--local` starts.")
    ] = 1.0,
) -> None:
    """Bring and give back the nodes that plans claim."""
    from streams.provisioning import run

    settings: Settings = context.obj
    _trace()
    _need_topics(settings)
    with _bad_input():
        if static is None and local is None:
            raise ValueError("--static, --local: none given, expected at least one")
        run(settings, static=static, local=local, time_scale=time_scale)


@app.command()
def node(
    context: typer.Context,
    name: Annotated[
        str, typer.Option(help="The node's name, unique in the fleet: letters, digits, `.`, `_`, `-`.")
    ],
    cloud: Annotated[str, typer.Option()],
    region: Annotated[str, typer.Option()],
    configuration: Annotated[str, typer.Option(help="Node configuration of the catalog, such as 1xL4.")],
    zone: Annotated[str, typer.Option()] = "*",
    market: Annotated[str, typer.Option(help="on-demand, spot or reserved.")] = "on-demand",
    claim: Annotated[str | None, typer.Option(help="The claim this node was started for.")] = None,
    time_scale: Annotated[
        float,
        typer.Option(callback=_scale, help="Factor on the simulated engine's time to start; 0 is at once."),
    ] = 1.0,
) -> None:
    """Be the agent of one node: start, watch and drain the stages that plans put on it.

    On purpose it looks for neither Kafka nor the topics first: what a node runs needs neither, so the agent
    starts without and tries until they answer.
    """
    from agents import node as agent
    from agents.simulated import SimulatedEngine
    from agents.state_dir import StateError

    settings: Settings = context.obj
    _trace()
    place = {"cloud": cloud, "region": region, "zone": zone, "market": market}
    with _bad_input():
        identity = _identity(settings, name, place, configuration, claim)
    state_dir, engines = settings.state_dir / "nodes" / name, partial(SimulatedEngine, time_scale=time_scale)
    try:
        agent.run(settings.kafka, settings.topic_prefix, identity, state_dir, engines)
    except StateError as error:
        raise _refused(str(error)) from error


def _identity(
    settings: Settings, name: str, place: dict[str, str], configuration: str, claim: str | None
) -> "NodeIdentity":
    from agents.reconciler import NodeIdentity
    from schemas.catalog import load_catalog
    from schemas.problems import Pool

    catalog = load_catalog(settings.catalog)
    if configuration not in {c.name for c in catalog.configurations}:
        raise ValueError(f"--configuration: {configuration!r} is not in the catalog")
    kind = catalog.configuration(configuration)
    return NodeIdentity(
        name=name,
        pool=Pool.model_validate(place),
        configuration=configuration,
        devices=kind.gpus,
        memory_gb=kind.gpus * catalog.gpu(kind.gpu).memory_gb,
        claim=claim,
    )


@app.command()
def feed(context: typer.Context, plan: File) -> None:
    """Play recorded traffic, list prices and availability onto the topics, as PLAN (YAML) says."""
    from agents.bus import Bus
    from agents.feeds import FeedPlan, run_feeds
    from schemas.catalog import load_catalog
    from schemas.yamlfile import load_yaml

    settings: Settings = context.obj
    _trace()

    async def play() -> None:
        async with Bus(settings.kafka, settings.topic_prefix, "feed") as bus:
            await run_feeds(bus, feeds, catalog)

    _need_topics(settings)
    with _bad_input():
        feeds, catalog = load_yaml(FeedPlan, plan), load_catalog(settings.catalog)
        asyncio.run(play())


# --- looking on ------------------------------------------------------------------------------------
@app.command()
def plans(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a plan.")] = False,
    once: Annotated[bool, typer.Option(help="Print the current plan and end.")] = False,
) -> None:
    """Follow the plan topic."""
    from streams.watch import follow

    _need_topics(context.obj)
    asyncio.run(follow(context.obj, as_json=as_json, once=once))


@topics_app.command("create")
def topics_create(context: typer.Context) -> None:
    """Create what is missing and start the control log's lineage."""
    from agents.admin import create_topics

    with _asking_kafka(context.obj):
        made = asyncio.run(create_topics(context.obj))
    for name, created in made.items():
        typer.echo(f"{name}: {'created' if created else 'there'}")


@topics_app.command("list")
def topics_list(context: typer.Context) -> None:
    """Print the topic table."""
    from rich.table import Table

    from schemas.topics import TOPICS

    settings: Settings = context.obj
    table = Table("topic", "key", "partitions", "kept (days)", "from -> to", "types")
    for topic in TOPICS:
        types = ", ".join(t.__name__ for t in topic.types)
        days = f"{topic.retention_ms / 86_400_000:g}"
        table.add_row(
            settings.topic(topic), topic.key, str(settings.partitions(topic)), days, topic.flow, types
        )
    Console().print(table)


@log_app.command("export")
def log_export(
    context: typer.Context,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File; standard output if none.")
    ] = None,
) -> None:
    """Write the control log as JSON lines, every byte kept."""
    from streams.audit import export

    _need_topics(context.obj)
    written = asyncio.run(export(context.obj, output))
    typer.echo(f"{written} records", err=True)


@app.command()
def replay(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="An exported log; the live topics if none.")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Decide everything again from the log and compare; exit code 1 and the first difference otherwise."""
    from streams.audit import replay_from

    if file is None:
        _need_topics(context.obj)
    with _bad_input():
        report = asyncio.run(replay_from(context.obj, file))
    if as_json:
        typer.echo(report.model_dump_json())
    else:
        typer.echo(
            f"{report.records} records, {report.decided} plans decided, {report.published} confirmed, "
            f"{report.digests} digests compared: {'equal' if report.equal else 'DIFFERENT'}"
        )
    if not report.equal:
        typer.echo(report.difference, err=True)
        raise typer.Exit(DIFFERENT)


@app.command()
def demo(
    context: typer.Context,
    seconds: Annotated[
        float | None,
        typer.Option(callback=_seconds, help="Stop after so long; until Ctrl-C if not given."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The summary as one JSON object, last line.")
    ] = False,
) -> None:
    """Run the whole loop on this machine: Kafka, fold, control, provisioner, nodes and real input.

    Of the settings it takes `kafka` and `state_dir`; all others are the demo's own, those of
    schemas/data/demo/settings.yaml.
    """
    from streams.demo.run import run_demo

    _trace()
    with _bad_input():
        code = run_demo(context.obj, seconds=seconds, as_json=as_json)
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
