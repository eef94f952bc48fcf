"""From a row of a sweep (`solver.kept`) to a template with its rating, as they travel.

A row says which nodes share which stage; what it leaves out follows from that, so it is worked out here:
how a node of runtime `vllm` cuts its layers over the stages it hosts, and for runtime `coral` each node's
batch, memory and latency.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from schemas.base import canonical
from schemas.catalog import Configuration
from schemas.problems import LatencyTable, TemplateRank, TemplateStage
from solver.chains import Found, Placement, best_cut, chain_slots, describe, travelling
from solver.kept import Kept, ServiceInputs
from solver.roofline import BATCHES, Roofline, Slot
from solver.tables import node_slot


def placement_of(
    inputs: ServiceInputs, configurations: Sequence[Configuration], kept: Kept, row: int
) -> Placement:
    """The template and rating of a row.

    Args:
        configurations: what the row's indices refer to.
    """
    r, nodes = inputs.roofline, _nodes(configurations, kept, row)
    if inputs.runtime == "vllm":
        return describe(r, chain_of(r, nodes, kept, row))
    shares, depth = _shares(r, nodes, kept, row), int(kept.stages[row])
    stages = tuple(_stage(r, [s for s in shares if s.stage == stage], depth) for stage in range(depth))
    names, throughput = tuple(node.name for node in nodes), float(kept.throughput[row])
    return travelling(r, "coral", names, stages, _latency(r, shares, depth), throughput)


def identities(inputs: ServiceInputs, configurations: Sequence[Configuration], kept: Kept) -> Iterator[str]:
    """The ids of all rows' templates (`Template.identity`), which takes a hundredth of making the templates.

    So an id can be looked for: it is the digest of a text, most of which is the same for all rows.
    """
    r, v = inputs.roofline, inputs.roofline.variant
    head = _text([r.model.name, v.name, v.vllm_args, r.phase, inputs.runtime])[:-1]
    tail = "]" if v.revision is None else f",{_text(v.revision)}]"
    outlines = (
        _chains(inputs, configurations, kept) if inputs.runtime == "vllm" else _shared(configurations, kept)
    )
    for names, stages in outlines:
        held = ",".join(f'{{"layers":{layers},"ranks":[{ranks}]}}' for layers, ranks in stages)
        yield hashlib.sha256(f"{head},[{names}],[{held}]{tail}".encode()).hexdigest()[:16]


Outline = tuple[str, list[tuple[int, str]]]
"""Names of the nodes, and layers and ranks of each stage, as in the text."""


def _chains(inputs: ServiceInputs, configurations: Sequence[Configuration], kept: Kept) -> Iterator[Outline]:
    for row in range(len(kept)):
        chain = chain_of(inputs.roofline, _nodes(configurations, kept, row), kept, row)
        ranks = [rank for k, node in enumerate(chain.nodes) for rank in _ranks(k, node.gpus, chain.tp)]
        yield ",".join(_text(node.name) for node in chain.nodes), list(zip(chain.layers, ranks, strict=True))


def _shared(configurations: Sequence[Configuration], kept: Kept) -> Iterator[Outline]:
    names, gpus = [_text(node.name) for node in configurations], [node.gpus for node in configurations]
    arrays = (kept.combination, kept.stages, kept.stage_of, kept.layers, kept.tp)
    for nodes, depth, stage_of, layers, tp in zip(*(array.tolist() for array in arrays), strict=True):
        used = [c for c in nodes if c >= 0]
        held: list[list[str]] = [[] for _ in range(depth)]
        for k, c in enumerate(used):
            held[stage_of[k]] += _ranks(k, gpus[c], tp[k])
        most = {stage_of[k]: layers[k] for k in range(len(used))}
        yield (
            ",".join(names[c] for c in used),
            [(most[stage], ",".join(ranks)) for stage, ranks in enumerate(held)],
        )


def _text(value: object) -> str:
    return canonical(value).decode()


@cache
def _ranks(k: int, gpus: int, tp: int) -> tuple[str, ...]:
    """Each of a node's ranks."""
    return tuple(_text([k, devices]) for devices in _devices(gpus, tp))


def _nodes(configurations: Sequence[Configuration], kept: Kept, row: int) -> list[Configuration]:
    return [configurations[c] for c in kept.combination[row].tolist() if c >= 0]


def _devices(gpus: int, tp: int) -> list[tuple[int, ...]]:
    """Of each of a node's ranks."""
    return [tuple(range(first, first + tp)) for first in range(0, gpus, tp)]


# ------------------------------------------------------------------------------------------- runtime vllm


def chain_of(roofline: Roofline, nodes: Sequence[Configuration], kept: Kept, row: int) -> Found:
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
    """Its place in the combination."""
    configuration: Configuration
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
        batch, given = float(BATCHES[best]), replicas * float(rates[best])
        found.append(_Share(k, node, stage, layers, slot, replicas, batch, given))
    return found


def _stage(roofline: Roofline, shares: Sequence[_Share], depth: int) -> TemplateStage:
    ranks = []
    for share in shares:
        cache = roofline.cache_bytes(share.slot, float(share.layers), depth * share.batch)
        memory = float(roofline.weight_bytes(share.slot, float(share.layers)) + cache) / 1e9
        ranks += [
            TemplateRank(node=share.node, device_ids=devices, memory_gb=memory)
            for devices in _devices(share.configuration.gpus, share.slot.tp)
        ]
    return TemplateStage(layers=shares[0].layers, ranks=tuple(ranks))


def _latency(roofline: Roofline, shares: Sequence[_Share], depth: int) -> LatencyTable:
    """As `solver.chains.latency`, where each node of a stage takes its share of the micro-batch.

    The scheduler weighs nodes by what they give, so a prompt's way through a stage is the mean so weighed.
    """
    given = [sum(s.throughput for s in shares if s.stage == stage) for stage in range(depth)]
    weights = [share.throughput / given[share.stage] for share in shares]
    most = max(
        depth * share.batch / weight * share.replicas for share, weight in zip(shares, weights, strict=True)
    )
    batches = tuple(2**k for k in range(int(np.ceil(np.log2(most))) + 1))
    sequences = np.array(batches) / depth
    alike: dict[Slot, set[tuple[float, float]]] = {}
    for s, w in zip(shares, weights, strict=True):
        alike.setdefault(s.slot, set()).add((float(s.layers), w / s.replicas))
    parts = []
    for slot, found in alike.items():
        layers, w = np.array(sorted(found)).T[..., None]
        parts.append(np.max(roofline.decode_s(slot, layers, np.maximum(1.0, sequences * w)), axis=0))
    step_ms = 1000 * depth * np.max(parts, axis=0)

    prompt_s = sum(
        w * float(roofline.prompt_s(s.slot, float(s.layers))) for s, w in zip(shares, weights, strict=True)
    )
    loaded = max(float(roofline.weight_bytes(s.slot, float(s.layers))) * s.replicas for s in shares)
    return LatencyTable(
        batch=batches,
        step_ms=tuple(step_ms.tolist()),
        prefill_ms_per_token=1000 * prompt_s / roofline.level.workload.mean_input_tokens,
        startup_s=roofline.assume.startup_s + loaded / (roofline.assume.load_gb_s * 1e9),
    )
