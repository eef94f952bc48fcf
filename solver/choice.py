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


class Limits(NamedTuple):
    """What a search looks for, and how long."""

    total: float = np.inf
    """The most that is left unmet by all together."""
    relative: float = 0.0
    """Once there is a choice, others have to be better by this share of it, and"""
    absolute: float = 0.0
    """by so much."""
    first: bool = False
    """Whether the first choice will do."""
    work: int = 10_000_000
    """Plans to look at, at most."""


class _Branch(NamedTuple):
    """Where a search stands, by depth but for `here`."""

    order: Ints
    """The service that takes a plan here; -1 if one of those to come has none."""
    at: Ints
    """The plan that it tries next."""
    others: Floats
    """Slack that the services to come need at least."""
    paid: Floats
    """Slack of those before."""
    spent: Floats
    """Their objective."""
    unmet: Floats
    here: Ints
    """[S]: the plan of each service, -1 for none."""
    left: Ints
    """[R]."""


@compiled
def choose(
    plans: Plans, right: Ints, bound: float, cutoff: float, limits: Limits, chosen: Ints
) -> tuple[float, int]:
    """The choice of least objective below the cutoff, into `chosen` ([S]).

    Args:
        bound: what no choice is below, by the prices that the slacks are of.

    Returns:
        The objective, infinite without a choice; and how much of the work is left: none, if it ended the
        search.
    """
    last, best, room, work = len(chosen) - 1, np.inf, cutoff - bound, limits.work
    branch = _start(right, len(chosen))
    work -= _turn(plans, branch, 0, room)
    depth = 0
    while depth >= 0 and work > 0:
        plan, looked = _next_plan(plans, branch, depth, limits.total, room)
        work -= looked
        if plan < 0:
            depth = _back(plans, branch, depth)
            continue
        objective = branch.spent[depth] + plans.objective[plan]
        if depth < last:
            depth = _descend(plans, branch, depth, plan, objective)
            work -= _turn(plans, branch, depth, room)
        elif objective < best and objective < room + bound:
            best, chosen[:] = objective, branch.here
            chosen[branch.order[depth]] = plan
            room = min(room, best - bound - max(limits.relative * abs(best), limits.absolute))
            if limits.first:
                break
    return best, max(0, work)


@compiled
def _start(right: Ints, services: int) -> _Branch:
    whole, real = np.full((3, services), -1, np.int64), np.zeros((4, services))
    return _Branch(whole[0], whole[1], real[0], real[1], real[2], real[3], whole[2], right.copy())


@compiled
def _turn(plans: Plans, branch: _Branch, depth: int, room: float) -> int:
    """Whose turn it is: the service that loses most by its second best plan of those that fit. Returns how
    many plans were looked at."""
    budget, looked = room - branch.paid[depth], 0
    total, worst, needs = 0.0, -1.0, 0.0
    branch.order[depth] = -1
    for s in range(len(branch.here)):
        if branch.here[s] >= 0:
            continue
        least, second = np.inf, budget
        for p in range(plans.begin[s], plans.begin[s + 1]):
            looked += 1
            if total + plans.slack[p] >= budget:
                break
            if _fits(plans, p, branch.left):
                if least < np.inf:
                    second = plans.slack[p]
                    break
                least = plans.slack[p]
        if least == np.inf:
            branch.order[depth] = -1
            return looked
        total += least
        if second - least > worst:
            worst, needs, branch.order[depth] = second - least, least, s
    branch.others[depth] = total - needs
    branch.at[depth] = plans.begin[branch.order[depth]]
    return looked


@compiled
def _next_plan(plans: Plans, branch: _Branch, depth: int, total: float, room: float) -> tuple[int, int]:
    """The next plan that fits and leaves room for the others, -1 if there is none; and how many were looked
    at."""
    if branch.order[depth] < 0:
        return -1, 1
    begin, end = branch.at[depth], plans.begin[branch.order[depth] + 1]
    for p in range(begin, end):
        if branch.paid[depth] + plans.slack[p] + branch.others[depth] >= room:
            return -1, p + 1 - begin
        if branch.unmet[depth] + plans.unmet[p] <= total and _fits(plans, p, branch.left):
            branch.at[depth] = p + 1
            return p, p + 1 - begin
    return -1, 1 + end - begin


@compiled
def _fits(plans: Plans, p: int, left: Ints) -> bool:
    for row in range(len(left)):  # noqa: SIM110  compiled code has no generators
        if plans.use[p, row] > left[row]:
            return False
    return True


@compiled
def _descend(plans: Plans, branch: _Branch, depth: int, plan: int, objective: float) -> int:
    """Take a plan, and on to the next service."""
    branch.here[branch.order[depth]] = plan
    for row in range(len(branch.left)):
        branch.left[row] -= plans.use[plan, row]
    branch.paid[depth + 1] = branch.paid[depth] + plans.slack[plan]
    branch.unmet[depth + 1] = branch.unmet[depth] + plans.unmet[plan]
    branch.spent[depth + 1] = objective
    return depth + 1


@compiled
def _back(plans: Plans, branch: _Branch, depth: int) -> int:
    """To the service before, which puts its plan back."""
    if depth > 0:
        service = branch.order[depth - 1]
        for row in range(len(branch.left)):
            branch.left[row] += plans.use[branch.here[service], row]
        branch.here[service] = -1
    return depth - 1
