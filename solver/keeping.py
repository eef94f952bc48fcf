"""The plan that is there: what runs, trimmed to today's stock. It always exists, so it is the answer when the
search comes to none in time, and it stays where a better plan would save too little."""

from dataclasses import replace

import numpy as np

from solver.columns import Question
from solver.partials import ROUNDING, aside_of, solved_of, value_of
from solver.picking import pick
from solver.places import Room
from solver.program import Ends, Finish, Floats, Ints, Partial, Picked, Program, Proof, Solved, Step

SAME = 1e-6
"""Shares that differ by no more are alike."""


def running_plan(question: Question, finish: Finish) -> Solved | None:
    """What runs, as far as stock and limits hold it, with the fewest nodes bought for its slices.

    Unproven; None where limits leave it no place.
    """
    program, at = question.program, _trimmed(question)
    picked = pick(program, [s.block for s in program.specials], [s.row for s in program.specials])
    pairs = zip(picked.block.tolist(), picked.row.tolist(), strict=True)
    counts = np.array([at[pair] for pair in pairs], np.int64)
    if not program.extras.name:  # nothing to choose beside the counts
        return _counted(program, picked, counts)
    fixed = replace(picked, least=counts, limit=counts)
    ends = Ends()
    if program.extras.covers:  # sending caches costs something: first what the halves can serve together
        served = finish(program, fixed, "total", ends, np.inf)
        ends = ends if served is None else Ends(total=served.value)
    found = finish(program, fixed, "cost", ends, np.inf)
    if found is None or not np.isfinite(found.value):
        return None
    return replace(solved_of(program, picked, [("cost", found)]), proofs=())


def _counted(program: Program, picked: Picked, counts: Ints) -> Solved | None:
    """These counts as they are, no program solved; None where they draw more on a row than it has."""
    drawn, right, none = np.zeros(len(program.rows.right)), program.rows.right, np.zeros(0)
    np.add.at(drawn, picked.term_row, picked.term_amount * counts[picked.term_column])
    if (drawn > right + ROUNDING * np.maximum(1.0, np.abs(right))).any():
        return None
    value = value_of(program, picked, counts, none, "cost")
    found = Partial(counts, none, value, -np.inf)
    return replace(solved_of(program, picked, [("cost", found)]), proofs=())


def kept_plan(question: Question, solved: Solved, finish: Finish) -> Solved | None:
    """The running plan, proven by the search, where it serves as well and a new one would save too little.

    Also where it serves more than what was found: a proof leaves a thousandth of the demand open, and where
    demand is a thousand times the stock that is everything. Unproven, but better than none, where the search
    found no plan at all.
    """
    program, least = question.program, question.problem.policy.minimum_saving
    if not program.specials or (solved.proofs and not least and not _may_serve_more(question, solved)):
        return None
    running = running_plan(question, finish)
    if running is None:
        return None
    if not solved.proofs:
        return replace(
            running, proofs=(Proof("cost", running.value, 0.0, aside_of(program, running.extras)),)
        )
    more = serves_more(program, running.unmet, solved.unmet)
    paid = running.value - aside_of(program, running.extras)
    if not more and (
        solved.value <= running.value - least * paid
        or (program.weight * running.unmet > program.weight * solved.unmet + SAME).any()
    ):
        return None
    return replace(
        solved,
        counts=running.counts,
        extras=running.extras,
        unmet=running.unmet,
        cost=running.cost,
        penalty=running.penalty,
        proofs=tuple(_proof(program, running, proof) for proof in solved.proofs),
    )


def _trimmed(question: Question) -> dict[tuple[int, int], int]:
    """(block, row) -> instances that run and that the stock holds; what is pinned goes first."""
    rooms = {place.pool.key: Room(place) for place in question.places}
    at: dict[tuple[int, int], int] = {}
    specials = question.program.specials
    pinned, all_ = [s.least for s in specials], [min(s.running, s.limit) for s in specials]
    for wanted in (pinned, all_):
        for s, count in zip(specials, wanted, strict=True):
            key = (s.block, s.row)
            room, more = rooms[question.pool(s.block).key], count - at.get(key, 0)
            at[key] = at.get(key, 0) + room.take(question.uses(*key), max(0, more))
    return at


def _may_serve_more(question: Question, solved: Solved) -> bool:
    """Whether what runs, limits aside, serves more than what was found; without a solve."""
    program, left = question.program, question.program.needs.copy()
    if program.extras.covers or not solved.unmet.any():
        return False
    for (b, row), count in _trimmed(question).items():
        family = program.families[program.blocks[b].family]
        left[family.service] -= count * family.cover[row]
    return serves_more(program, np.maximum(left, 0.0), solved.unmet)


def serves_more(program: Program, unmet: Floats, than: Floats) -> bool:
    """By the order of the steps."""
    for step in program.steps:
        ours, theirs = (float(unmet_by_step(program, step, shares)) for shares in (unmet, than))
        if step == "cost" or abs(ours - theirs) > ROUNDING:
            return step != "cost" and ours < theirs
    return False


def unmet_by_step(program: Program, step: Step, unmet: Floats) -> float:
    """What `worst` or `total` measures, of unmet shares ([S])."""
    weighed = program.weight * unmet
    return float(weighed.max(initial=0.0) if step == "worst" else weighed.sum())


def _proof(program: Program, running: Solved, proof: Proof) -> Proof:
    """What the search proved, of the running plan."""
    if proof.step == "cost":
        value, aside = running.value, aside_of(program, running.extras)
    else:
        value, aside = unmet_by_step(program, proof.step, running.unmet), 0.0
    return Proof(proof.step, value, min(proof.bound, value), aside)
