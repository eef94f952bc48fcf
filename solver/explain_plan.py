"""What another question would have cost: a plan explained by solving its neighbours.

Without a place that it uses, with one more node of a kind, with simpler templates only. Shadow prices say
what the relaxation thinks of one more; here it is bought and the plan made anew.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

from schemas.base import Count, Frozen, Name, Rate
from schemas.problems import Answer, Problem, Running, Stock
from solver.kept import Kept
from solver.library import ARRAYS, Header, Library
from solver.plan_reasons import nodes_used

Solve = Callable[[Problem, Library], Answer]
Templates = Literal["single nodes", "nodes of one kind"]
Where = tuple[str, str]
"""Pool key, configuration."""
ALTERNATIVES = 12
"""Places to do without: those that most of the bill goes to."""
BINDING = 3
"""Of the places that bind most, one more is bought too."""
SAME = 1e-6
"""Of a share, or of USD: rounding."""


class Outcome(Frozen):
    """What a plan comes to."""

    usd_per_hour: Rate
    """As it was minimised: the bill, starts, policies."""
    bound_usd_per_hour: float
    worst_unmet: Rate
    """The largest unmet share of a service."""
    total_unmet: Rate
    """The sum of the shares."""


class Alternative(Frozen):
    """The best plan without a place that this one uses."""

    pool: str
    configuration: Name
    nodes: Count
    """That this plan uses there."""
    outcome: Outcome


class OneMore(Frozen):
    """The best plan with one more node."""

    pool: str
    configuration: Name
    usd_per_hour: Rate
    """Of the node."""
    shadow_usd_per_hour: Rate
    """What the relaxation says it is worth, beyond its price."""
    outcome: Outcome


class Simpler(Frozen):
    """The best plan of simpler templates; None where none is left."""

    templates: Templates
    outcome: Outcome


class PlanExplanation(Frozen):
    """A plan among its neighbours."""

    plan: Outcome
    alternatives: tuple[Alternative, ...]
    """The next best first."""
    one_more: tuple[OneMore, ...]
    """What helps most first."""
    simpler: tuple[Simpler, ...]


def explain_plan(
    problem: Problem, answer: Answer, library: Library, solve: Solve, one_more: str | None = None
) -> PlanExplanation:
    """Solve the neighbours of a question.

    Args:
        one_more: the configuration of which to buy one more, wherever it is sold; None takes
            `dearest_gpu`.

    Raises:
        ValueError: nobody sells that configuration.
    """
    return PlanExplanation(
        plan=outcome_of(answer),
        alternatives=_alternatives(problem, answer, library, solve),
        one_more=_one_more(problem, answer, library, solve, one_more or dearest_gpu(problem, library)),
        simpler=_simpler(problem, library, solve),
    )


def outcome_of(answer: Answer) -> Outcome:
    shares = [unmet.share for unmet in answer.unmet]
    return Outcome(
        usd_per_hour=answer.value,
        bound_usd_per_hour=answer.bound_usd_per_hour,
        worst_unmet=max(shares, default=0.0),
        total_unmet=sum(shares),
    )


def merit(outcome: Outcome) -> tuple[float, float, float]:
    """Better plans have less: the order of what is minimised, rounding left out."""
    return (
        round(outcome.worst_unmet / SAME) * SAME,
        round(outcome.total_unmet / SAME) * SAME,
        outcome.usd_per_hour,
    )


def dearest_gpu(problem: Problem, library: Library) -> str:
    """The smallest node that is sold of the kind of GPU that costs most; empty if nothing is sold."""
    known = {node.name: node for node in library.inputs.configurations}
    kinds: dict[str, list[tuple[int, str]]] = {}
    usd: dict[str, float] = {}
    for stock in problem.stocks:
        if (node := known.get(stock.configuration)) is not None:
            kinds.setdefault(node.gpu, []).append((node.gpus, node.name))
            usd[node.gpu] = min(usd.get(node.gpu, math.inf), stock.usd_per_hour / node.gpus)
    return min(kinds[max(usd, key=lambda gpu: (usd[gpu], gpu))])[1] if usd else ""


def alike(library: Library, templates: Templates) -> Library:
    """The templates on one node, or on nodes of one configuration. The parts of such a combination are such
    ones, so the pruning lost nothing here either."""
    arrays = tuple(_rows(kept, templates) for kept in library.arrays)
    parts = tuple(
        part.model_copy(update={"kept": len(kept)})
        for part, kept in zip(library.header.parts, arrays, strict=True)
    )
    return Library(Header(inputs=library.inputs, parts=parts), arrays, library.figures)


# ---------------------------------------------------------------------------------------------- neighbours


def _alternatives(
    problem: Problem, answer: Answer, library: Library, solve: Solve
) -> tuple[Alternative, ...]:
    used = nodes_used(problem, answer)
    price = {_place(stock): stock.usd_per_hour for stock in problem.stocks}
    dearest = sorted(used, key=lambda place: (-used[place] * price[place], place))
    found = [
        Alternative(
            pool=pool,
            configuration=name,
            nodes=used[pool, name],
            outcome=outcome_of(solve(_with_nodes(problem, (pool, name), 0), library)),
        )
        for pool, name in dearest[:ALTERNATIVES]
    ]
    return tuple(sorted(found, key=lambda a: merit(a.outcome)))


def _one_more(
    problem: Problem, answer: Answer, library: Library, solve: Solve, configuration: str
) -> tuple[OneMore, ...]:
    shadow = {binding.limit: binding.usd_per_hour for binding in answer.binding}
    worth = {
        _place(s): shadow.get(f"stock of {s.configuration} in {s.pool.key}", 0.0) for s in problem.stocks
    }
    asked = [place for place in worth if place[1] == configuration]
    if configuration and not asked:
        raise ValueError(
            f"--one-more: {configuration!r} is sold nowhere, expected one of {', '.join(_sold(problem))}"
        )
    binding = sorted((p for p in worth if worth[p] > 0), key=lambda p: (-worth[p], p))[:BINDING]
    found = []
    for stock in problem.stocks:
        if (place := _place(stock)) not in {*asked, *binding}:
            continue
        found.append(
            OneMore(
                pool=stock.pool.key,
                configuration=stock.configuration,
                usd_per_hour=stock.usd_per_hour,
                shadow_usd_per_hour=worth[place],
                outcome=outcome_of(solve(_with_nodes(problem, place, stock.nodes + 1), library)),
            )
        )
    return tuple(sorted(found, key=lambda o: (merit(o.outcome), o.pool, o.configuration)))


def _simpler(problem: Problem, library: Library, solve: Solve) -> tuple[Simpler, ...]:
    found = []
    for templates in get_args(Templates):
        few = alike(library, templates)
        running = tuple(run for run in problem.running if _is_alike(run, templates))
        asked = problem.model_copy(update={"library": few.digest, "running": running})
        found.append(Simpler(templates=templates, outcome=outcome_of(solve(asked, few))))
    return tuple(found)


# ------------------------------------------------------------------------------------------------- helpers


def _rows(kept: Kept, templates: Templates) -> Kept:
    nodes = kept.combination
    rows = (nodes == nodes[:, :1]) | (nodes < 0)
    if templates == "single nodes":
        rows[:, 1:] &= nodes[:, 1:] < 0
    wanted = rows.all(axis=1)
    return replace(kept, **{name: getattr(kept, name)[wanted] for name in ARRAYS})


def _is_alike(run: Running, templates: Templates) -> bool:
    nodes = run.template.nodes
    return len(nodes) == 1 if templates == "single nodes" else len(set(nodes)) == 1


def _with_nodes(problem: Problem, place: Where, nodes: int) -> Problem:
    """The same with so many nodes in a place."""
    stocks = (s.model_copy(update={"nodes": nodes}) if _place(s) == place else s for s in problem.stocks)
    return problem.model_copy(update={"stocks": tuple(stocks)})


def _place(stock: Stock) -> Where:
    return stock.pool.key, stock.configuration


def _sold(problem: Problem) -> list[str]:
    return sorted({stock.configuration for stock in problem.stocks})
