"""Programs that couple by more than stock: the relaxation's bound, and an integer program over few columns.

With the relaxation's prices no column that did not enter has a negative reduced cost, and using one at least
once costs at least that much more than the relaxation's value. So a plan better than the one at hand has none
above the difference.
"""

from dataclasses import replace

import numpy as np

from solver.column_lp import Relaxed, relax
from solver.existing import Existing, existing
from solver.partials import solved_of
from solver.program import Ends, Finish, Floats, Ints, Partial, Picked, Program, Solved, Step, pick

FIRST, MOST = 400, 1000
"""Columns of the first integer program beside the relaxation's own, and of the last."""
GAP = 0.999e-3
DEAR = 100.0
SHARE = 1e-6


def solve_coupled(program: Program, finish: Finish) -> Solved:
    """The steps that are needed, one after the other; without proofs if no plan was found."""
    columns = existing(program)
    steps: list[tuple[Step, Partial]] = []
    needs, none = program.needs, np.zeros(len(program.services))
    cost = columns.costs()
    dear = np.full(len(needs), DEAR * (1 + float((cost / columns.cover).max(initial=0.0))))
    relaxed = relax(columns, cost, dear, needs)
    if relaxed.unmet.sum() <= SHARE and (found := _step(columns, "cost", Ends(0.0, 0.0), finish, none)):
        return _solved(program, found[0], [("cost", found[1])], found[2])
    ends, picked, last = Ends(), pick(program, [], []), relaxed
    for step in program.steps:
        spare = np.minimum(needs, ends.worst / program.weight)
        found = _step(columns, step, ends, finish, spare)
        if found is None:
            break
        picked, partial, last = found
        steps.append((step, partial))
        ends = ends if step == "cost" else ends._replace(**{step: partial.value})
    return _solved(program, picked, steps, last)


def _step(
    columns: Existing, step: Step, ends: Ends, finish: Finish, spare: Floats
) -> tuple[Picked, Partial, Relaxed] | None:
    """One step: its columns, what was found over them, and the relaxation; None where there is no plan."""
    program = columns.program
    cost = columns.costs() if step == "cost" else np.zeros(len(columns))
    weight = program.weight
    dear = weight / len(weight) if step == "worst" else weight if step == "total" else np.zeros(len(weight))
    relaxed = relax(columns, cost, dear, spare, priced=step == "cost")
    red = cost + columns.drawn(relaxed.row_price) - relaxed.service_price[columns.service] * columns.cover
    red[relaxed.columns] = np.minimum(red[relaxed.columns], 0.0)
    base = relaxed.value if relaxed.whole else -np.inf
    picked, _ = _pick(columns, red, FIRST + len(relaxed.columns), np.inf)
    first = finish(program, picked, step, ends, np.inf)
    if first is None and len(picked) >= len(columns):
        return None
    if first is None or not np.isfinite(first.value):
        picked, rest = _pick(columns, red, MOST, np.inf)
        first = finish(program, picked, step, ends, np.inf)
        if first is None or not np.isfinite(first.value):
            return None
    enough = first.value * (1 - GAP) if step == "cost" else first.value - GAP
    if base >= enough:
        return picked, replace(first, bound=min(first.value, base)), relaxed
    wider, rest = _pick(columns, red, MOST, enough - base)
    if len(wider) == 0:
        return picked, replace(first, bound=max(base, min(first.value, base + rest))), relaxed
    second = finish(program, wider, step, ends, enough)
    left = enough if second is None else second.bound
    bound = max(base, min(left, base + rest))
    if second is None or not np.isfinite(second.value) or second.value >= first.value:
        return picked, replace(first, bound=min(first.value, bound)), relaxed
    return wider, replace(second, bound=min(second.value, bound)), relaxed


def _pick(columns: Existing, red: Floats, most: int, reach: float) -> tuple[Picked, float]:
    """The columns of least reduced cost within reach, all that run, and the least that was left out."""
    program = columns.program
    within = np.flatnonzero(red <= reach)
    if len(within) > most:
        within = within[np.argpartition(red[within], most - 1)[:most]]
    out = red.copy()
    out[within] = np.inf
    block: Ints = np.append(columns.block[within], [s.block for s in program.specials]).astype(np.int64)
    row: Ints = np.append(columns.row[within], [s.row for s in program.specials]).astype(np.int64)
    return pick(program, block, row), float(out.min(initial=np.inf))


def _solved(program: Program, picked: Picked, steps: list[tuple[Step, Partial]], last: Relaxed) -> Solved:
    solved = solved_of(program, picked, steps)
    return replace(solved, row_price=last.row_price, service_price=last.service_price)
