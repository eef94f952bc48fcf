"""Nodes that are shared: rows by size say exactly whether slices can be packed, and plans buy whole nodes."""

import random
from collections.abc import Sequence
from itertools import product

import pytest

from schemas.problems import Problem, Sliced
from solver.allocation import solve
from solver.asked import ProblemError
from solver.candidates import Templates
from solver.places import Room, places_of
from solver.verify import verify
from solver.verify_parts import packs as packs_by_size
from tests.solver.conftest import EAST, WEST, Toolbox

SIZES = (1, 2, 4, 8)
KIND = Sliced(gpu="H", gpus={f"{n}xH": n for n in SIZES})


def packs(slices: Sequence[int], nodes: Sequence[int]) -> bool:
    """Whether slices fit on nodes, by going through everything."""
    if not slices:
        return True
    first, rest = slices[0], slices[1:]
    tried = set()
    for k, free in enumerate(nodes):
        if free >= first and free not in tried:
            tried.add(free)
            if packs(rest, [*nodes[:k], free - first, *nodes[k + 1 :]]):
                return True
    return False


@pytest.mark.parametrize("seed", range(60))
def test_rows_by_size_hold_exactly_when_slices_can_be_packed(box: Toolbox, seed: int) -> None:
    rng = random.Random(seed)
    sold = {n: rng.randint(0, 2) for n in rng.sample(SIZES, rng.randint(1, 3))}
    nodes = [n for n, count in sold.items() for _ in range(count)]
    slices = [rng.choice(SIZES) for _ in range(rng.randint(1, 9))]
    library = box.library(box.rated(["1xH"], 1.0))
    stocks = [box.stock(f"{n}xH", count, float(n)) for n, count in sold.items()]
    problem = box.problem(library, {"m": 1.0}, stocks, sliced=[KIND])
    (place,) = places_of(problem, tuple(KIND.gpus))
    at = {n: SIZES.index(n) for n in SIZES}
    together = {at[n]: slices.count(n) for n in SIZES if n in slices}
    assert (Room(place).most(together) >= 1) == packs(slices, nodes)
    named = {f"{n}xH": slices.count(n) for n in SIZES}
    assert packs_by_size(KIND, {f"{n}xH": count for n, count in sold.items()}, named) == packs(slices, nodes)


def test_a_bought_node_is_shared_and_paid_once(box: Toolbox) -> None:
    rated = [box.rated(["1xH"], 1.0, "m"), box.rated(["4xH"], 1.0, "n")]
    library = box.library(*sorted(rated, key=lambda r: r.template.id))
    stocks = [box.stock("8xH", 3, 80.0)]
    demands = {"m": 3.0, "n": 1.0}
    alone = solve(box.problem(library, demands, stocks), library)
    assert alone.chosen == ()  # nobody sells one or four
    problem = box.problem(library, demands, stocks, sliced=[KIND], ratio={"m": 0.1})
    answer = solve(problem, library)
    assert verify(problem, answer) == ()
    assert {c.template.nodes: c.count for c in answer.chosen} == {("1xH",): 3, ("4xH",): 1}
    assert [(b.configuration, b.count) for b in answer.nodes] == [("8xH", 1)]
    assert {c.template.nodes: c.usd_per_hour for c in answer.chosen} == {("1xH",): 10.0, ("4xH",): 40.0}
    assert answer.usd_per_hour == 80.0
    assert answer.penalty_usd_per_hour == pytest.approx(3.0)  # of its GPUs, not of the node
    for changed, name in (
        ({"nodes": ()}, "slices"),
        ({"nodes": (answer.nodes[0].model_copy(update={"count": 4}),)}, "capacity"),
        ({"nodes": (answer.nodes[0].model_copy(update={"usd_per_hour": 79.0}),)}, "price"),
        ({"usd_per_hour": 79.0}, "price"),
    ):
        assert name in {v.name for v in verify(problem, answer.model_copy(update=changed))}


def sliced_case(box: Toolbox, seed: int) -> tuple[Problem, Templates]:
    rng = random.Random(seed)
    combinations = [("1xH",), ("2xH",), ("4xH",), ("1xH", "2xH"), ("2xH", "b")]
    rated = [
        box.rated(c, round(rng.uniform(1, 3), 2) * len(c), model)
        for model in ("m", "n")
        for c in rng.sample(combinations, 2)
    ]
    library = box.library(*sorted(rated, key=lambda r: r.template.id))
    stocks = [
        box.stock("4xH", rng.randint(1, 2), round(rng.uniform(3, 5), 2)),
        box.stock("2xH", rng.randint(0, 2), round(rng.uniform(2, 3), 2)),
        box.stock("b", 1, 1.0),
        box.stock("b", 1, 0.5, WEST),
    ]
    demands = {model: round(rng.uniform(0.5, 4), 2) for model in ("m", "n")}
    return box.problem(library, demands, stocks, sliced=[KIND]), library


def least_cost(problem: Problem, library: Templates) -> tuple[float, float]:
    """(largest and sum of unmet shares as one figure, cost) of the best of all plans in the east."""
    rated = [c for found in library.by_service.values() for c in found]
    stock = {s.configuration: s for s in problem.stocks if s.pool == EAST}
    best = (float("inf"), float("inf"))
    rates = {d.service.key: d.rate for d in problem.demands}
    for counts in product(range(4), repeat=len(rated)):
        names = [n for c, k in zip(rated, counts, strict=True) for n in c.nodes * k]
        if names.count("b") > stock["b"].nodes:
            continue
        slices = sorted((KIND.gpus[n] for n in names if n in KIND.gpus), reverse=True)
        given = dict.fromkeys(rates, 0.0)
        for c, k in zip(rated, counts, strict=True):
            given[c.service.key] += c.throughput * k
        shares = [max(0.0, 1 - given[key] / rate) for key, rate in rates.items()]
        unmet = round(1000 * max(shares) + sum(shares), 4)
        if unmet > best[0]:
            continue
        for fours, twos in product(range(stock["4xH"].nodes + 1), range(stock["2xH"].nodes + 1)):
            if packs(slices, [4] * fours + [2] * twos):
                usd = fours * stock["4xH"].usd_per_hour + twos * stock["2xH"].usd_per_hour
                best = min(best, (unmet, usd + names.count("b") * stock["b"].usd_per_hour))
    return best


@pytest.mark.parametrize("seed", range(8))
def test_plans_with_shared_nodes_equal_brute_force(box: Toolbox, seed: int) -> None:
    problem, library = sliced_case(box, seed)
    answer = solve(problem, library)
    assert verify(problem, answer) == ()
    unmet, cost = least_cost(problem, library)
    shares = [u.share for u in answer.unmet]
    assert 1000 * max(shares, default=0.0) + sum(shares) == pytest.approx(unmet, abs=1e-2)
    assert answer.usd_per_hour == pytest.approx(cost, abs=1e-6)


def test_slices_are_powers_of_two_of_one_kind(box: Toolbox) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Sliced(gpu="H", gpus={"3xH": 3})
    library = box.library(box.rated(["1xH"], 1.0))
    problem = box.problem(library, {"m": 1.0}, [], sliced=[KIND, KIND])
    with pytest.raises(ProblemError, match="sliced"):
        solve(problem, library)


def test_no_node_is_bought_that_no_slice_needs(box: Toolbox) -> None:
    """Reserved nodes cost nothing, so the search may take any number of them."""
    library = box.library(box.rated(["1xH"], 1.0))
    reserved = EAST.model_copy(update={"market": "reserved"})
    stocks = [
        box.stock(f"{n}xH", 9, 1.0).model_copy(update={"usd_per_hour": 0.0, "pool": reserved}) for n in (1, 8)
    ]
    for demand in (0, 3, 10):
        problem = box.problem(library, {"m": float(demand)}, stocks, sliced=[KIND])
        answer = solve(problem, library)
        assert verify(problem, answer) == ()
        bought = [KIND.gpus[b.configuration] for b in answer.nodes for _ in range(b.count)]
        assert packs([1] * demand, bought)
        for k in range(len(bought)):
            assert not packs([1] * demand, bought[:k] + bought[k + 1 :]), "one fewer would do"
