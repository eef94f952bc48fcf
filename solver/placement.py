"""The exact best placement of a model on one combination of nodes, for either runtime.

A front over the searches, for one question at a time; a whole set-up is `solver.sweep`. Importing this loads
numba, which making templates of a library's rows (`solver.rows`) does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from schemas.catalog import Configuration, Runtime
from solver.chains import Found, Placement
from solver.kept import Kept, Placements, Reason, ServiceInputs
from solver.roofline import Roofline
from solver.rows import chain_of, placement_of
from solver.searches import search_of


@dataclass(frozen=True)
class Refusal:
    """Why a combination cannot serve."""

    reason: Reason


def place(
    roofline: Roofline, nodes: Sequence[Configuration], runtime: Runtime = "vllm"
) -> Placement | Refusal:
    """The placement of the highest saturated throughput on these nodes, as the template that travels.

    Raises:
        ValueError: for runtime `coral`, a node that adds nothing: the others are as good without it.
    """
    inputs = ServiceInputs(roofline, runtime)
    row = _best(inputs, nodes)
    if isinstance(row, Refusal):
        return row
    idle = [row.nodes[k].name for k in np.flatnonzero(row.kept.tp[0] == 0)]
    if idle:
        raise ValueError(f"nodes: {', '.join(idle)} would add nothing, expected nodes that hold a layer")
    return placement_of(inputs, row.configurations, row.kept, 0)


def search(roofline: Roofline, nodes: Sequence[Configuration]) -> Found | Refusal:
    """The best chain (runtime `vllm`), without building its template. No order of `nodes` gives another."""
    row = _best(ServiceInputs(roofline, "vllm"), nodes)
    return row if isinstance(row, Refusal) else chain_of(roofline, row.nodes, row.kept, 0)


def throughput_of(inputs: ServiceInputs, nodes: Sequence[Configuration]) -> float:
    """What these nodes give at best: requests/s for phase `both`, else tokens/s; 0 if they cannot serve."""
    row = _best(inputs, nodes)
    return 0.0 if isinstance(row, Refusal) else float(row.kept.throughput[0])


@dataclass(frozen=True)
class _Row:
    """A placement as the only row of a sweep over the nodes' own configurations."""

    configurations: list[Configuration]
    nodes: list[Configuration]
    kept: Kept


def _best(inputs: ServiceInputs, nodes: Sequence[Configuration]) -> _Row | Refusal:
    if not nodes:
        raise ValueError("nodes: none given, expected at least 1")
    known = {node.name: node for node in nodes}
    names = sorted(known)
    rows = np.array([sorted(names.index(node.name) for node in nodes)], dtype=np.int8)
    configurations = [known[name] for name in names]
    if any(node.gpu not in inputs.roofline.variant.gpus for node in nodes):
        return Refusal("gpu-not-allowed")
    found = search_of(inputs, configurations, len(nodes))
    if not found.parallel(rows)[0]:
        return Refusal("no-parallelism")
    placed = found.place(rows, np.zeros(1))
    if placed.throughput[0] > 0:
        kept = Kept(rows, **{part.name: getattr(placed, part.name) for part in fields(Placements)})
        return _Row(configurations, [configurations[c] for c in rows[0].tolist()], kept)
    return Refusal("slo-too-tight" if found.fits(rows)[0] else "does-not-fit")
