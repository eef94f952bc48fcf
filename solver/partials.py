"""What counts of some columns come to: unmet shares, the objectives, a solved program."""

import math
from dataclasses import replace

import numpy as np

from solver.picking import pick
from solver.program import Count, Floats, Ints, Partial, Picked, Program, Proof, Solved, Step

ROUNDING = 1e-7
"""Shares below this are HiGHS's rounding: it keeps rows within 1e-6, and theirs are scaled to 1."""


def unmet_of(program: Program, picked: Picked, counts: Ints, extras: Floats) -> Floats:
    """[S]: share of each need that is left."""
    left = program.needs.copy()
    np.subtract.at(left, picked.service, picked.cover * counts)
    for extra, service, share in program.extras.covers:
        left[service] -= share * extras[extra]
    return np.where(left > ROUNDING, left, 0.0)


def value_of(program: Program, picked: Picked, counts: Ints, extras: Floats, step: Step) -> float:
    """A step's objective."""
    if step == "cost":
        started = np.maximum(counts - picked.running, 0)
        return float(counts @ picked.price + started @ picked.start + extras @ program.extras.price)
    weighed = program.weight * unmet_of(program, picked, counts, extras)
    return float(weighed.sum() if step == "total" else weighed.max(initial=0.0))


def aside_of(program: Program, extras: Floats) -> float:
    """Of the cost: prices that nobody pays."""
    aside = program.extras.aside
    return float(extras[aside] @ program.extras.price[aside]) if aside.any() else 0.0


def better_of(found: Partial, further: Partial) -> Partial:
    """The better plan of two searches through the same columns, with the better bound."""
    best = found if found.value <= further.value else further
    bound = min(best.value, max(found.bound, further.bound))
    return replace(best, bound=bound, nodes=found.nodes + further.nodes)


def nothing(program: Program) -> Solved:
    """The plan without any instance, which is optimal where there are no columns."""
    none = Partial(np.zeros(0, np.int64), program.extras.low, 0.0, 0.0)
    return solved_of(program, pick(program, [], []), [("cost", none)])


def solved_of(program: Program, picked: Picked, steps: list[tuple[Step, Partial]]) -> Solved:
    """What the last step found, with the proofs of all; what is pinned where there was none."""
    none = Partial(picked.least, program.extras.low, math.inf, -math.inf)
    last = steps[-1][1] if steps else none
    started = np.maximum(last.counts - picked.running, 0)
    used = np.flatnonzero(last.counts).tolist()
    where = zip(picked.block.tolist(), picked.row.tolist(), last.counts.tolist(), strict=True)
    counts = [Count(*at) for at in where]
    return Solved(
        counts=tuple(counts[j] for j in used),
        extras=last.extras,
        unmet=unmet_of(program, picked, last.counts, last.extras),
        cost=float(last.counts @ picked.price + last.extras @ program.extras.price),
        penalty=float(started @ picked.start),
        proofs=tuple(
            Proof(step, found.value, found.bound, aside_of(program, found.extras) if step == "cost" else 0.0)
            for step, found in steps
        ),
        row_price=np.zeros(len(program.rows.right)),
        service_price=np.zeros(len(program.services)),
        survivors=len(picked),
        nodes=sum(found.nodes for _, found in steps),
    )
