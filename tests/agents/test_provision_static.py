"""Nodes that already run: who has which, remembered in a file."""

import asyncio
from pathlib import Path

import pytest
from pydantic import ValidationError

from agents.provision import Gone, Refused
from agents.provision_static import Inventory, StaticNode, StaticProvisioner
from schemas.yamlfile import load_yaml
from tests.agents.clouds import PLACE, POOL, claim

INVENTORY = Inventory(
    nodes=(
        StaticNode(name="s1", pool=POOL, configuration="1xL4"),
        StaticNode(name="s2", pool=POOL, configuration="1xL4"),
        StaticNode(name="s3", pool=POOL, configuration="4xL4"),
    )
)


async def test_static_grants_what_is_free_and_remembers(tmp_path: Path) -> None:
    state = tmp_path / "static.json"
    static = StaticProvisioner(INVENTORY, state, "t")
    assert await static.create(claim("c1")) == "s1"
    assert await static.create(claim("c1")) == "s1"
    assert await static.stock() == {(POOL, "1xL4"): 1, (POOL, "4xL4"): 1}

    again = StaticProvisioner(INVENTORY, state, "t")
    assert await again.held() == {"c1": "s1"}
    assert await again.create(claim("c2")) == "s2"
    with pytest.raises(Refused, match="out of stock: every 1xL4"):
        await again.create(claim("c3"))
    assert await again.held() == {"c1": "s1", "c2": "s2"}


async def test_static_gives_out_the_longest_free_node_first(tmp_path: Path) -> None:
    """So a node that just failed is not the next one granted."""
    state = tmp_path / "static.json"
    static = StaticProvisioner(INVENTORY, state, "t")
    await static.create(claim("c1"))
    assert await static.release("c1", "s1")
    await static.forget("c1")
    assert await StaticProvisioner(INVENTORY, state, "t").create(claim("c2")) == "s2"


async def test_static_reports_a_node_that_left_the_inventory(tmp_path: Path) -> None:
    state = tmp_path / "static.json"
    await StaticProvisioner(INVENTORY, state, "t").create(claim("c1"))
    shorter = StaticProvisioner(Inventory(nodes=INVENTORY.nodes[1:]), state, "t")
    assert await shorter.gone() == [Gone("c1", "s1", "no longer in the inventory")]
    await shorter.forget("c1")
    assert await shorter.held() == {}
    assert (await shorter.stock())[PLACE] == 1


def test_an_inventory_is_a_yaml_file(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(
        "nodes:\n"
        "  - {name: s1, pool: {cloud: gcp, region: r1, market: reserved}, configuration: 1xL4}\n"
        "  - {name: s1, pool: {cloud: gcp, region: r1, market: reserved}, configuration: 1xL4}\n"
    )
    with pytest.raises(ValidationError, match=r"\['s1'\] listed twice"):
        load_yaml(Inventory, path)


def test_another_fleets_nodes_are_not_touched(tmp_path: Path) -> None:
    state = tmp_path / "static.json"
    state.write_text('{"held": {"c1": "s1"}}')  # of before there were names in it
    asyncio.run(StaticProvisioner(INVENTORY, state, "t").create(claim("c2")))
    with pytest.raises(ValueError, match="holds the nodes of fleet 't', expected 'other'"):
        StaticProvisioner(INVENTORY, state, "other")
