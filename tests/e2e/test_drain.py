"""An operator empties a node of an inventory and gives it back: `coral drain`, on real parts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.events import ClaimReleased, NodeReported
from streams.core.state import ENDED
from tests.e2e.fleet import HERE, L4, Fleet, running, write_yaml
from tests.e2e.rig import Traffic, ask

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

STATIC = ("s1", "s2", "s3")
TWO, THREE = 2, 3
"""Requests/s that take so many nodes."""


@pytest.fixture
def fleet(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[tuple[Fleet, Traffic]]:
    """Three nodes, of which two are in use."""
    inventory = {"nodes": [{"name": n, "pool": HERE.model_dump(), "configuration": L4} for n in STATIC]}
    with running(kafka, topic_prefix, tmp_path, TWO) as (fleet, traffic):
        fleet.start_control_plane("--static", write_yaml(tmp_path / "static.yaml", inventory))
        for name in STATIC:
            place = ("--cloud", HERE.cloud, "--region", HERE.region, "--configuration", L4)
            fleet.start(name, "node", "--name", name, *place, "--time-scale", "0.01")
        fleet.until(lambda: fleet.is_settled(TWO) and len(fleet.nodes()) == 2, "two nodes in use")
        yield fleet, traffic


def drain(fleet: Fleet, *arguments: str) -> None:
    asked = ask("drain", *arguments, env=fleet.env)
    assert asked.returncode == 0, asked.stderr


def used(fleet: Fleet) -> set[str | None]:
    """Nodes that the plan has an instance on."""
    return {fleet.plan.claim(claim).node for i in fleet.plan.instances for claim in i.claims}


def runs_nothing(fleet: Fleet, node: str, before: int | None = None) -> bool:
    """Whether all has ended on a node, by its own word, as far as the first `before` records tell."""
    events = [record.event for record in fleet.records[:before]]
    last = next(e.report for e in reversed(events) if isinstance(e, NodeReported) and e.report.node == node)
    return all(stage.state in ENDED for stage in last.stages)


def test_a_drained_node_is_left_alone_until_it_is_given_back(fleet: tuple[Fleet, Traffic]) -> None:
    it, traffic = fleet
    node = min(it.nodes())
    before = it.plan.order
    drain(it, node)
    it.until(lambda: it.since(before) and it.is_settled(TWO) and node not in used(it), "a move")
    assert it.plan.target.reason == "operator"
    assert not it.plan.target.unmet
    assert runs_nothing(it, node)

    traffic.rate = THREE
    it.until(lambda: it.is_settled(THREE), "a plan for more than there is")
    assert it.plan.target.unmet
    assert node not in used(it)

    drain(it, node, "--undo")
    it.until(lambda: it.is_settled(THREE) and node in used(it), "the node in use again")
    assert not it.plan.target.unmet

    traffic.rate = TWO
    it.until(lambda: it.events(ClaimReleased), "a node given back")
    released = next(n for n, r in enumerate(it.records) if isinstance(r.event, ClaimReleased))
    event = it.records[released].event
    assert isinstance(event, ClaimReleased)
    assert runs_nothing(it, str(event.node), released)
