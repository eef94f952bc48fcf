"""A node whose ranks are vLLM processes behind guards, as the settings have it."""

import logging
from functools import partial
from pathlib import Path

from agents import guard_keys, inventory
from agents.engine import EngineError
from agents.guard_files import Weights
from agents.guarded import GuardedEngine, Guards, sweep
from agents.node import Fittings
from agents.notices import metadata_service
from agents.vllm import VllmNode, engine_version, interface_of
from agents.weights import Store
from schemas.catalog import load_catalog
from schemas.plans import Contact
from schemas.settings import NodeSettings, Settings
from streams.commands.engines import FittedNode, Place, registration, state_dir_of

log = logging.getLogger(__name__)

MISSING = "vllm-missing"
"""Engine version of a node without vLLM: it registers all the same, and refuses every stage by name."""


def vllm_node(settings: Settings, place: Place) -> FittedNode:
    """A node whose ranks are vLLM processes.

    Raises:
        ValueError: a setting, or the machine, is not what is needed; the field is named.
        agents.state_dir.StateError: keys or ports of before are there and unreadable.
    """
    given, catalog = settings.node, load_catalog(settings.catalog)
    seen = inventory.survey() if given.platform == "cuda" else None
    register = registration(catalog, seen, given, place)
    plain = register(engine=MISSING)  # checks name, place and devices before anything is written
    node = engine_of(given, plain.memory_gb / plain.devices)
    state_dir = state_dir_of(settings, place)
    identity = register(engine=node.version, contact=_contact(given, state_dir, plain.devices))
    weights = Weights(
        models={checkpoint: path.absolute() for checkpoint, path in given.models.items()},
        store=None if given.store is None else given.store.absolute(),
        cache=(given.cache or settings.state_dir / "models").absolute(),
    )
    guards = Guards(folder=state_dir / "guards", node=node, weights=weights, keys=state_dir / guard_keys.KEYS)
    fittings = Fittings(
        sweep=partial(sweep, guards.folder),
        models=Store(weights.models, weights.store, weights.cache).revisions,
        notices=metadata_service(given.notices),
    )
    return FittedNode(identity, state_dir, partial(GuardedEngine, guards), fittings)


def engine_of(given: NodeSettings, device_memory_gb: float) -> VllmNode:
    """This machine's vLLM.

    Raises:
        ValueError: a setting is missing or impossible; it is named.
    """
    if given.vllm is None:
        raise ValueError("node.vllm: missing, expected the path of the `vllm` command of vLLM's environment")
    if given.platform == "cpu" and given.kv_cache_bytes is None:
        raise ValueError("node.kv_cache_bytes: missing, expected with platform cpu")
    try:
        interface = interface_of(given.address)
    except (EngineError, OSError) as error:
        raise ValueError(
            f"node.address: {given.address!r}, expected one of this machine's ({error})"
        ) from error
    command = given.vllm.absolute()
    return VllmNode(
        command=command,
        version=_version(command),
        platform=given.platform,
        device_memory_gb=device_memory_gb,
        interface=interface,
        kv_cache_bytes=given.kv_cache_bytes,
        stuck_after_s=given.stuck_after_s,
    )


def _version(command: Path) -> str:
    """What is missing is said on `coral.fleet`, where the controller hears it, and not by an exit."""
    try:
        return engine_version(command)
    except EngineError as error:
        log.error("node.vllm: %s; every stage will be refused", error)  # noqa: TRY400  one line says all
        return MISSING


def _contact(given: NodeSettings, state_dir: Path, devices: int) -> Contact:
    """How other nodes' guards reach this node's."""
    return Contact(
        address=given.address,
        guard_port=given.guard_port or guard_keys.guard_port(state_dir, devices, given.address),
        public_key=guard_keys.keys(state_dir).public,
    )
