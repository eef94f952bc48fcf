"""From one plan to the next: what stays, starts, stops and moves, and what of the question made it so.

The second question is held against the first plan: what that one would cost at the prices there are now, what
it would leave unmet of the demand there is now, which of its nodes are no longer to be had.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from schemas.problems import Answer, Problem
from solver.plan_reasons import nodes_used
from solver.verify_parts import SHARE, Key, covered, key_of


class Moves(NamedTuple):
    """Instances of one template in one pool, from one plan to the next."""

    stay: int
    start: int
    stop: int
    move_in: int
    """A start here that is a stop in another pool."""
    move_out: int
    """The stop that belongs to it."""


class Held(NamedTuple):
    """A plan under another question than its own."""

    bill_usd_per_hour: float
    """Its nodes at that question's prices; at its own where that one has none."""
    unmet: dict[str, float]
    """Service key -> share of that question's demand that it leaves unmet, where it does."""
    lacking: dict[tuple[str, str], int]
    """(pool key, configuration) -> nodes that it has and that question does not, or excludes."""

    @property
    def does(self) -> bool:
        """Whether it could simply go on, as far as demand and stock go."""
        return not self.unmet and not self.lacking


def moves(first: Answer, second: Answer) -> dict[Key, Moves]:
    """By service, template and pool, everything that either plan has."""
    was = Counter({key_of(chosen): chosen.count for chosen in first.chosen})
    now = Counter({key_of(chosen): chosen.count for chosen in second.chosen})
    starts, stops = now - was, was - now
    new, gone = _by_template(starts), _by_template(stops)
    to_come, to_leave = new & gone, new & gone
    found = {}
    for key in sorted(was.keys() | now.keys()):
        come, leave = min(starts[key], to_come[key[:2]]), min(stops[key], to_leave[key[:2]])
        to_come[key[:2]] -= come
        to_leave[key[:2]] -= leave
        found[key] = Moves(min(was[key], now[key]), starts[key] - come, stops[key] - leave, come, leave)
    return found


def held(problem: Problem, own: Problem, answer: Answer) -> Held:
    """An answer under a question.

    Args:
        problem: the question.
        own: the one that it answers.
    """
    used = nodes_used(own, answer)
    price, was = _prices(problem), _prices(own)
    dearer = sum(nodes * (price.get(place, was[place]) - was[place]) for place, nodes in used.items())
    out = problem.excluded_configurations
    stock = {(s.pool.key, s.configuration): s.nodes for s in problem.stocks if s.configuration not in out}
    lacking = {place: nodes - stock.get(place, 0) for place, nodes in sorted(used.items())}
    return Held(
        bill_usd_per_hour=answer.usd_per_hour + dearer,
        unmet=dict(_unmet(problem, own, answer)),
        lacking={place: nodes for place, nodes in lacking.items() if nodes > 0},
    )


def _unmet(problem: Problem, own: Problem, answer: Answer) -> Iterator[tuple[str, float]]:
    rates = {demand.service.key: demand.rate for demand in own.demands}
    for demand in problem.demands:
        if demand.rate > 0:
            service = demand.service
            pairs = sum(a.share for a in answer.apart if a.service == service) * rates.get(service.key, 0.0)
            share = 1 - covered(problem, answer, service, demand.rate) - pairs / demand.rate
            if share > SHARE:
                yield service.key, share


def _prices(problem: Problem) -> Mapping[tuple[str, str], float]:
    return {(s.pool.key, s.configuration): s.usd_per_hour for s in problem.stocks}


def _by_template(counts: Counter[Key]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for (service, template, _), count in counts.items():
        found[service, template] += count
    return found
