"""What runs on a node."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from schemas.settings import Settings
from streams.commands import shared

if TYPE_CHECKING:
    from streams.commands.engines import FittedNode, Place

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
    engine: Annotated[
        str | None,
        typer.Option(callback=shared.engine, help="simulated or vllm; overrides the settings."),
    ] = None,
    time_scale: Annotated[
        float,
        typer.Option(callback=shared.scale, help="Factor on the simulated engine's time to start; 0: none."),
    ] = 1.0,
) -> None:
    """Be the agent of one node: start, watch and drain the stages that plans put on it.

    On purpose it looks for neither Kafka nor the topics first: what a node runs needs neither, so the agent
    starts without and tries until they answer.
    """
    from schemas.problems import Pool
    from streams.commands.engines import Place

    settings: Settings = context.obj
    shared.trace()
    with shared.bad_input():
        pool = Pool.model_validate({"cloud": cloud, "region": region, "zone": zone, "market": market})
        place = Place(name, pool, configuration, claim)
        fitted = _fitted(settings, place, engine or settings.node.engine, time_scale)
    _run(settings, fitted)


def _fitted(settings: Settings, place: "Place", engine: str, time_scale: float) -> "FittedNode":
    if engine == "vllm":
        from streams.commands.engines_vllm import vllm_node

        return vllm_node(settings, place)
    from streams.commands.engines import simulated_node

    return simulated_node(settings, place, time_scale)


def _run(settings: Settings, fitted: "FittedNode") -> None:
    """An agent whose disk fails ends with one line; any other error is ours, and keeps its traceback."""
    from agents import node as agent
    from agents.state_dir import StateError

    try:
        agent.run(
            settings.kafka,
            settings.topic_prefix,
            fitted.identity,
            fitted.state_dir,
            fitted.engines,
            fittings=fitted.fittings,
        )
    except (StateError, OSError) as error:
        raise shared.refused(str(error)) from error
