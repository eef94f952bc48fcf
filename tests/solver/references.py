"""The best placement on a combination by going through all of them: slow, plain, and nobody else's code.

Only the figures come from the solver: That of whole nodes (`solver.tables`) for runtime `coral`, of a stage's
slot (`Roofline.table`) for `vllm`. Which placements there are is written down here once more, from the
design records, and never asked of the search that is under test.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations, product

import numpy as np

from schemas.catalog import Configuration
from solver.roofline import Roofline, Slot
from solver.shapes import Floats
from solver.tables import NodeTable

# ------------------------------------------------------------------------------------------------------ cuts


def cuts(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut `layers` into `stages` of at least one."""
    for inner in combinations(range(1, layers), stages - 1):
        yield tuple(b - a for a, b in pairwise((0, *inner, layers)))


def best_of_all_cuts(rates: Floats) -> float:
    """The largest least rate over all cuts, one by one; rates of shape (stages, layers)."""
    stages, layers = rates.shape
    return max(
        (min(float(rates[s, j - 1]) for s, j in enumerate(cut)) for cut in cuts(layers, stages)), default=0.0
    )


def best_cuts(rates: Floats) -> Floats:
    """The same for many chains at once, stage after stage: rates of shape (stages, ..., layers).

    reach[l] is the best least rate of the stages so far holding l layers: the next one takes j of them.
    Nothing is asked of the rates, not even that they fall with the layers.
    """
    reach = rates[0]
    for stage in rates[1:]:
        longer = np.zeros_like(reach)
        for j in range(1, reach.shape[-1]):
            with_j = np.minimum(reach[..., :-j], stage[..., j - 1, None])
            np.maximum(longer[..., j:], with_j, out=longer[..., j:])
        reach = longer
    return np.asarray(reach[..., -1])


# ---------------------------------------------------------------------------------------------- runtime coral


def best_shared(table: NodeTable, nodes: Sequence[int]) -> float:
    """The best placement whose stages share their nodes' throughput: over S, assignments and cuts."""
    most = min(len(nodes), table.throughput.shape[-1])
    return max(best_of_stages(table, nodes, s) for s in table.stages if s <= most)


def best_of_stages(table: NodeTable, nodes: Sequence[int], stages: int) -> float:
    """The same with a given number of stages."""
    found = best_cuts(stage_rates(table, nodes, stages))
    return float(found.max())


def stage_rates(table: NodeTable, nodes: Sequence[int], stages: int) -> Floats:
    """F of every stage of every assignment: shape (stages, assignments, layers)."""
    assigned = np.array(list(assignments(nodes, stages)))
    depth = table.stages.index(stages)
    rates = np.zeros((stages, len(assigned), table.throughput.shape[-1]))
    for s in range(stages):
        place = 0 if s == 0 else 2 if s == stages - 1 else 1  # first, last, middle
        for k, c in enumerate(nodes):
            rates[s] += (assigned[:, k] == s)[:, None] * table.throughput[place, depth, c]
    return rates


def assignments(nodes: Sequence[int], stages: int) -> Iterator[tuple[int, ...]]:
    """The stage of each node, every stage having one; equal nodes in rising order, as they are alike."""
    alike = [k for k in range(1, len(nodes)) if nodes[k] == nodes[k - 1]]
    for stage_of in product(range(stages), repeat=len(nodes)):
        if len(set(stage_of)) == stages and all(stage_of[k - 1] <= stage_of[k] for k in alike):
            yield stage_of


# ----------------------------------------------------------------------------------------------- runtime vllm


def best_chain(roofline: Roofline, nodes: Sequence[Configuration]) -> float:
    """The best chain: over tensor-parallel degrees, orders of the nodes, batches and cuts.

    Phases that hand the KV cache over are one stage: the connector takes no pipeline.
    """
    if any(node.gpu not in roofline.variant.gpus for node in nodes):
        return 0.0
    best = 0.0
    for tp in range(1, min(node.gpus for node in nodes) + 1):
        stages = sum(node.gpus // tp for node in nodes)
        if any(node.gpus % tp for node in nodes) or not roofline.shape.splits_into(tp):
            continue
        if stages > (roofline.model.architecture.layers if roofline.phase == "both" else 1):
            continue
        best = max(best, float(best_cuts(chain_rates(roofline, nodes, tp)).max()))
    return best


def chain_rates(roofline: Roofline, nodes: Sequence[Configuration], tp: int) -> Floats:
    """That of every stage of every order: shape (stages, orders, batches, layers)."""
    orders = {tuple(node.name for node in order): order for order in permutations(nodes)}
    chains = [chain(roofline, order, tp) for order in orders.values()]
    depth = len(chains[0])
    return np.stack([[roofline.table(slots[s], depth) for slots in chains] for s in range(depth)])


def chain(roofline: Roofline, order: Sequence[Configuration], tp: int) -> list[Slot]:
    """The stages of a chain: each node hosts as many as it has tp GPUs, and the next node's follow."""
    hosts = [k for k, node in enumerate(order) for _ in range(node.gpus // tp)]
    slots = []
    for i, k in enumerate(hosts):
        first, last = i == 0, i == len(hosts) - 1
        if last:
            sends = 0.0
        elif hosts[i + 1] == k:
            sends = roofline.gpus[order[k].gpu].link_gb_s
        else:
            sends = min(order[k].network_gbps, order[k + 1].network_gbps) / 8  # Gbit/s to GB/s
        slots.append(Slot(order[k].gpu, tp, first, last, sends))
    return slots


# --------------------------------------------------------------------------------------------- made-up tables


def made_up(
    rng: np.random.Generator, configurations: int, layers: int, most_stages: int, digits: int | None = None
) -> NodeTable:
    """Random throughputs that fall with layers: nodes of unlike speed, some that can hold few layers or none.

    With `digits`, rounded to so many, so that many are equal.
    """
    shape = (3, most_stages, configurations, layers)
    speed = rng.uniform(1, 30, (1, 1, configurations, 1))
    steps = rng.uniform(0, 1, shape) ** rng.integers(1, 4)
    falling = np.cumsum(steps[..., ::-1], axis=-1)[..., ::-1]
    room = rng.integers(0, 2 * layers, (1, most_stages, configurations, 1))
    that: Floats = np.where(np.arange(layers) < room, speed * falling, 0.0)
    if digits is not None:
        that = np.ceil(that * 10**digits) / 10**digits
    return as_table(that)


def as_table(that: Floats) -> NodeTable:
    """A table of throughputs [position, S - 1, c, j - 1]; a lone stage is first and last at once."""
    that[:, 0] = that[0, 0]
    names = tuple(f"node-{c}" for c in range(that.shape[2]))
    return NodeTable(names, tuple(range(1, that.shape[1] + 1)), that, (that > 0).astype(np.int64))


def given(table: NodeTable, nodes: Sequence[int], layers: Sequence[int], stage_of: Sequence[int]) -> float:
    """What a placement gives: the least of its stages', each the sum of its nodes'.

    Args:
        layers: of each stage.
        stage_of: of each node.
    """
    stages = len(layers)
    assert sum(layers) == table.throughput.shape[-1]
    assert min(layers) >= 1
    assert set(stage_of) == set(range(stages))
    least = float("inf")
    for s, j in enumerate(layers):
        place = 0 if s == 0 else 2 if s == stages - 1 else 1  # first, last, middle
        mine = [c for c, stage in zip(nodes, stage_of, strict=True) if stage == s]
        least = min(least, sum(float(table.throughput[place, stages - 1, c, j - 1]) for c in mine))
    return least
