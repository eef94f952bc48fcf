"""A plan as `coral plan --json` writes it: the figures first, then the whole question and answer.

So a plan can be compared, explained and continued from without anything that it was made from but, for an
explanation, its library.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from schemas.base import Count, Frozen, Rate
from schemas.catalog import Runtime
from schemas.faults import FileError
from schemas.marked import Marked
from schemas.problems import Answer, Chosen, Problem, Unmet
from schemas.yamlfile import load_yaml
from solver.library import Library
from solver.plan_reasons import Reason, reasons
from solver.verify import verify
from streams.library_view import combination_text


class Limits(Frozen):
    """What the library was built for."""

    setup: str
    """`core`, `extended`, or the path of a file."""
    runtime: Runtime
    n_max: Count
    rho: Rate
    library: str
    """Its digest."""
    templates: Count


class InstanceRow(Frozen):
    """Instances of one template in one pool."""

    service: str
    nodes: str
    """Such as `2 x 1xL4 + 1xL40S`."""
    pool: str
    count: Count
    throughput: Rate
    """Of one: tokens/s, or requests/s for phase `both`."""
    usd_per_hour: Rate
    """Of one."""
    of_best: Rate
    """Throughput per USD as a share of what the service's best template gives, stock aside."""
    why: str
    template: str


class UnmetRow(Frozen):
    """Demand that the stock cannot meet."""

    service: str
    share: Rate
    rate: Rate
    binding: str


class PlanRecord(Frozen):
    """All of it."""

    cost_usd_per_hour: Rate
    """What was minimised: the bill, the start of new instances, and what policies add."""
    bound_usd_per_hour: float
    """No plan that leaves as little demand unmet costs less."""
    gap: Rate
    seconds: Rate
    """Of the solve, by the clock on the wall."""
    processor_seconds: Rate
    bill_usd_per_hour: Rate
    penalty_usd_per_hour: Rate
    unmet: tuple[UnmetRow, ...]
    columns: Count
    """Templates times pools that were chosen from."""
    instances: tuple[InstanceRow, ...]
    unused: tuple[str, ...] = ()
    """Prices that were given for places without stock, and where."""
    limits: Limits
    problem: Problem
    answer: Answer


def record_of(
    setup: str,
    library: Library,
    problem: Problem,
    answer: Answer,
    processor_seconds: float,
    unused: Sequence[str] = (),
) -> PlanRecord:
    """What is written of an answer."""
    return PlanRecord(
        processor_seconds=processor_seconds,
        instances=_instances(answer.chosen, reasons(problem, answer, library)),
        unused=tuple(unused),
        limits=Limits(
            setup=setup,
            runtime=library.inputs.runtime,
            n_max=library.inputs.n_max,
            rho=library.inputs.rho,
            library=library.digest,
            templates=sum(len(shelf) for shelf in library.parts.values()),
        ),
        problem=problem,
        answer=answer,
        **_figures(answer),
    )


def faults_of(record: PlanRecord, library: Library | None = None) -> Iterator[str]:
    """What of a plan breaks its question, or is told otherwise at its top than in its answer.

    Args:
        library: that it was chosen from; without it ratings are taken on trust.
    """
    for violation in verify(record.problem, record.answer, None if library is None else library.throughput):
        yield f"{violation.name}: {violation.detail}"
    for name, figure in _figures(record.answer).items():
        if getattr(record, name) != figure:
            yield f"{name}: {getattr(record, name)}, the answer has {figure}"
    told = record.instances
    rows = _instances(record.answer.chosen, [Reason(0.0, "")] * len(record.answer.chosen))
    if len(told) != len(rows):
        yield f"instances: {len(told)} of them, the answer has {len(rows)}"
        return
    for i, (row, own) in enumerate(zip(told, rows, strict=True)):
        for name in sorted(InstanceRow.model_fields.keys() - Reason._fields):
            if getattr(row, name) != getattr(own, name):
                yield f"instances.{i}.{name}: {getattr(row, name)}, the answer has {getattr(own, name)}"


def read_record(path: Path) -> PlanRecord:
    """Read a plan.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is something else, or a plan with a field that cannot be; the file is named.
    """
    if not is_record(path):
        raise ValueError(f"{path}: no plan, expected a file that `coral plan -o` wrote")
    return load_yaml(PlanRecord, path)


def is_record(path: Path) -> bool:
    """Whether a file is meant for a plan.

    Raises:
        OSError: it cannot be read.
        FileError: it is no YAML of keys and values.
    """
    marked = Marked(path)
    content = marked.content(path) or {}
    if marked.faults:
        raise FileError(marked.faults)
    return {"problem", "answer"} <= content.keys()


def _figures(answer: Answer) -> dict[str, Any]:
    """What a plan repeats of its answer, so that nobody has to look there."""
    return {
        "cost_usd_per_hour": answer.value,
        "bound_usd_per_hour": answer.bound_usd_per_hour,
        "gap": answer.gap,
        "seconds": answer.seconds,
        "bill_usd_per_hour": answer.usd_per_hour,
        "penalty_usd_per_hour": answer.penalty_usd_per_hour,
        "unmet": _unmet(answer.unmet),
        "columns": answer.columns,
    }


def _instances(chosen: Sequence[Chosen], why: Sequence[Reason]) -> tuple[InstanceRow, ...]:
    """By service, the largest share of the bill first."""
    rows = [
        InstanceRow(
            service=c.service.key,
            nodes=combination_text(c.template.nodes),
            pool=c.pool.key,
            count=c.count,
            throughput=c.rating.throughput,
            usd_per_hour=c.usd_per_hour,
            of_best=reason.of_best,
            why=reason.why,
            template=c.template.id,
        )
        for c, reason in zip(chosen, why, strict=True)
    ]
    return tuple(sorted(rows, key=lambda r: (r.service, -r.count * r.usd_per_hour, r.template, r.pool)))


def _unmet(unmet: Sequence[Unmet]) -> tuple[UnmetRow, ...]:
    return tuple(
        UnmetRow(service=u.service.key, share=u.share, rate=u.rate, binding=u.binding) for u in unmet
    )
