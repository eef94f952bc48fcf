"""Why a template gives what it gives: stages, the slowest of them, what one more layer or node would do."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from schemas.base import Frozen
from schemas.catalog import Configuration, Phase, Runtime
from schemas.problems import Template
from solver.chains import chain_slots
from solver.explain import Held
from solver.explanation import Bound, Limit
from solver.kept import ServiceInputs
from solver.roofline import BATCHES, Roofline, Slot
from solver.shapes import Floats
from solver.tables import node_slot

Place = Callable[[Sequence[Configuration]], float]
"""The most that a combination gives as one template; 0 where it cannot serve."""


class NodeShare(Frozen):
    """A node's part of a stage."""

    configuration: str
    tp: int
    replicas: int
    throughput: float
    """Of all replicas, while they hold the stage's layers."""
    batch: float
    """Sequences of one replica's micro-batch; prompts in phase `prefill`."""
    busiest: Limit
    """The resource that a step spends most time on."""
    violates: tuple[Bound, ...]
    """What the next larger batch that is tried would break here."""


class StageShare(Frozen):
    """A stage, and how much slower it would be with one more layer."""

    layers: int
    throughput: float
    with_one_more: float
    """0 where memory or a promise forbids it, or the model has no more."""
    nodes: tuple[NodeShare, ...]


class OneMore(Frozen):
    """What the template would become with one more node."""

    configuration: str
    throughput: float
    adds: float
    """To what there was; negative where every node has to serve and a slow one slows all."""
    alone: float
    """What the node gives as a template of its own: adding less than that is no reason to add it."""


class TemplateExplanation(Frozen):
    """A template taken apart. Throughput in `unit`."""

    id: str
    model: str
    variant: str
    slo_class: str
    phase: Phase
    runtime: Runtime
    nodes: tuple[str, ...]
    unit: str
    throughput: float
    stages: tuple[StageShare, ...]
    bottleneck: int
    """Index of the slowest stage."""
    one_more_node: tuple[OneMore, ...]
    """By what they add beyond what they would give alone, the most first."""


def explain_template(
    inputs: ServiceInputs,
    template: Template,
    throughput: float,
    configurations: Mapping[str, Configuration],
    place: Place,
    more: Sequence[Configuration] = (),
) -> TemplateExplanation:
    """Take a template apart.

    Args:
        inputs: what it was rated by.
        throughput: its rating.
        configurations: where its nodes are found, by name.
        place: the search, for what one more node would give.
        more: nodes to try adding.
    """
    r = inputs.roofline
    nodes = [configurations[name] for name in template.nodes]
    stages = _stages(r, template, nodes)
    return TemplateExplanation(
        id=template.id,
        model=r.model.name,
        variant=r.variant.name,
        slo_class=r.level.slo_class,
        phase=r.phase,
        runtime=inputs.runtime,
        nodes=template.nodes,
        unit="requests/s" if r.phase == "both" else "tokens/s",
        throughput=throughput,
        stages=stages,
        bottleneck=int(np.argmin([stage.throughput for stage in stages])),
        one_more_node=_one_more(nodes, throughput, place, more),
    )


class _Part(NamedTuple):
    """A node in a stage."""

    node: Configuration
    slot: Slot
    replicas: int


def _stages(roofline: Roofline, template: Template, nodes: Sequence[Configuration]) -> tuple[StageShare, ...]:
    """In runtime `vllm` all stages share one batch, in `coral` each node has its own best."""
    depth = len(template.stages)
    parts = _chain(roofline, template, nodes) if template.runtime == "vllm" else _shared(template, nodes)
    batch = None
    if template.runtime == "vllm":
        layers = [stage.layers for stage in template.stages]
        slots = [part.slot for (part,) in parts]
        each = [_rates(roofline, slot, j, depth) for slot, j in zip(slots, layers, strict=True)]
        batch = int(np.argmax(np.min(each, axis=0)))
    return tuple(
        _stage(roofline, here, stage.layers, depth, batch)
        for here, stage in zip(parts, template.stages, strict=True)
    )


def _chain(roofline: Roofline, template: Template, nodes: Sequence[Configuration]) -> list[list[_Part]]:
    slots = chain_slots(roofline, nodes, template.stages[0].ranks[0].tp)
    hosts = [nodes[stage.ranks[0].node] for stage in template.stages]
    return [[_Part(node, slot, 1)] for node, slot in zip(hosts, slots, strict=True)]


def _shared(template: Template, nodes: Sequence[Configuration]) -> list[list[_Part]]:
    last = len(template.stages) - 1
    found = []
    for index, stage in enumerate(template.stages):
        replicas = Counter((rank.node, rank.tp) for rank in stage.ranks)
        found.append(
            [
                _Part(nodes[k], node_slot(nodes[k], tp, first=index == 0, last=index == last), count)
                for (k, tp), count in replicas.items()
            ]
        )
    return found


def _stage(
    roofline: Roofline, parts: Sequence[_Part], layers: int, depth: int, batch: int | None
) -> StageShare:
    nodes = tuple(_node(roofline, part, layers, depth, batch) for part in parts)
    more = [part.replicas * _best(_rates(roofline, part.slot, layers + 1, depth), batch)[0] for part in parts]
    return StageShare(
        layers=layers, throughput=sum(node.throughput for node in nodes), with_one_more=sum(more), nodes=nodes
    )


def _node(roofline: Roofline, part: _Part, layers: int, depth: int, batch: int | None) -> NodeShare:
    rate, at = _best(_rates(roofline, part.slot, layers, depth), batch)
    held = Held(roofline, part.slot, layers, depth)
    alone = held.step_time(float(BATCHES[at])).alone_ms
    following = held.bounds(float(BATCHES[at + 1])) if at + 1 < len(BATCHES) else ()
    return NodeShare(
        configuration=part.node.name,
        tp=part.slot.tp,
        replicas=part.replicas,
        throughput=part.replicas * rate,
        batch=float(BATCHES[at]),
        busiest=max(alone, key=lambda limit: alone[limit]),
        violates=tuple(bound for bound in following if bound.broken),
    )


def _rates(roofline: Roofline, slot: Slot, layers: int, depth: int) -> Floats:
    """Of one replica at each batch; 0 where something forbids it."""
    if layers > roofline.model.architecture.layers:
        return np.zeros(len(BATCHES))
    return roofline.table(slot, depth)[:, layers - 1]


def _best(rates: Floats, batch: int | None) -> tuple[float, int]:
    """The rate at a batch, or at the best one."""
    at = int(np.argmax(rates)) if batch is None else batch
    return float(rates[at]), at


def _one_more(
    nodes: Sequence[Configuration], throughput: float, place: Place, more: Sequence[Configuration]
) -> tuple[OneMore, ...]:
    found = [
        OneMore(
            configuration=node.name,
            throughput=(larger := place([*nodes, node])),
            adds=larger - throughput,
            alone=place([node]),
        )
        for node in more
    ]
    return tuple(sorted(found, key=lambda one: one.alone - one.adds))
