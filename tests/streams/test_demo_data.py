"""The files that ship with the demo fit together, and do what their comments say. No process runs here."""

from pathlib import Path

import pytest

from agents.feeds import FeedPlan
from agents.provision_static import Inventory
from agents.tiny_model import LAYERS
from schemas.catalog import Catalog, load_catalog
from schemas.performance import load_efficiencies
from schemas.settings import load_settings
from schemas.yamlfile import load_yaml
from solver.building import build_library
from solver.figures import Figures
from solver.setups import Scope
from streams.control import policy_of
from streams.demo.load import LoadPlan
from streams.demo.script import DATA, SIMULATED, Script

VLLM = Script(
    "vllm",
    DATA / "vllm",
    {
        "CORAL_CATALOG": str(DATA / "vllm" / "catalog.yaml"),
        "CORAL_EFFICIENCIES": str(DATA / "vllm" / "efficiencies.yaml"),
    },
)


def catalog_of(script: Script) -> Catalog:
    return load_catalog(Path(script.environment.get("CORAL_CATALOG", load_settings().catalog)))


@pytest.mark.parametrize("script", [SIMULATED, VLLM], ids=lambda script: script.engine)
def test_every_name_is_known(script: Script) -> None:
    settings, catalog = load_settings(script.settings), catalog_of(script)
    policy_of(settings, catalog)  # refuses a model, class or policy field that does not exist
    load_yaml(FeedPlan, script.feeds)
    nodes = load_yaml(Inventory, script.static).nodes
    priced = {(p.cloud, p.region, p.market, p.configuration) for p in catalog.prices}
    assert {(n.pool.cloud, n.pool.region, n.pool.market, n.configuration) for n in nodes} <= priced


@pytest.mark.parametrize("script", [SIMULATED, VLLM], ids=lambda script: script.engine)
def test_every_node_has_efficiencies(script: Script) -> None:
    catalog = catalog_of(script)
    efficiencies = load_efficiencies(
        Path(script.environment.get("CORAL_EFFICIENCIES", load_settings().efficiencies))
    )
    for node in load_yaml(Inventory, script.static).nodes:
        gpu = catalog.configuration(node.configuration).gpu
        assert efficiencies.of(gpu).gpu == gpu


def test_one_node_holds_the_tiny_model_and_the_crowds_take_one_and_two() -> None:
    settings, catalog = load_settings(VLLM.settings), catalog_of(VLLM)
    (model,) = catalog.models
    assert model.architecture.layers == LAYERS, "vLLM's partition counts the real layers"
    efficiencies = load_efficiencies(Path(VLLM.environment["CORAL_EFFICIENCIES"]))
    scope = Scope((("tiny", "interactive"),), catalog.configurations, variants={}, n_max=1)
    library = build_library(Figures(catalog, efficiencies, None), scope)
    best = max(candidate.throughput for candidate in library.candidates)
    assert VLLM.load is not None
    headroom = 1 + policy_of(settings, catalog).headroom
    planned = [headroom * crowd.per_s for crowd in load_yaml(LoadPlan, VLLM.load).crowds]
    assert [-(-rate // best) for rate in planned] == [1, 2, 1]
    assert len(load_yaml(Inventory, VLLM.static).nodes) == 2
