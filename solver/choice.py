"""One plan for each service: branch and bound over listed plans.

At the prices of rows each plan costs so much more than its service's cheapest one (its slack), and no choice
costs less than the bound and its plans' slacks. So services take plans in turn, the one first that would lose
most by its second best; a branch ends where the slacks, with the least that the others need of plans that
still fit, reach the cutoff. Many listed plans are never looked at: they stand in order of slack.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from solver.compiled import compiled
from solver.program import Floats, Ints


class Plans(NamedTuple):
    """Plans by service, each's by rising slack; n of them."""

    use: Ints
    """[n, R]."""
    slack: Floats
    objective: Floats
    """Without what rows cost."""
    unmet: Floats
    """By weight."""
    begin: Ints
    """[S + 1]."""


class Chosen(NamedTuple):
    """A choice, or that there is none."""

    chosen: Ints
    """[S]: plans."""
    value: float
    """Infinite without a choice."""
    bound: float
    """No choice has less."""


Decide = Callable[[Plans, Ints, float, float], Chosen]
"""The integer program over plans: (plans, stock, most unmet, cutoff) -> the best choice below the cutoff.
`solver.allocation` has it in Pyomo."""


@compiled
def choose(
    plans: Plans, right: Ints, total: float, bound: float, cutoff: float, relative: float, absolute: float,
    first: bool, work: int, chosen: Ints,
) -> tuple[float, int]:  # fmt: skip
    """The choice of least objective below the cutoff, into `chosen` ([S]).

    Args:
        total: the most that is left unmet by all together.
        bound: what no choice is below.
        relative, absolute: once there is a choice, others have to be better by so much.
        first: stop at the first choice.
        work: places to look at, at most.

    Returns:
        The objective, infinite without a choice; and how much of the work is left: none, if it ended the
        search.
    """
    services, rows = len(plans.begin) - 1, plans.use.shape[1]
    left, unmet = right.copy(), np.zeros(services + 1)
    here = np.full(services, -1, np.int64)
    order, at = np.full(services, -1, np.int64), np.zeros(services, np.int64)
    paid, spent, others = np.zeros(services + 1), np.zeros(services + 1), np.zeros(services)
    best, depth, limit = np.inf, 0, cutoff - bound
    descending = True
    while depth >= 0:
        if descending:
            work -= 1
            order[depth], others[depth] = _next(plans, left, here, limit - paid[depth])
            at[depth] = plans.begin[order[depth]] if order[depth] >= 0 else 0
            descending = False
        service, found = order[depth], -1
        if service >= 0 and work > 0:
            for p in range(at[depth], plans.begin[service + 1]):
                if paid[depth] + plans.slack[p] + others[depth] >= limit:
                    break
                if unmet[depth] + plans.unmet[p] <= total and _fits(plans, p, left):
                    found = p
                    break
        if found < 0:
            depth -= 1
            if depth >= 0:
                for row in range(rows):
                    left[row] += plans.use[here[order[depth]], row]
                here[order[depth]] = -1
            continue
        at[depth], here[service] = found + 1, found
        cost = spent[depth] + plans.objective[found]
        if depth == services - 1:
            here[service] = -1
            if cost < best and cost < limit + bound:
                best = cost
                chosen[:] = here
                chosen[service] = found
                limit = min(limit, best - bound - max(relative * abs(best), absolute))
                if first:
                    return best, work
            continue
        for row in range(rows):
            left[row] -= plans.use[found, row]
        paid[depth + 1], spent[depth + 1] = paid[depth] + plans.slack[found], cost
        unmet[depth + 1] = unmet[depth] + plans.unmet[found]
        depth += 1
        descending = True
    return best, max(0, work)


@compiled
def _fits(plans: Plans, p: int, left: Ints) -> bool:
    for row in range(len(left)):
        if plans.use[p, row] > left[row]:
            return False
    return True


@compiled
def _next(plans: Plans, left: Ints, here: Ints, budget: float) -> tuple[int, float]:
    """The service that loses most by its second best plan of those that fit, and what the others need at
    least; -1 if some service has none, or all together are over the budget."""
    total, worst, service, least_of_it = 0.0, -1.0, -1, 0.0
    for s in range(len(here)):
        if here[s] >= 0:
            continue
        least, second = np.inf, budget
        for p in range(plans.begin[s], plans.begin[s + 1]):
            if total + plans.slack[p] >= budget:
                break
            if _fits(plans, p, left):
                if least == np.inf:
                    least = plans.slack[p]
                else:
                    second = plans.slack[p]
                    break
        if least == np.inf:
            return -1, np.inf
        total += least
        if second - least > worst:
            worst, service, least_of_it = second - least, s, least
    return service, total - least_of_it
