"""The plan that is there: what runs, trimmed to today's stock. It always exists, so it is the answer when the
search comes to none in time, and it stays where a better plan would save too little."""

from dataclasses import replace

import numpy as np

from solver.columns import Question
from solver.partials import solved_of
from solver.places import Room
from solver.program import Ends, Finish, Proof, Solved, pick

SAME = 1e-6
"""Shares that differ by no more are alike."""


def running_plan(question: Question, finish: Finish) -> Solved | None:
    """What runs, as far as stock and limits hold it, with the fewest nodes bought for its slices.

    Unproven; None where limits leave it no place.
    """
    program = question.program
    rooms = {place.pool.key: Room(place) for place in question.places}
    counts = []
    for s in program.specials:
        room = rooms[question.pool(s.block).key]
        counts.append(room.take(question.uses(s.block, s.row), min(s.running, s.limit)))
    picked = pick(program, [s.block for s in program.specials], [s.row for s in program.specials])
    at = {(s.block, s.row): count for s, count in zip(program.specials, counts, strict=True)}
    pairs = zip(picked.block.tolist(), picked.row.tolist(), strict=True)
    fixed = np.array([at[pair] for pair in pairs], np.int64)
    found = finish(program, replace(picked, least=fixed, limit=fixed), "cost", Ends(), np.inf)
    if found is None or not np.isfinite(found.value):
        return None
    return replace(solved_of(program, picked, [("cost", found)]), proofs=())


def kept_plan(question: Question, solved: Solved, finish: Finish) -> Solved | None:
    """The running plan, proven by the search, where it serves as well and a new one would save too little.

    Unproven, but better than none, where the search found no plan at all.
    """
    least = question.problem.policy.minimum_saving
    if not question.program.specials or (solved.proofs and not least):
        return None
    running = running_plan(question, finish)
    if not solved.proofs and running is not None:
        return replace(running, proofs=(Proof("cost", running.value, 0.0),))
    if running is None or solved.value <= running.value * (1 - least):
        return None
    weight = question.program.weight
    if (weight * running.unmet > weight * solved.unmet + SAME).any():
        return None
    return replace(
        solved,
        counts=running.counts,
        extras=running.extras,
        unmet=running.unmet,
        cost=running.cost,
        penalty=running.penalty,
        proofs=(*solved.proofs[:-1], Proof("cost", running.value, solved.bound)),
    )
