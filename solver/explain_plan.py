"""What another question would have cost: a plan explained by solving its neighbours.

Without a place that it uses, with one more node of a kind, with simpler templates only. Shadow prices say
what the relaxation thinks of one more; here it is there to be bought and the plan made anew. Both plans are
within their gaps, so a change of cost is told with what is proven of it.
"""

import math
from collections.abc import Callable
from typing import Literal, get_args

from schemas.base import Count, Frozen, Name, Rate
from schemas.problems import Answer, Problem, Stock
from solver.library import Library
from solver.plan_reasons import nodes_used
from solver.simpler import Templates, alike, is_alike

Solve = Callable[[Problem, Library], Answer | None]
"""None where no plan was found that keeps all limits."""
Where = tuple[str, str]
"""Pool key, configuration."""
Scarcity = Literal["worst-first", "most-met"]
"""`schemas.allocation.AllocationPolicy.scarcity`."""
ALTERNATIVES = 6
"""Places to do without: those that the relaxation values least, price and shadow price of the nodes in use
together, since the next cheapest plan is most likely without one of these. The dearest take longest to do
without, and are missed most."""
BINDING = 3
"""Of the places that bind most, one more is bought too."""
SAME = 1e-6
"""Of a share, or of USD: rounding."""


class Outcome(Frozen):
    """What a plan comes to."""

    usd_per_hour: Rate
    """The bill, starts, what policies add."""
    bound_usd_per_hour: float
    breach_usd_per_hour: Rate = 0.0
    """What it is short of policies weighs beside (`AllocationPolicy.breach_usd_per_hour`)."""
    worst_unmet: Rate
    """The largest unmet share of a service, by weight."""
    total_unmet: Rate
    """The sum of the shares, by weight."""

    @property
    def minimised(self) -> float:
        """Cost and breaches together."""
        return self.usd_per_hour + self.breach_usd_per_hour

    @property
    def least(self) -> float:
        """No plan that meets as much has less of both together."""
        bound = self.bound_usd_per_hour
        return bound + self.breach_usd_per_hour if bound > 0 else 0.0  # a bound of 0 may be one below


class Change(Frozen):
    """From a plan's cost to a neighbour's, USD per hour, breaches at their weight: as found, and between what
    it surely lies."""

    found: float
    at_least: float
    at_most: float


class Neighbour(Frozen):
    """The best plan under another question."""

    outcome: Outcome | None
    """None where none was found that keeps all limits."""
    change: Change | None
    """None where not as much of the demand is met in both."""


class Alternative(Neighbour):
    """The best plan without a place that this one uses."""

    pool: str
    configuration: Name
    nodes: Count
    """That this plan uses there."""


class OneMore(Neighbour):
    """The best plan with one more node to be had."""

    pool: str
    configuration: Name
    usd_per_hour: Rate
    """Of the node."""
    shadow_usd_per_hour: Rate
    """What the relaxation says it is worth, beyond its price."""


class Simpler(Neighbour):
    """The best plan of simpler templates."""

    templates: Templates


class PlanExplanation(Frozen):
    """A plan among its neighbours."""

    plan: Outcome
    places: Count
    """That the plan uses; `alternatives` has each of those that were tried."""
    alternatives: tuple[Alternative, ...]
    """The next best first."""
    asked: str
    """The configuration of which one more is tried wherever it is sold; empty if nothing is sold."""
    one_more: tuple[OneMore, ...]
    """What helps most first."""
    simpler: tuple[Simpler, ...]


def explain_plan(
    problem: Problem,
    answer: Answer,
    library: Library,
    solve: Solve,
    one_more: str | None = None,
    most: int = ALTERNATIVES,
) -> PlanExplanation:
    """Solve the neighbours of a question.

    Args:
        one_more: the configuration of which to buy one more, wherever it is sold; None takes
            `dearest_gpu`.
        most: places to do without, each in a plan of its own.

    Raises:
        ValueError: nobody sells that configuration.
    """
    asked = one_more or dearest_gpu(problem, library)
    return PlanExplanation(
        plan=outcome_of(problem, answer),
        places=len(nodes_used(problem, answer)),
        alternatives=_alternatives(problem, answer, library, solve, most),
        asked=asked,
        one_more=_one_more(problem, answer, library, solve, asked),
        simpler=_simpler(problem, answer, library, solve),
    )


def outcome_of(problem: Problem, answer: Answer) -> Outcome:
    """What an answer to a problem comes to."""
    shares = [problem.policy.weight(unmet.service.model) * unmet.share for unmet in answer.unmet]
    missing = sum(b.asked - b.got for b in answer.breaches if b.policy != "pinned")
    return Outcome(
        usd_per_hour=answer.value,
        bound_usd_per_hour=answer.bound_usd_per_hour,
        breach_usd_per_hour=problem.policy.breach_usd_per_hour * missing,
        worst_unmet=max(shares, default=0.0),
        total_unmet=sum(shares),
    )


def merit(outcome: Outcome | None, scarcity: Scarcity = "worst-first") -> tuple[float, float, float]:
    """Better plans have less: the order of what is minimised, rounding left out. No plan is worst."""
    if outcome is None:
        return math.inf, math.inf, math.inf
    worst, total = (round(share / SAME) * SAME for share in (outcome.worst_unmet, outcome.total_unmet))
    first, then = (worst, total) if scarcity == "worst-first" else (total, worst)
    return first, then, outcome.minimised


def change(
    here: Outcome, there: Outcome | None, least: float = -math.inf, most: float = math.inf
) -> Change | None:
    """Of cost, from one plan to another that meets as much.

    Args:
        least, most: between which it is for sure, whatever was found: without a place no plan is cheaper,
            with a node more none is dearer. What was found may be by as much as the gaps are wide.
    """
    if there is None or merit(here)[:2] != merit(there)[:2]:
        return None
    return Change(
        found=min(most, max(least, there.minimised - here.minimised)),
        at_least=max(least, there.least - here.minimised),
        at_most=min(most, there.minimised - here.least),
    )


def dearest_gpu(problem: Problem, library: Library) -> str:
    """The smallest node that is sold of the kind of GPU that costs most; empty if nothing is sold."""
    known = {node.name: node for node in library.inputs.configurations}
    kinds: dict[str, list[tuple[int, str]]] = {}
    usd: dict[str, float] = {}
    for stock in problem.stocks:
        node = known.get(stock.configuration)
        if node is not None and node.name not in problem.excluded_configurations:
            kinds.setdefault(node.gpu, []).append((node.gpus, node.name))
            usd[node.gpu] = min(usd.get(node.gpu, math.inf), stock.usd_per_hour / node.gpus)
    return min(kinds[max(usd, key=lambda gpu: (usd[gpu], gpu))])[1] if usd else ""


# ---------------------------------------------------------------------------------------------- neighbours


def _alternatives(
    problem: Problem, answer: Answer, library: Library, solve: Solve, most: int
) -> tuple[Alternative, ...]:
    here, used = outcome_of(problem, answer), nodes_used(problem, answer)
    shadow = _shadow_prices(problem, answer)
    value = {_place(s): s.usd_per_hour + shadow[_place(s)] for s in problem.stocks}
    least = sorted(used, key=lambda place: (used[place] * value[place], place))
    found = []
    for pool, name in least[:most]:
        there = _outcome(solve, _with_nodes(problem, (pool, name), 0), library)
        nodes, by = used[pool, name], change(here, there, least=0.0)
        found.append(Alternative(pool=pool, configuration=name, nodes=nodes, outcome=there, change=by))
    return tuple(sorted(found, key=lambda a: merit(a.outcome, problem.policy.scarcity)))


def _one_more(
    problem: Problem, answer: Answer, library: Library, solve: Solve, configuration: str
) -> tuple[OneMore, ...]:
    worth, order = _shadow_prices(problem, answer), problem.policy.scarcity
    asked = [place for place in worth if place[1] == configuration]
    if configuration and not asked:
        sold = ", ".join(sorted({name for _, name in worth})) or "none"
        raise ValueError(f"--one-more: {configuration!r} is sold nowhere, expected one of {sold}")
    binding = sorted((p for p in worth if worth[p] > 0), key=lambda p: (-worth[p], p))[:BINDING]
    here, found = outcome_of(problem, answer), []
    for stock in problem.stocks:
        if (place := _place(stock)) not in {*asked, *binding}:
            continue
        there = _outcome(solve, _with_nodes(problem, place, stock.nodes + 1), library)
        if there is not None and merit(there, order) > merit(here, order):
            # Within the gap: what is there already can go on without the node.
            bound = max(0.0, min(here.least, there.least) - here.breach_usd_per_hour)
            there = here.model_copy(update={"bound_usd_per_hour": bound})
        found.append(
            OneMore(
                pool=stock.pool.key,
                configuration=stock.configuration,
                usd_per_hour=stock.usd_per_hour,
                shadow_usd_per_hour=worth[place],
                outcome=there,
                change=change(here, there, most=0.0),
            )
        )
    return tuple(
        sorted(found, key=lambda o: (merit(o.outcome, order), o.usd_per_hour, o.pool, o.configuration))
    )


def _simpler(problem: Problem, answer: Answer, library: Library, solve: Solve) -> tuple[Simpler, ...]:
    here, found = outcome_of(problem, answer), []
    for templates in get_args(Templates):
        few = alike(library, templates)
        running = tuple(run for run in problem.running if is_alike(library, run, templates))
        asked = problem.model_copy(update={"library": few.digest, "running": running})
        there = _outcome(solve, asked, few)
        found.append(Simpler(templates=templates, outcome=there, change=change(here, there)))
    return tuple(found)


# ------------------------------------------------------------------------------------------------- helpers


def _outcome(solve: Solve, problem: Problem, library: Library) -> Outcome | None:
    answer = solve(problem, library)
    return None if answer is None else outcome_of(problem, answer)


def _shadow_prices(problem: Problem, answer: Answer) -> dict[Where, float]:
    """What the relaxation says one more node of each place is worth beyond its price, USD per hour."""
    binding = {limit.limit: limit.usd_per_hour for limit in answer.binding}
    return {
        _place(s): binding.get(f"stock of {s.configuration} in {s.pool.key}", 0.0) for s in problem.stocks
    }


def _with_nodes(problem: Problem, place: Where, nodes: int) -> Problem:
    """The same with so many nodes in a place."""
    stocks = (s.model_copy(update={"nodes": nodes}) if _place(s) == place else s for s in problem.stocks)
    return problem.model_copy(update={"stocks": tuple(stocks)})


def _place(stock: Stock) -> Where:
    return stock.pool.key, stock.configuration
