"""Golden scripts: events in, decisions out, kept as text beside this file.

CORAL_REWRITE_GOLDEN=1 writes them anew; commit only differences you understand.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.allocation import AllocationPolicy, Replicas
from schemas.events import NodeGone, Offer, PriceChanged
from schemas.problems import Pool
from streams.core.record import Malformed
from tests.golden.transcript import transcript
from tests.streams.doubles import EAST, WEST, greedy, policy
from tests.streams.real_solver import solved
from tests.streams.world import World

HERE = Path(__file__).parent


def up_and_down() -> World:
    """Demand comes, doubles, and goes; the look-back of 20 s holds the peak."""
    world = World(policy(scale_down_after_ms=20_000))
    world.offer(EAST, 1.0, 4)
    world.demand(1.0, windows=2)
    world.demand(2.0, windows=2)
    world.demand(1.0, windows=4)
    return world


def preemption() -> World:
    """A spot node is taken; its instance of two nodes moves as a whole to the other pool."""
    world = World(policy(), solver=lambda problem: greedy(problem, nodes=("1xL4", "1xL4")))
    world.offer(WEST, 0.5, 2)
    world.offer(EAST, 1.0, 4)
    world.demand(1.0, windows=2)
    victim = min(world.nodes)
    world.level[WEST.key, "1xL4"] = 1
    world._release(victim)
    world.say(NodeGone(node=victim, reason="preempted"))
    world.demand(1.0, windows=2)
    return world


def cheaper_elsewhere() -> World:
    """A price falls by more than the least saving: the new instance serves before the old one drains."""
    world = World(policy())
    world.offer(EAST, 1.0, 2)
    world.offer(WEST, 2.0, 2)
    world.demand(1.0, windows=2)
    offer = Offer(pool=WEST, configuration="1xL4", source="test")
    world.say(PriceChanged(offer=offer, usd_per_hour=0.5, at_ms=world.now_ms))
    world.demand(1.0, windows=2)
    return world


def another_leader() -> World:
    """A leader is replaced while a solve is under way; an unreadable record is put aside."""
    world = World(policy())
    world.offer(EAST, 1.0, 2)
    world.demand(1.0)
    world.lead("b")
    world.say(Malformed("value: empty, expected a JSON object"), b"?")
    world.demand(1.0)
    return world


def refused_in_the_east() -> World:
    """The east refuses the model, which goes west; the east is not asked again until its agent has news."""
    world = World(policy())
    world.static(EAST, 1.0, "v1")
    world.offer(WEST, 2.0, 1)
    world.refuses = lambda node, _model: "unknown_model" if node.pool == EAST else None
    world.demand(1.0, windows=2)
    world.demand(2.0, windows=2)
    world.refuses = lambda _node, _model: None
    world.change("n1", models=("0" * 64,))
    world.demand(2.0, windows=2)
    return world


def one_pull_slot() -> World:
    """Two nodes want weights, one slot is there; the second waits its turn."""
    world = World(policy(pull_slots=1))
    world.pull_ms = 3_000
    world.offer(EAST, 1.0, 2)
    world.demand(2.0, windows=2)
    return world


def odd_one_out() -> World:
    """Nodes of two engine versions come; the pair is made of those that agree, the odd one goes back."""
    world = World(policy(), solver=lambda problem: greedy(problem, nodes=("1xL4", "1xL4")))
    world.static(EAST, 1.0, "v1", "v2", "v1")
    world.demand(1.0, windows=2)
    return world


def what_plans_are_asked_for() -> World:
    """Half at most on one instance and on spot, paid anyway first; a small saving moves nothing; a budget,
    for which demand goes short; a floor that is kept as soon as stock can, though that costs more."""
    half = {"half_rule": ("interactive",), "spot_share": {"m": 0.5}}
    world = World(policy(allocation=AllocationPolicy.model_validate(half)), solver=solved)
    world.offer(RESERVED, 0.0, 1)
    world.offer(EAST, 1.0, 2)
    world.offer(WEST, 0.4, 2)
    world.demand(1.9, windows=2)
    world.offer(EAST, 0.39, 2)
    world.demand(1.9)
    world.given = policy(allocation=AllocationPolicy.model_validate(half | {"budget_usd_per_hour": 0.3}))
    world.lead("b")
    world.demand(1.9, windows=2)
    floor = AllocationPolicy(replicas=(Replicas(model="m", at_least=6),), weights={"m": 2.0})
    world.given = policy(allocation=floor)
    world.lead("c")
    world.demand(1.9, windows=2)
    world.offer(EAST, 0.39, 3)
    world.demand(1.9, windows=2)
    return world


RESERVED = Pool(cloud="aws", region="west", market="reserved")
SCRIPTS = [
    up_and_down,
    preemption,
    cheaper_elsewhere,
    another_leader,
    refused_in_the_east,
    one_pull_slot,
    odd_one_out,
    what_plans_are_asked_for,
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_golden(script: Callable[[], World]) -> None:
    path = HERE / f"{script.__name__}.txt"
    found = f"# {script.__doc__}\n\n{transcript(script())}"
    if os.environ.get("CORAL_REWRITE_GOLDEN"):
        path.write_text(found)
    assert path.read_text() == found, "decisions changed: see the diff, or CORAL_REWRITE_GOLDEN=1"
