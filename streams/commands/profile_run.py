"""`coral profile run`: loads on a live endpoint, one after the other, and their figures as a CSV file."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, get_args

from agents.files import make_writable, write_atomically
from agents.lifespan import on_signals
from agents.load import Load, Tally, run
from agents.load_endpoint import EndpointError, Target, connect, figures, prepare, version
from agents.urls import http_url
from schemas.catalog import Catalog, Phase
from solver.profile_csv import write
from solver.shapes import Shape

Row = dict[str, object]
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Subject:
    """What is measured, in the catalog's words."""

    model: str
    variant: str
    """Empty: the model's only one."""
    gpu: str
    tp: int
    pp: int
    phase: str
    engine: str | None
    """None asks the endpoint."""
    source: str


@dataclass(frozen=True)
class Plan:
    """All of a run."""

    subject: Subject
    target: Target
    loads: Sequence[Load]
    key: str | None
    timeout_s: float
    out: Path

    def check(self) -> None:
        """What can be said of the options without a catalog.

        Raises:
            ValueError: the option that is wrong, and what was expected.
        """
        if self.out.exists():
            raise ValueError(f"--out: {self.out} exists, expected a new file")
        if not 0 < len(self.subject.source) <= 200:
            raise ValueError(f"--source: {self.subject.source[:80]!r}, expected 1 to 200 characters")
        above_0("--timeout", self.timeout_s)
        try:
            http_url(self.target.url)
        except ValueError as error:
            raise ValueError(f"--url: {error}") from error
        _among("--phase", self.subject.phase, get_args(Phase))

    def in_words_of(self, catalog: Catalog) -> "Plan":
        """The plan with its variant. All names are checked: what took hours shall not be refused then.

        Raises:
            ValueError: the option that is wrong, and what was expected.
        """
        given = self.subject
        _among("--model", given.model, [model.name for model in catalog.models])
        model = catalog.model(given.model)
        variants = {each.name: each for each in model.variants}
        if not given.variant and len(variants) > 1:
            raise ValueError(f"--variant: none, expected one of {', '.join(variants)}")
        variant = given.variant or next(iter(variants))
        _among("--variant", variant, list(variants))
        _among("--gpu", given.gpu, variants[variant].gpus)
        if not Shape(model.architecture, variants[variant]).splits_into(given.tp):
            raise ValueError(f"--tp: {given.tp}, expected a degree that divides the heads of {model.name}")
        if given.pp > model.architecture.layers:
            most = model.architecture.layers
            raise ValueError(f"--pp: {given.pp}, expected at most the {most} layers of {model.name}")
        return replace(self, subject=replace(given, variant=variant))


# ------------------------------------------------------------------------------------------- what is asked


def _among(option: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise ValueError(f"{option}: {name!r}, expected one of {', '.join(known)}")


def loads(concurrency: str, rate: str, seconds: float, warmup_s: float) -> list[Load]:
    """A closed loop for each of the first numbers, an open one for each of the second.

    Raises:
        ValueError: an option is no list of numbers above 0, both are empty, or a time is none.
    """
    above_0("--seconds", seconds)
    if not (math.isfinite(warmup_s) and warmup_s >= 0):
        raise ValueError(f"--warmup: {warmup_s}, expected a finite number of at least 0")
    closed = [
        Load(concurrency=int(n), per_s=None, seconds=seconds, warmup_s=warmup_s)
        for n in _numbers("--concurrency", concurrency, whole=True)
    ]
    opened = [
        Load(concurrency=None, per_s=n, seconds=seconds, warmup_s=warmup_s)
        for n in _numbers("--rate", rate, whole=False)
    ]
    if not (closed or opened):
        raise ValueError("--concurrency: '', expected at least one load there or in --rate")
    return closed + opened


def above_0(option: str, given: float) -> None:
    """Raises ValueError unless it is a finite number above 0."""
    if not (math.isfinite(given) and given > 0):
        raise ValueError(f"{option}: {given}, expected a finite number above 0")


def _numbers(option: str, given: str, *, whole: bool) -> list[float]:
    numbers = []
    for text in filter(None, (part.strip() for part in given.split(","))):
        number = math.nan
        with suppress(ValueError):
            number = float(text)
        if not (math.isfinite(number) and number > 0 and (number.is_integer() or not whole)):
            kind = "whole numbers" if whole else "numbers"
            raise ValueError(f"{option}: {text!r}, expected {kind} above 0 with commas between them")
        numbers.append(number)
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{option}: {given!r}, expected each number once")
    return numbers


# -------------------------------------------------------------------------------------------------- doing


async def measure(plan: Plan, tell: Callable[[str], None]) -> tuple[list[Row], bool]:
    """The rows of the loads, on disk as soon as each is there, and whether it was told to end.

    What was measured of a load by then counts, if each of its clients was served.

    Raises:
        OSError: the file cannot be written.
        EndpointError: nobody answers there, or not with streams that count their tokens.
    """
    make_writable(plan.out.absolute().parent)
    rows = list[Row]()
    stop, _ = on_signals()
    async with connect(plan.key, plan.timeout_s) as session:
        ready = await _unless(stop, prepare(session, plan.target))
        if ready is None:
            return rows, True
        engine = plan.subject.engine or await version(session, plan.target)
        if engine is None:
            raise EndpointError(f"--engine: none, and {plan.target.root}/version does not tell; expected one")
        for load in plan.loads:
            tally = await run(replace(load, stagger_s=ready.alone_s), ready.asking, stop)
            tell(_told(load, tally))
            if tally.served:
                rows.append(_row(replace(plan.subject, engine=engine), load, tally))
                write_atomically(plan.out, write(rows))
            if stop.is_set():
                break
    return rows, stop.is_set()


async def _unless(stop: asyncio.Event, doing: Coroutine[Any, Any, Answer]) -> Answer | None:
    """What comes of it; None if `stop` is set before."""
    done, stopped = asyncio.create_task(doing), asyncio.create_task(stop.wait())
    await asyncio.wait({done, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if done.done():
        return done.result()
    done.cancel()
    with suppress(asyncio.CancelledError):
        await done
    return None


def _row(subject: Subject, load: Load, tally: Tally) -> Row:
    return {
        **vars(subject),
        "date": datetime.now(UTC).date().isoformat(),
        "request_rate": "inf" if load.per_s is None else load.per_s,
        "max_concurrency": load.concurrency,
        **figures(tally),
    }


def _told(load: Load, tally: Tally) -> str:
    """One line on a load."""
    name = f"{load.per_s:g} requests/s" if load.concurrency is None else f"{load.concurrency} in flight"
    failed = "".join(f", {times} x {why}" for why, times in tally.failures.items())
    if not tally.served:
        return f"{name}: {'nothing was served' if tally.whole else 'stopped'}, not written{failed}"
    given, cut = figures(tally), "" if tally.whole else " (stopped)"
    times = ", ".join(
        f"{what.upper()} {given[f'mean_{what}_ms']:.1f} ms (p95 {given[f'p95_{what}_ms']:.1f})"
        for what in ("ttft", "tpot")
        if given[f"mean_{what}_ms"] is not None
    )
    return f"{name}: {tally.throughput:.3g} requests/s, {times}, {len(tally.served)} served{failed}{cut}"
