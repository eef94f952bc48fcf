"""The exact best placement of a model on one node combination, for runtime `vllm`.

What upstream vLLM can run (design record vllm.md): a chain of stages with one tensor-parallel degree t for
all, a node with n GPUs hosting n/t consecutive stages, at least one layer a stage. So the search is over t,
the order of the nodes and the layer cuts; it is exhaustive over the first two and exact over the third, on
the roofline's grid of batches.

The cut for a given batch needs no search: a stage's throughput falls with its layers, so the largest least
throughput over all cuts of L layers into S stages is the (L - S)-th largest of all values at 2 or more
layers, or the least value at 1 layer where that is lower. (Handing out layers greedily takes the L - S
largest values, which are a prefix of each stage's; a higher minimum would need more than L - S above it.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

import numpy as np

from schemas.base import digest
from schemas.catalog import Configuration, Runtime, Workload
from schemas.problems import LatencyTable, Rating, Template, TemplateRank, TemplateStage
from solver.roofline import BATCHES, ENGINE, Roofline, Slot
from solver.shapes import Floats

RUNTIME: Runtime = "vllm"
Reason = Literal["gpu-not-allowed", "no-parallelism", "does-not-fit", "slo-too-tight"]


@dataclass(frozen=True)
class Refusal:
    """Why a combination cannot serve.

    gpu-not-allowed: the variant does not run on one of its GPUs. no-parallelism: no tensor-parallel degree
    divides the nodes and the model, with at most a stage a layer. does-not-fit: too little memory.
    slo-too-tight: it fits, but no cut meets TTFT and TPOT.
    """

    reason: Reason


@dataclass(frozen=True)
class Found:
    """A placement as numbers; `throughput` in requests/s (`both`) or tokens/s, `batch` per micro-batch."""

    nodes: tuple[Configuration, ...]
    tp: int
    layers: tuple[int, ...]
    batch: float
    throughput: float


@dataclass(frozen=True)
class Placement:
    """A placement as the template and rating that travel."""

    template: Template
    rating: Rating


def place(roofline: Roofline, nodes: Sequence[Configuration]) -> Placement | Refusal:
    """The placement of the highest saturated throughput on these nodes, in whatever order is best."""
    found = search(roofline, nodes)
    return found if isinstance(found, Refusal) else describe(roofline, found)


def search(roofline: Roofline, nodes: Sequence[Configuration]) -> Found | Refusal:
    """`place`, without building the template. Ties go to the larger degree, then the first order by name."""
    if any(node.gpu not in roofline.variant.gpus for node in nodes):
        return Refusal("gpu-not-allowed")
    chains = list(_chains(roofline, nodes))
    if not chains:
        return Refusal("no-parallelism")
    best = _best(roofline, chains)
    if best is not None:
        return best
    fits = any(_fits(roofline, order, tp) for tp, order in chains)
    return Refusal("slo-too-tight" if fits else "does-not-fit")


def _fits(roofline: Roofline, order: Sequence[Configuration], tp: int) -> bool:
    """Whether memory alone would hold the model, at the smallest batch."""
    slots = chain_slots(roofline, order, tp)
    held = [roofline.most_layers(slot, len(slots)) for slot in slots]
    return min(held) > 0 and sum(held) >= roofline.model.architecture.layers


def _chains(
    roofline: Roofline, nodes: Sequence[Configuration]
) -> Iterator[tuple[int, tuple[Configuration, ...]]]:
    """Every (degree, order) that vLLM accepts: larger degrees, which mean fewer stages, first."""
    layers = roofline.model.architecture.layers
    orders = {tuple(n.name for n in order): order for order in permutations(nodes)}
    for tp in sorted(range(1, min(node.gpus for node in nodes) + 1), reverse=True):
        divides = all(node.gpus % tp == 0 for node in nodes) and roofline.shape.splits_into(tp)
        if divides and sum(node.gpus // tp for node in nodes) <= layers:
            yield from ((tp, orders[names]) for names in sorted(orders))


def _best(roofline: Roofline, chains: Sequence[tuple[int, tuple[Configuration, ...]]]) -> Found | None:
    best: Found | None = None
    for tp, order in chains:
        slots = chain_slots(roofline, order, tp)
        rates = np.stack([roofline.table(slot, len(slots)) for slot in slots])
        throughput, batch, layers = best_cut(rates, floor=best.throughput if best else 0.0)
        if throughput > (best.throughput * (1 + 1e-12) if best else 0.0):
            best = Found(order, tp, layers, float(BATCHES[batch]), throughput)
    return best


def chain_slots(roofline: Roofline, order: Sequence[Configuration], tp: int) -> tuple[Slot, ...]:
    """The stages of a chain from its first to its last, with the bandwidth each sends on with."""
    nodes = [node for node in order for _ in range(node.gpus // tp)]
    within = [i for node in order for i in range(node.gpus // tp)]
    slots = []
    for i, node in enumerate(nodes):
        last = i == len(nodes) - 1
        leaves = last or within[i + 1] == 0
        wire = node.network_gbps / 8 if last else min(node.network_gbps, nodes[i + 1].network_gbps) / 8
        send = wire if leaves else roofline.gpus[node.gpu].link_gb_s
        slots.append(Slot(node.gpu, tp, i == 0, last, 0.0 if last else send))
    return tuple(slots)


def best_cut(rates: Floats, floor: float = 0.0) -> tuple[float, int, tuple[int, ...]]:
    """The cut of L layers into S stages of the largest least rate, at the best batch.

    Args:
        rates: shape (S, batches, L), S <= L; [s, b, j-1] is stage s with j layers, 0 where it cannot. Must
            not rise with j.
        floor: rates up to this are not wanted; most batches fail it, by a count and without a selection.

    Returns:
        Least rate over the stages, index of the batch, layers of each stage; (0, 0, ()) if no cut is above
        the floor.
    """
    stages, _, total = rates.shape
    spare = total - stages
    can = (rates > floor).sum(axis=2)
    rows = np.flatnonzero((can > 0).all(axis=0) & (can.sum(axis=0) >= total))
    if not rows.size:
        return 0.0, 0, ()
    least = rates[:, rows, 0].min(axis=0)
    if not spare:
        best = int(np.argmax(least))
        return float(least[best]), int(rows[best]), (1,) * stages
    more = rates[:, rows, 1 : spare + 1].transpose(1, 0, 2).reshape(rows.size, stages * spare)
    cut = np.partition(more, more.shape[1] - spare, axis=1)[:, more.shape[1] - spare]
    least = np.minimum(least, cut)
    best = int(np.argmax(least))
    batch = int(rows[best])
    return float(least[best]), batch, _hand_out(rates[:, batch, 1 : spare + 1], float(cut[best]), total)


def _hand_out(more: Floats, cut: float, total: int) -> tuple[int, ...]:
    """One layer a stage, then all whose rate is above the cut, then those at it from the first stage on."""
    above = 1 + (more > cut).sum(axis=1)
    equal = (more == cut).sum(axis=1)
    layers, rest = [], total - int(above.sum())
    for base, ties in zip(above.tolist(), equal.tolist(), strict=True):
        taken = min(rest, ties)
        rest -= taken
        layers.append(base + taken)
    return tuple(layers)


# -------------------------------------------------------------------------------------------- what travels


def describe(roofline: Roofline, found: Found) -> Placement:
    """The template and the rating of a placement."""
    variant, names = roofline.variant, tuple(node.name for node in found.nodes)
    stages = _stages(roofline, found)
    model, args = roofline.model.name, variant.vllm_args
    template = Template(
        id=Template.identity(
            model, variant.name, args, roofline.phase, RUNTIME, names, stages, variant.revision
        ),
        model=model,
        variant=variant.name,
        checkpoint=variant.checkpoint,
        vllm_args=args,
        revision=variant.revision,
        unverified=variant.unverified,
        phase=roofline.phase,
        runtime=RUNTIME,
        nodes=names,
        stages=stages,
        latency=latency(roofline, found),
    )
    rating = Rating(
        slo_class=roofline.level.slo_class,
        throughput=found.throughput,
        workload=workload_digest(roofline.level.workload),
        engine=ENGINE,
    )
    return Placement(template, rating)


def workload_digest(workload: Workload) -> str:
    """Names a workload by its lengths alone: where they came from does not change a rating."""
    return digest([workload.mean_input_tokens, workload.mean_output_tokens])


def _stages(roofline: Roofline, found: Found) -> tuple[TemplateStage, ...]:
    slots = chain_slots(roofline, found.nodes, found.tp)
    ranks = [
        (k, tuple(range(i * found.tp, (i + 1) * found.tp)))
        for k, node in enumerate(found.nodes)
        for i in range(node.gpus // found.tp)
    ]
    stages = []
    for slot, layers, (node, devices) in zip(slots, found.layers, ranks, strict=True):
        cache = roofline.cache_bytes(slot, float(layers), len(slots) * found.batch)
        memory = (roofline.weight_bytes(slot, float(layers)) + cache) / 1e9
        rank = TemplateRank(node=node, device_ids=devices, memory_gb=float(memory))
        stages.append(TemplateStage(layers=layers, ranks=(rank,)))
    return tuple(stages)


def latency(roofline: Roofline, found: Found) -> LatencyTable:
    """What an engine double needs, with no prefill in between.

    At n sequences, S micro-batches of n/S go round a pipeline as fast as its slowest stage lets them: a step
    of all takes S times that stage's. Prefill is a lone prompt's way through all stages. Nodes load their
    weights side by side, so start-up waits for the fullest.
    """
    slots = chain_slots(roofline, found.nodes, found.tp)
    depth, work = len(slots), list(zip(slots, map(float, found.layers), strict=True))
    top = int(np.ceil(np.log2(depth * found.batch)))
    batches = tuple(2**k for k in range(top + 1))
    steps = tuple(
        1000 * depth * max(float(roofline.decode_s(slot, j, max(1.0, n / depth))) for slot, j in work)
        for n in batches
    )
    prefill = sum(float(roofline.prefill_s(slot, j)) for slot, j in work)
    per_node: list[float] = []
    for node in found.nodes:
        here, work = work[: node.gpus // found.tp], work[node.gpus // found.tp :]
        per_node.append(sum(float(roofline.weight_bytes(slot, j)) for slot, j in here))
    load = max(per_node) / (roofline.assume.load_gb_s * 1e9)
    return LatencyTable(
        batch=batches,
        step_ms=steps,
        prefill_ms_per_token=1000 * prefill / roofline.level.workload.mean_input_tokens,
        startup_s=roofline.assume.startup_s + load,
    )
