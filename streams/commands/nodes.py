"""What runs on a node."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.settings import Settings
from streams.commands import shared

if TYPE_CHECKING:
    from agents.reconciler import NodeIdentity

app = typer.Typer()
command = partial(app.command, rich_help_panel="Nodes")


@command()
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
        typer.Option(callback=shared.scale, help="Factor on the simulated engine's time to start; 0: none."),
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
    shared.trace()
    place = {"cloud": cloud, "region": region, "zone": zone, "market": market}
    with shared.bad_input():
        identity = _identity(settings, name, place, configuration, claim)
    state_dir, engines = settings.state_dir / "nodes" / name, partial(SimulatedEngine, time_scale=time_scale)
    try:
        agent.run(settings.kafka, settings.topic_prefix, identity, state_dir, engines)
    except StateError as error:
        raise shared.refused(str(error)) from error


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
