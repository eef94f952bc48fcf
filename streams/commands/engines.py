"""A node and its engines, as settings and command line have them: simulated ones; `engines_vllm` has vLLM."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from agents import inventory
from agents.engine import EngineFactory
from agents.identity import NodeIdentity
from agents.inventory import Inventory
from agents.node import Fittings
from agents.simulated import ENGINE, SimulatedEngine
from schemas.catalog import Catalog, load_catalog
from schemas.problems import Pool
from schemas.settings import NodeSettings, Settings
from streams.commands.shared import state_folder


@dataclass(frozen=True)
class Place:
    """What the command line says of a node."""

    name: str
    pool: Pool
    configuration: str
    claim: str | None


@dataclass(frozen=True)
class FittedNode:
    """All that a node agent is handed."""

    identity: NodeIdentity
    state_dir: Path
    engines: EngineFactory
    fittings: Fittings = field(default_factory=Fittings)


def simulated_node(settings: Settings, place: Place, time_scale: float) -> FittedNode:
    """A node that pretends to have its configuration's devices.

    Raises:
        ValueError: the catalog is none, or does not know the configuration.
    """
    register = registration(load_catalog(settings.catalog), None, settings.node, place)
    engines = partial(SimulatedEngine, time_scale=time_scale)
    return FittedNode(register(engine=ENGINE), state_dir_of(settings, place), engines)


def registration(
    catalog: Catalog, seen: Inventory | None, given: NodeSettings, place: Place
) -> Callable[..., NodeIdentity]:
    """What a node registers as, but for its engine version and its contact."""
    return partial(
        inventory.identity,
        catalog,
        seen,
        name=place.name,
        pool=place.pool,
        configuration=place.configuration,
        address=given.address,
        claim=place.claim,
    )


def state_dir_of(settings: Settings, place: Place) -> Path:
    """The node's own folder, made."""
    return state_folder(settings, "nodes", place.name)
