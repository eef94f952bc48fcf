"""From counts of instances to the answer that travels: cost, gap, unmet demand and what stands in its way."""

from schemas.problems import Answer, Chosen, Problem, Unmet
from solver.candidates import Templates
from solver.columns import Columns, startup_ratio

METHOD = "coral"
RELATIVE_GAP = 1e-6
"""An answer within this of its bound is called optimal."""
SHARE_TOLERANCE = 1e-6
"""Unmet demand below this share is HiGHS's rounding. Its rows are scaled to 1, its tolerance is 1e-6."""


def unmet_share(columns: Columns, key: str, counts: tuple[int, ...]) -> float:
    """Share of a service's demand that these counts leave unmet; 0 within rounding."""
    met = sum(counts[i] * columns.columns[i].candidate.throughput for i in columns.of(key))
    share = 1 - met / columns.demand[key]
    return share if share > SHARE_TOLERANCE else 0.0


def make_answer(
    problem: Problem, library: Templates, columns: Columns, counts: tuple[int, ...], bound: float
) -> Answer:
    """The answer of these counts, one a column; `bound` on cost and penalty, USD per hour."""
    chosen, cost, penalty = [], 0.0, 0.0
    for column, count in zip(columns.columns, counts, strict=True):
        new = max(0, count - column.running)
        penalty += new * column.usd_per_hour * startup_ratio(column, columns)
        cost += count * column.usd_per_hour
        if count:
            chosen.append(
                Chosen(
                    template=column.template,
                    rating=column.rating,
                    pool=column.pool,
                    count=count,
                    usd_per_hour=column.usd_per_hour,
                )
            )
    total = cost + penalty
    bound = min(total, max(0.0, bound))
    gap = (total - bound) / total if total > 0 else 0.0
    return Answer(
        problem=problem.id,
        method=METHOD,
        status="optimal" if gap <= 2 * RELATIVE_GAP else "feasible",
        chosen=tuple(chosen),
        unmet=_unmet(library, columns, counts),
        usd_per_hour=cost,
        penalty_usd_per_hour=penalty,
        bound_usd_per_hour=bound,
        gap=gap,
        seconds=0.0,
    )


def _unmet(library: Templates, columns: Columns, counts: tuple[int, ...]) -> tuple[Unmet, ...]:
    found = []
    for key in sorted(columns.demand):
        share = unmet_share(columns, key, counts)
        if share > 0:
            found.append(
                Unmet(
                    service=columns.services[key],
                    rate=share * columns.demand[key],
                    share=share,
                    binding=_binding(library, columns, key, counts),
                )
            )
    return tuple(found)


def _binding(library: Templates, columns: Columns, key: str, counts: tuple[int, ...]) -> str:
    """What stands in the way of one more instance of a service."""
    if not columns.of(key) and key not in library.by_service:
        return _why_no_template(library, key)
    left = dict(columns.nodes)
    for column, count in zip(columns.columns, counts, strict=True):
        for name, nodes in column.uses.items():
            left[column.pool.key, name] -= nodes * count
    short = set(columns.wanted[key])
    for i in columns.of(key):
        column = columns.columns[i]
        short |= {n for n, nodes in column.uses.items() if left[column.pool.key, n] < nodes}
    if not columns.of(key) and not short and not columns.unfit[key]:  # no pool at all
        short = {name for candidate in library.by_service[key] for name in candidate.nodes}
    return _named(columns, short, columns.unfit[key])


def _named(columns: Columns, short: set[str], refused: frozenset[str]) -> str:
    """Both kinds of obstacle in words: stock that is too small, places that refused the model."""
    withheld = {r for (_, name), said in columns.withheld.items() if name in short for r in said}
    parts = [f"stock of {', '.join(sorted(short))}"] if short else []
    if withheld or refused:
        parts.append(f"refused: {', '.join(sorted(withheld | refused))}")
    return "; ".join(parts) or "work limit of the solver"


def _why_no_template(library: Templates, key: str) -> str:
    refused = next((r for r in library.refused if r.service.key == key), None)
    if refused is None:
        return "the library was not built for this service"
    return "no template meets the SLO" if "slo-too-tight" in refused.reasons else "no template fits"
