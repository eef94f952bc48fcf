"""A library drops wholes that parts replace, on throughput and price alone; policies must not want them back.

Each falls at least as hard on a whole as on its parts: what an instance counts for (half rule, restarts),
what it is charged (complexity, risk), floors and spread. Ceilings and spot shares do not; `AllocationPolicy`
says so.
"""

import random
from itertools import combinations_with_replacement

import pytest

from schemas.allocation import AllocationPolicy, Replicas
from solver.allocation import solve_whole
from solver.candidates import Rated
from solver.columns import make_question
from tests.solver.conftest import WEST, MadeUp, Toolbox

NODES = ("a", "b", "c")


def libraries(box: Toolbox, rng: random.Random) -> tuple[MadeUp, MadeUp]:
    """Every combination of up to three nodes, and those that are worth more than their best split."""
    worth, own = {name: rng.uniform(0.5, 3) for name in NODES}, {}
    best: dict[tuple[str, ...], float] = {}
    for size in (1, 2, 3):
        for nodes in combinations_with_replacement(NODES, size):
            given = sum(worth[name] for name in nodes) * rng.uniform(0.8, 1.15)
            splits = [
                best[part] + best[rest]
                for part in best
                if len(part) < size and (rest := without(nodes, part)) is not None
            ]
            own[nodes] = given, max(splits, default=0.0)
            best[nodes] = max(own[nodes])
    every: list[Rated] = [box.rated(nodes, given) for nodes, (given, _) in own.items()]
    kept = [box.rated(nodes, given) for nodes, (given, split) in own.items() if given > split]
    assert len(kept) < len(every)
    everything, pruned = (box.library(*sorted(r, key=lambda r: r.template.id)) for r in (every, kept))
    return everything, pruned


def without(nodes: tuple[str, ...], part: tuple[str, ...]) -> tuple[str, ...] | None:
    left = list(nodes)
    for name in part:
        if name not in left:
            return None
        left.remove(name)
    return tuple(left)


@pytest.mark.parametrize("seed", range(8))
def test_a_pruned_library_loses_nothing_under_policies(box: Toolbox, seed: int) -> None:
    rng = random.Random(seed)
    policy = AllocationPolicy(
        half_rule=("interactive",) * rng.randint(0, 1),
        failures_per_node_hour=0.02,
        recovery_s={"m": 3600.0},
        surcharge_per_step=rng.choice((0.0, 0.1)),
        interruption_hours=2.0,
        replicas=(Replicas(model="m", at_least=rng.randint(0, 3)),),
        regions_at_least={"m": rng.randint(1, 2)},
    )
    stocks = [
        box.stock(name, rng.randint(1, 4), round(rng.uniform(0.5, 4), 2), pool, interruptions_per_hour=risk)
        for name in NODES
        for pool, risk in ((box.east, 0.0), (WEST, 0.1))
    ]
    demand = {"m": round(rng.uniform(3, 20), 2)}
    reached = []
    for library in libraries(box, rng):
        program = make_question(box.problem(library, demand, stocks, policy=policy), library).program
        reached.append({proof.step: proof.value for proof in solve_whole(program).proofs})
    everything, pruned = reached
    assert pruned == pytest.approx(everything, rel=1e-5, abs=1e-6)
