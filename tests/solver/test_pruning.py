"""Pruning loses nothing: the sweep keeps what a full search would, and plans cost the same without the rest.

A combination is needless if it gives no more than its two best parts: they take the same nodes, at the same
price, in the same pool (solver.md, "Lossless pruning").
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, combinations_with_replacement
from typing import NamedTuple

import numpy as np
import pytest

from schemas.allocation import AllocationPolicy
from schemas.catalog import Configuration, Phase, Runtime
from schemas.problems import Running, Stock, Template
from solver.allocation import solve_whole
from solver.columns import make_question
from solver.kept import Kept, ServiceInputs
from solver.roofline import BATCHES, Roofline
from solver.rows import placement_of
from solver.sweep import sweep
from solver.tables import node_table
from tests.solver.conftest import MadeUp, Toolbox
from tests.solver.references import best_chain, best_shared, chain, given

Make = Callable[..., Roofline]
Nodes = Callable[..., list[Configuration]]
Combination = tuple[int, ...]
"""Indices of configurations, rising."""
Values = Mapping[Combination, float]


# ------------------------------------------------------------------------------------------- the full search


def multisets(configurations: int, n_max: int) -> Iterator[Combination]:
    """Smaller ones first."""
    for size in range(1, n_max + 1):
        yield from combinations_with_replacement(range(configurations), size)


def every_own(inputs: ServiceInputs, nodes: Sequence[Configuration], n_max: int, rho: float) -> Values:
    """What each combination within rho gives, placed by going through everything; 0 where it cannot serve."""
    r, own = inputs.roofline, {}
    memory = [node.gpus * r.gpus[node.gpu].memory_gb * 1e9 for node in nodes]
    table = node_table(r, nodes)
    for combination in multisets(len(nodes), n_max):
        if sum(memory[c] for c in combination) > rho * r.shape.total_bytes:
            continue
        if any(nodes[c].gpu not in r.variant.gpus for c in combination):
            own[combination] = 0.0
        elif inputs.runtime == "coral":
            own[combination] = best_shared(table, combination)
        else:
            own[combination] = best_chain(r, [nodes[c] for c in combination])
    return own


def needed(own: Values) -> dict[Combination, float]:
    """Those that give more than all their splits: pruned last, after the full search."""
    best: dict[Combination, float] = {}
    kept = {}
    for combination in sorted(own, key=len):
        split = max((best.get(a, 0.0) + best.get(b, 0.0) for a, b in splits(combination)), default=0.0)
        best[combination] = max(split, own[combination])
        if own[combination] > split * (1 + 1e-9):
            kept[combination] = own[combination]
    return kept


def splits(combination: Combination) -> Iterator[tuple[Combination, Combination]]:
    places = range(len(combination))
    for size in range(1, len(combination)):
        for taken in combinations(places, size):
            rest = tuple(combination[k] for k in places if k not in taken)
            yield tuple(combination[k] for k in taken), rest


def members(kept: Kept, row: int) -> Combination:
    return tuple(c for c in kept.combination[row].tolist() if c >= 0)


# -------------------------------------------------------------------------------------------------- the sweep


@pytest.mark.parametrize(
    ("runtime", "phase", "model", "variants", "names", "n_max", "rho"),
    [
        ("coral", "both", "qwen3-32b", ("bf16", "fp8"), ("1xL4", "2xL40S", "1xA10G", "1xH100"), 4, 12),
        (
            "coral",
            "prefill",
            "gpt-oss-20b",
            ("mxfp4",),
            ("1xL4", "1xA10G", "2xL4", "1xL40S", "1xA100"),
            4,
            12,
        ),
        ("coral", "decode", "llama-3-70b", ("bf16",), ("4xL4", "2xL40S", "1xH100"), 5, 5),
        ("vllm", "both", "gpt-oss-20b", ("mxfp4",), ("1xL4", "2xL4", "1xL40S", "1xH100"), 3, 12),
        ("vllm", "both", "gpt-oss-120b", ("mxfp4",), ("2xL40S", "1xL40S", "1xA100"), 3, 4),
        ("vllm", "decode", "phi-4-14b", ("bf16",), ("1xL4", "2xL40S", "1xA10G", "1xH100"), 2, 12),
    ],
)
def test_the_sweep_keeps_what_a_full_search_would(
    roofline: Make,
    nodes: Nodes,
    runtime: Runtime,
    phase: Phase,
    model: str,
    variants: tuple[str, ...],
    names: tuple[str, ...],
    n_max: int,
    rho: float,
) -> None:
    services = [ServiceInputs(roofline(model, name, phase=phase), runtime) for name in variants]
    configurations = nodes(*names)
    swept = sweep(services, configurations, n_max=n_max, rho=rho, cores=1)
    everything = [every_own(inputs, configurations, n_max, rho) for inputs in services]
    together: dict[Combination, float] = {}
    for own in everything:
        together = {c: max(own.get(c, 0.0), together.get(c, 0.0)) for c in {**own, **together}}
    expected = needed(together)
    found: dict[Combination, float] = {}
    for inputs, own in zip(services, everything, strict=True):
        kept = swept[inputs.key]
        for row, throughput in enumerate(kept.throughput.tolist()):
            combination = members(kept, row)
            assert combination not in found  # one variant has it, the better one
            assert throughput == pytest.approx(own[combination], rel=1e-9)
            check_row(inputs, configurations, kept, row)
            found[combination] = throughput
        assert kept.considered == len(own)
        assert kept.considered + kept.over_rho == sum(1 for _ in multisets(len(names), n_max))
        assert kept.considered == kept.valid + sum(kept.refused.values())
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-9)
    assert 0 < len(found) < len(together)


def check_row(inputs: ServiceInputs, nodes: Sequence[Configuration], kept: Kept, row: int) -> None:
    """A row is a placement that gives what it says, and its template is the same one."""
    r, combination, size = inputs.roofline, members(kept, row), len(members(kept, row))
    throughput, stages = float(kept.throughput[row]), int(kept.stages[row])
    template = placement_of(inputs, nodes, kept, row).template
    assert sorted(template.nodes) == sorted(nodes[c].name for c in combination)
    assert len(template.stages) == stages
    if inputs.runtime == "coral":
        stage_of = kept.stage_of[row, :size].tolist()
        layers = dict(zip(stage_of, kept.layers[row, :size].tolist(), strict=True))
        cut = [layers[s] for s in range(stages)]
        assert given(node_table(r, nodes), combination, cut, stage_of) == pytest.approx(throughput, rel=1e-9)
        assert [stage.layers for stage in template.stages] == cut
    else:
        assert least_of_chain(r, nodes, template, float(kept.batch[row])) == pytest.approx(
            throughput, rel=1e-9
        )


def least_of_chain(r: Roofline, nodes: Sequence[Configuration], template: Template, batch: float) -> float:
    """What a template of runtime `vllm` gives at a batch; its nodes are in the order of the chain."""
    by_name = {node.name: node for node in nodes}
    slots = chain(r, [by_name[name] for name in template.nodes], template.stages[0].ranks[0].tp)
    hosts = [stage.ranks[0].node for stage in template.stages]
    assert hosts == sorted(hosts)
    stages = zip(slots, template.stages, strict=True)
    b = BATCHES.tolist().index(batch)
    return min(float(r.table(slot, len(slots))[b, stage.layers - 1]) for slot, stage in stages)


# -------------------------------------------------------------------------------------------------- the plans


class Fleet(NamedTuple):
    """Two libraries of the same services on the same nodes, and what is asked of them."""

    all: MadeUp
    pruned: MadeUp
    demands: dict[str, float]
    stocks: list[Stock]
    running: list[Running]


ROBUST = AllocationPolicy(
    half_rule=("interactive",),
    failures_per_node_hour=0.02,
    recovery_s={"m": 1800.0, "n": 7200.0},
    surcharge_per_step=0.03,
    interruption_hours=3.0,
)
"""What falls at least as hard on a whole as on its parts: a cap on its cover, a discount by its nodes, a
surcharge on its complexity, a price on its nodes' risk."""


@pytest.mark.parametrize("policy", [AllocationPolicy(), ROBUST], ids=["plain", "robust"])
def test_plans_cost_the_same_without_what_was_pruned(box: Toolbox, policy: AllocationPolicy) -> None:
    """Made-up throughputs: wholes that give a little more or less than their parts; ample or short stock.

    What was pruned on plain throughputs is not missed by policies that discount them.
    """
    rng, names, short = np.random.default_rng(10), ("a", "b", "c"), []
    for _ in range(12):
        values = {}
        for model in ("m", "n"):
            alone = rng.uniform(1, 9, len(names))
            synergy = {c: float(rng.uniform(0.7, 1.2)) for c in multisets(len(names), 3)}
            values[model] = {c: float(alone[list(c)].sum()) * more for c, more in synergy.items()}
        pruned = {model: needed(own) for model, own in values.items()}
        short.append(same_cost(box, fleet(box, rng, names, values, pruned), policy))
    assert set(short) == {True, False}


@pytest.mark.parametrize("runtime", ["coral", "vllm"])
def test_plans_of_swept_libraries_cost_the_same_as_of_full_ones(
    roofline: Make, nodes: Nodes, box: Toolbox, runtime: Runtime
) -> None:
    rng = np.random.default_rng(11)
    names = ("1xL4", "2xL4", "1xL40S", "1xH100")
    services = {
        "m": ServiceInputs(roofline("qwen3-32b", "fp8"), runtime),
        "n": ServiceInputs(roofline("gpt-oss-20b", "mxfp4"), runtime),
    }
    everything = {m: every_own(inputs, nodes(*names), 3, 12) for m, inputs in services.items()}
    swept = sweep(list(services.values()), nodes(*names), n_max=3, rho=12, cores=1)
    kept = {m: swept[inputs.key] for m, inputs in services.items()}
    pruned = {m: {members(k, i): float(t) for i, t in enumerate(k.throughput)} for m, k in kept.items()}
    short = [same_cost(box, fleet(box, rng, names, everything, pruned)) for _ in range(6)]
    assert not all(short)


def fleet(
    box: Toolbox,
    rng: np.random.Generator,
    names: Sequence[str],
    everything: Mapping[str, Values],
    pruned: Mapping[str, Values],
) -> Fleet:
    """Random stock and prices in two pools; some of what was pruned runs."""
    rated = {
        (model, combination): box.rated([names[c] for c in combination], throughput, model)
        for model, own in everything.items()
        for combination, throughput in own.items()
        if throughput > 0
    }
    most = int(rng.integers(2, 7))
    stocks = [
        box.stock(name, int(rng.integers(1, most + 1)), round(float(rng.uniform(0.5, 9)), 2), pool, 0.05)
        for name in names
        for pool in (box.east, box.west)
    ]
    needless = [r for (model, combination), r in rated.items() if combination not in pruned[model]]
    picked = rng.choice(len(needless), min(2, len(needless)), replace=False)
    top = {model: max(own.values()) for model, own in everything.items()}
    return Fleet(
        all=box.library(*rated.values()),
        pruned=box.library(*(rated[m, c] for m, own in pruned.items() for c in own)),
        demands={model: float(top[model] * rng.uniform(0.3, 2.5)) for model in everything},
        stocks=stocks,
        running=[box.running(needless[i], int(rng.integers(1, 3))) for i in picked],
    )


def same_cost(box: Toolbox, fleet: Fleet, policy: AllocationPolicy | None = None) -> bool:
    """Solve with both libraries and compare; whether stock was short of demand."""
    assert len(fleet.pruned.rated) < len(fleet.all.rated)
    unmet, cost = [], []
    for library in (fleet.all, fleet.pruned):
        ratio = {"m": 0.3, "n": 0.1}
        problem = box.problem(
            library, fleet.demands, fleet.stocks, running=fleet.running, ratio=ratio, policy=policy
        )
        solved = solve_whole(make_question(problem, library).program)
        assert all(proof.gap <= 1e-5 for proof in solved.proofs)
        unmet.append(float(solved.unmet.sum()))
        cost.append(solved.value)
    assert unmet[1] == pytest.approx(unmet[0], abs=1e-5)
    assert cost[1] == pytest.approx(cost[0], rel=1e-5)
    return unmet[0] > 0
