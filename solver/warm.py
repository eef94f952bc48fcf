"""Compiles the loops once, which keeps them for all processes (`solver.compiled`): python -m solver.warm.

`make setup` does; it takes a minute of a core. One small search for each runtime, and small allocations, go
through all loops, with the types that others have.
"""

from dataclasses import replace

import numpy as np

from schemas.catalog import Runtime, load_catalog
from schemas.performance import load_efficiencies
from solver.allocation import decide, finish
from solver.bounds import solve
from solver.choice import Plans
from solver.cuts import tighten
from solver.kept import ServiceInputs
from solver.program import Block, Draw, Family, Program, Rows, Special, Term
from solver.roofline import Roofline
from solver.sweep import sweep

RUNTIMES: tuple[Runtime, ...] = ("coral", "vllm")


def warm() -> None:
    """Place a small model on pairs of a node, by either search."""
    catalog = load_catalog()
    model = min((m for m in catalog.models if m.levels), key=lambda m: m.architecture.layers)
    gpus, efficiencies = {gpu.name: gpu for gpu in catalog.gpus}, load_efficiencies()
    roofline = Roofline(model, model.variants[0], model.levels[0], gpus, efficiencies)
    node = next(c for c in catalog.configurations if c.gpu in model.variants[0].gpus and c.gpus == 1)
    for runtime in RUNTIMES:
        sweep([ServiceInputs(roofline, runtime)], [node], n_max=2, rho=12)
    for program in _allocations():
        solve(program, finish, decide)
    _cut()


def _allocations() -> tuple[Program, ...]:
    """Two templates of a service: enough stock, too little, and slices with a row that is more than stock."""
    family = Family(0, np.array([[0, -1], [0, 0]], np.int8), np.array([0.4, 0.7]))
    block = Block(0, "here", np.array([1.0]), np.array([0.1]), np.array([True]), (Draw(0, 0, 1.0),))
    ample = Program(
        services=("service",),
        weight=np.ones(1),
        families=(family,),
        blocks=(block,),
        rows=Rows(("node",), np.array([9.0])),
        specials=(Special(0, 0, running=1),),
    )
    short = replace(ample, rows=Rows(("node",), np.array([1.0])))
    slices = replace(
        block,
        price=np.array([1.0, 2.0]),
        start=np.array([0.1, 0.2]),
        offered=np.array([True, True]),
        draws=(Draw(0, 0, 1.0), Draw(1, 0, 2.0)),
        terms=(Term(1, instance=1.0),),
    )
    coupled = replace(
        ample,
        families=(Family(0, np.array([[0, -1], [1, -1]], np.int8), np.array([0.4, 0.7])),),
        blocks=(slices,),
        rows=Rows(("node", "instances"), np.array([9.0, 9.0])),
    )
    return ample, short, coupled


def _cut() -> None:
    """Three services whose plans want, two by two, the same node: small allocations need no cuts."""
    use = np.array([[1, 1, 0], [0, 0, 0], [0, 1, 1], [0, 0, 0], [1, 0, 1], [0, 0, 0]])
    objective, slack, begin = np.array([1.0, 2.0] * 3), np.array([0.0, 1.0] * 3), np.array([0, 2, 4, 6])
    tighten(Plans(use, slack, objective, np.zeros(6), begin), np.ones(3, np.int64), np.inf, 10.0, 10.0)


if __name__ == "__main__":
    warm()
