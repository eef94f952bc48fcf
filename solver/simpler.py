"""Libraries of simpler templates only, to say what the others bring."""

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from schemas.problems import Running
from solver.kept import Kept
from solver.library import ARRAYS, Header, Library

Templates = Literal["single nodes", "nodes of one kind", "GPUs of one kind"]
"""Each has those before it: one node; nodes of one configuration; of one GPU, such as 1xL40S + 2xL40S."""


def alike(library: Library, templates: Templates) -> Library:
    """The templates of that kind. The parts of such a combination are such ones, so the pruning lost nothing
    here either."""
    groups = [_group(library, node.name, templates) for node in library.inputs.configurations]
    kinds = {group: k for k, group in enumerate(dict.fromkeys(groups))}
    kind = np.array([kinds[group] for group in groups])
    arrays = tuple(_rows(kept, kind, templates) for kept in library.arrays)
    parts = tuple(
        part.model_copy(update={"kept": len(kept)})
        for part, kept in zip(library.header.parts, arrays, strict=True)
    )
    return Library(Header(inputs=library.inputs, parts=parts), arrays, library.figures)


def is_alike(library: Library, run: Running, templates: Templates) -> bool:
    """Whether a running template is of that kind."""
    nodes = run.template.nodes
    if templates == "single nodes":
        return len(nodes) == 1
    return len({_group(library, name, templates) for name in nodes}) == 1


def _group(library: Library, configuration: str, templates: Templates) -> str:
    """What the nodes of a template have to have in common."""
    if templates != "GPUs of one kind":
        return configuration
    gpus = (node.gpu for node in library.inputs.configurations if node.name == configuration)
    return next(gpus, configuration)


def _rows(kept: Kept, kind: NDArray[np.int64], templates: Templates) -> Kept:
    nodes = kept.combination
    wanted: NDArray[np.bool_] = ((kind[nodes] == kind[nodes[:, :1]]) | (nodes < 0)).all(axis=1)
    if templates == "single nodes":
        wanted &= (nodes >= 0).sum(axis=1) == 1
    return replace(kept, **{name: getattr(kept, name)[wanted] for name in ARRAYS})
