"""From a row of a sweep (`solver.kept`) to a template with its rating, as they travel.

A row says which nodes share which stage; what it leaves out follows from that, so it is worked out here:
how a node of runtime `vllm` cuts its layers over the stages it hosts, and for runtime `coral` each node's
batch, memory and latency.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.catalog import Configuration
from schemas.problems import LatencyTable, Rating, Template, TemplateRank, TemplateStage
from solver.kept import Kept, ServiceInputs
from solver.placement import Found, Placement, best_cut, chain_slots, describe, workload_digest
from solver.roofline import BATCHES, ENGINE, Roofline, Slot
from solver.tables import node_slot


def placement_of(
    inputs: ServiceInputs, configurations: Sequence[Configuration], kept: Kept, row: int
) -> Placement:
    """The template and rating of a row.

    Args:
        configurations: what the row's indices refer to.
    """
    columns = np.flatnonzero(kept.combination[row] >= 0)
    nodes = [configurations[c] for c in kept.combination[row, columns].tolist()]
    if inputs.runtime == "vllm":
        return describe(inputs.roofline, _chain(inputs.roofline, nodes, kept, row))
    return _describe_shared(inputs.roofline, _shares(inputs.roofline, nodes, kept, row), nodes, kept, row)


# ------------------------------------------------------------------------------------------- runtime vllm


def _chain(roofline: Roofline, nodes: Sequence[Configuration], kept: Kept, row: int) -> Found:
    """The chain, each node's layers cut over its own stages so that the slowest is as fast as can be."""
    columns = np.argsort(kept.order[row, : len(nodes)])
    order = tuple(nodes[c] for c in columns.tolist())
    tp = int(kept.tp[row, 0])
    batch = int(np.argmin(np.abs(BATCHES - kept.batch[row])))
    slots = chain_slots(roofline, order, tp)
    layers: list[int] = []
    for column, node in zip(columns.tolist(), order, strict=True):
        held = int(kept.layers[row, column])
        here = slots[len(layers) : len(layers) + node.gpus // tp]
        rates = np.stack([roofline.table(slot, len(slots))[[batch], :held] for slot in here])
        layers.extend(best_cut(rates)[2])
    return Found(order, tp, tuple(layers), float(BATCHES[batch]), float(kept.throughput[row]))


# ------------------------------------------------------------------------------------------ runtime coral


@dataclass(frozen=True)
class _Share:
    """A node in its stage: what each of its replicas does."""

    node: int
    stage: int
    layers: int
    slot: Slot
    replicas: int
    batch: float
    throughput: float
    """Of the whole node."""


def _shares(roofline: Roofline, nodes: Sequence[Configuration], kept: Kept, row: int) -> list[_Share]:
    stages = int(kept.stages[row])
    found = []
    for k, node in enumerate(nodes):
        stage, layers, tp = (int(a[row, k]) for a in (kept.stage_of, kept.layers, kept.tp))
        slot = node_slot(node, tp, first=stage == 0, last=stage == stages - 1)
        rates = roofline.table(slot, stages)[:, layers - 1]
        best, replicas = int(np.argmax(rates)), node.gpus // tp
        found.append(
            _Share(k, stage, layers, slot, replicas, float(BATCHES[best]), replicas * float(rates[best]))
        )
    return found


def _describe_shared(
    roofline: Roofline, shares: Sequence[_Share], nodes: Sequence[Configuration], kept: Kept, row: int
) -> Placement:
    variant, names = roofline.variant, tuple(node.name for node in nodes)
    depth = int(kept.stages[row])
    stages = tuple(_stage(roofline, [s for s in shares if s.stage == stage], depth) for stage in range(depth))
    model, args = roofline.model.name, variant.vllm_args
    template = Template(
        id=Template.identity(
            model, variant.name, args, roofline.phase, "coral", names, stages, variant.revision
        ),
        model=model,
        variant=variant.name,
        checkpoint=variant.checkpoint,
        vllm_args=args,
        revision=variant.revision,
        unverified=variant.unverified,
        phase=roofline.phase,
        runtime="coral",
        nodes=names,
        stages=stages,
        latency=_latency(roofline, shares, depth),
    )
    rating = Rating(
        slo_class=roofline.level.slo_class,
        throughput=float(kept.throughput[row]),
        workload=workload_digest(roofline.level.workload),
        engine=ENGINE,
    )
    return Placement(template, rating)


def _stage(roofline: Roofline, shares: Sequence[_Share], depth: int) -> TemplateStage:
    ranks = []
    for share in shares:
        cache = roofline.cache_bytes(share.slot, float(share.layers), depth * share.batch)
        memory = float(roofline.weight_bytes(share.slot, float(share.layers)) + cache) / 1e9
        for replica in range(share.replicas):
            devices = tuple(range(replica * share.slot.tp, (replica + 1) * share.slot.tp))
            ranks.append(TemplateRank(node=share.node, device_ids=devices, memory_gb=memory))
    return TemplateStage(layers=shares[0].layers, ranks=tuple(ranks))


def _latency(roofline: Roofline, shares: Sequence[_Share], depth: int) -> LatencyTable:
    """As `solver.placement.latency`, where each node of a stage takes its share of the micro-batch.

    The scheduler weighs nodes by what they give, so a prompt's way through a stage is the mean so weighed.
    """
    given = [sum(s.throughput for s in shares if s.stage == stage) for stage in range(depth)]
    weights = [share.throughput / given[share.stage] for share in shares]
    most = max(
        depth * share.batch / weight * share.replicas for share, weight in zip(shares, weights, strict=True)
    )
    batches = tuple(2**k for k in range(int(np.ceil(np.log2(most))) + 1))

    def step_ms(sequences: int) -> float:
        parts = (
            float(roofline.decode_s(s.slot, float(s.layers), max(1.0, sequences / depth * w / s.replicas)))
            for s, w in zip(shares, weights, strict=True)
        )
        return 1000 * depth * max(parts)

    prompt_s = sum(
        w * float(roofline.prefill_s(s.slot, float(s.layers))) for s, w in zip(shares, weights, strict=True)
    )
    loaded = max(float(roofline.weight_bytes(s.slot, float(s.layers))) * s.replicas for s in shares)
    return LatencyTable(
        batch=batches,
        step_ms=tuple(map(step_ms, batches)),
        prefill_ms_per_token=1000 * prompt_s / roofline.level.workload.mean_input_tokens,
        startup_s=roofline.assume.startup_s + loaded / (roofline.assume.load_gb_s * 1e9),
    )
