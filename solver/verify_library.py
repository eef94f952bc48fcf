"""Whether the templates of an answer give what their library says."""

from collections.abc import Iterator

import numpy as np

from schemas.problems import Answer, Chosen, Problem
from solver.library import Library
from solver.verify_parts import MONEY, Violation, close


def ratings(problem: Problem, answer: Answer, library: Library) -> Iterator[Violation]:
    """All violations, in a fixed order. What runs may have left the library since: it goes by the rating that
    the problem has of it.

    Raises:
        LibraryError: the library was opened without figures.
    """
    runs = {run.template.id: run.rating.throughput for run in problem.running}
    for chosen in answer.chosen:
        template, given = chosen.template.id, chosen.rating.throughput
        known = _throughput(library, chosen)
        where = "the library has"
        if known is None:
            known, where = runs.get(template), "not in the library, it runs with"
        if known is None:
            yield Violation("rating", f"{template}: neither in the library nor running")
        elif not close(given, known, MONEY):
            yield Violation("rating", f"{template}: rated {given}, {where} {known}")


def _throughput(library: Library, chosen: Chosen) -> float | None:
    """Of the same template on the same nodes: its id is a digest of both."""
    at = {node.name: c for c, node in enumerate(library.inputs.configurations)}
    nodes = sorted(at.get(name, len(at)) for name in chosen.template.nodes)
    for shelf in library.parts.values():
        kept = shelf.kept
        width = kept.combination.shape[1] if kept.combination.ndim > 1 else 0
        if shelf.part.service != chosen.service or len(nodes) > width:
            continue
        wanted = np.full(width, -1, np.int64)
        wanted[: len(nodes)] = nodes
        alike = np.flatnonzero((kept.combination == wanted).all(axis=1)).tolist()
        if alike and (row := shelf.find(chosen.template.id, alike)) is not None:
            return float(kept.throughput[row])
    return None
