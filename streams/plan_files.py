"""What `coral plan` reads: files of demand, availability, prices and running instances, YAML or JSON.

Read strictly: an unknown key, a number that is none or out of range, a model, configuration or place that the
set-up does not have, or the same thing said twice, each is told with its file, line and field. Their formats
are in docs/allocation.md.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, NamedTuple, Self, TypeVar

from pydantic import Field, model_validator

from schemas.base import Count, Frozen, Name, Positive, Rate, Whole
from schemas.catalog import Market, Phase
from schemas.faults import Fault, FileError, Place
from schemas.problems import NodeUsd, Pool
from schemas.workload import Workload
from schemas.yamlfile import load_marked

RegionName = Annotated[str, Field(pattern=r"^[^\s/|]+/[^\s/|]+$")]
"""cloud/region."""


class InPool(Frozen):
    """A pool, as files name it."""

    region: RegionName
    zone: Name = "*"
    market: Market = "on-demand"

    @property
    def pool(self) -> Pool:
        cloud, region = self.region.split("/")
        return Pool(cloud=cloud, region=region, zone=self.zone, market=self.market)


class Where(InPool):
    """A configuration in a pool."""

    configuration: Name


class DemandLine(Frozen):
    """Of one model: requests/s, with the catalog's mean lengths or others; or rates by phase."""

    model: Name
    slo_class: Name | None = None
    """The set-up's first one of the model if not given."""
    requests_per_s: Rate | None = None
    mean_input_tokens: Positive | None = None
    mean_output_tokens: Positive | None = None
    rates: dict[Phase, Rate] = {}
    """Tokens/s of prefill and of decode, requests/s of both."""

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Self:
        if (self.requests_per_s is None) == (not self.rates):
            raise ValueError("expected either requests_per_s or rates")
        if self.rates and (self.mean_input_tokens or self.mean_output_tokens):
            raise ValueError("mean_input_tokens, mean_output_tokens: go with requests_per_s, not with rates")
        return self


class DemandFile(Frozen):
    demand: tuple[DemandLine, ...]


class AvailabilityLine(Where):
    """Nodes held plus obtainable."""

    nodes: Count
    interruptions_per_hour: Rate = 0.0
    """Of one node: how often its cloud takes it back."""


class AvailabilityFile(Frozen):
    availability: tuple[AvailabilityLine, ...]


class PriceLine(Where):
    """Of one node."""

    usd_per_hour: NodeUsd

    @model_validator(mode="after")
    def _only_what_is_paid_anyway_is_free(self) -> Self:
        if self.usd_per_hour == 0 and self.market != "reserved":
            raise ValueError("usd_per_hour: 0, expected above 0 but for reserved nodes")
        return self


class PricesFile(Frozen):
    prices: tuple[PriceLine, ...]


class RunningLine(InPool):
    """Instances of one template in one pool."""

    template: str
    """Its id, as plans and `coral templates best` show it."""
    count: Whole
    pinned: Count = 0
    """So many of them stay."""


class RunningFile(Frozen):
    running: tuple[RunningLine, ...]


class Known(NamedTuple):
    """What a set-up has: what files may name."""

    levels: Sequence[tuple[str, str]]
    """(model, SLO class)."""
    phases: Sequence[Phase]
    configurations: Sequence[str]
    regions: Sequence[str]


Line = TypeVar("Line", bound=Frozen)


@dataclass(frozen=True)
class Entries(Generic[Line]):
    """The list of a file, and where each entry of it stands."""

    section: str
    lines: tuple[Line, ...]
    place: Callable[[Sequence[int | str]], Place]

    def at(self, i: int) -> Place:
        """File and line of an entry."""
        return self.place((self.section, i))

    def fault(self, i: int, field: str, text: str) -> Fault:
        """What is wrong with an entry, or a field of it."""
        steps: tuple[int | str, ...] = (self.section, i, field) if field else (self.section, i)
        return Fault(self.place(steps), ".".join(map(str, steps)), text)


# ------------------------------------------------------------------------------------------------- readers


def read_demand(path: Path, known: Known) -> Entries[DemandLine]:
    """Every line with its SLO class.

    Raises:
        OSError: the file cannot be read.
        FileError, pydantic.ValidationError: it is no such file, names what the set-up does not have, or says
            a thing twice; the errors name the file, its lines and fields.
    """
    file, marked = load_marked(DemandFile, path)
    asked = Entries("demand", file.demand, marked.place)
    faults, lines = [], []
    models = list(dict.fromkeys(model for model, _ in known.levels))
    for i, line in enumerate(asked.lines):
        classes = [slo_class for model, slo_class in known.levels if model == line.model]
        faults += _unknown(asked, i, "model", line.model, models)
        if line.slo_class is not None and classes:
            faults += _unknown(asked, i, "slo_class", line.slo_class, classes)
        for phase in line.rates:
            faults += _unknown(asked, i, "rates", phase, known.phases)
        slo_class = line.slo_class or next(iter(classes), None)
        lines.append(line.model_copy(update={"slo_class": slo_class}))
    faults += _twice(asked, [f"{line.model}/{line.slo_class}" for line in lines])
    refuse(faults)
    return Entries(asked.section, tuple(lines), asked.place)


def read_availability(path: Path, known: Known) -> Entries[AvailabilityLine]:
    """Raises: as `read_demand`."""
    file, marked = load_marked(AvailabilityFile, path)
    return _in_places(Entries("availability", file.availability, marked.place), known)


def read_prices(path: Path, known: Known) -> Entries[PriceLine]:
    """Raises: as `read_demand`."""
    file, marked = load_marked(PricesFile, path)
    return _in_places(Entries("prices", file.prices, marked.place), known)


def read_running(path: Path, known: Known) -> Entries[RunningLine]:
    """Raises: as `read_demand`. Whether there is such a template is for the library to say."""
    file, marked = load_marked(RunningFile, path)
    running, faults = Entries("running", file.running, marked.place), []
    for i, line in enumerate(running.lines):
        faults += _unknown(running, i, "region", line.region, known.regions)
        if line.pinned > line.count:
            faults.append(running.fault(i, "pinned", f"{line.pinned}, expected at most {line.count}"))
    faults += _twice(running, [f"{line.template} in {line.pool.key}" for line in running.lines])
    refuse(faults)
    return running


def refuse(faults: Sequence[Fault]) -> None:
    """Raises FileError where there are any."""
    if faults:
        raise FileError(faults)


def workload_of(line: DemandLine, usual: Workload) -> Workload:
    """The lengths that a line goes by."""
    given = {"mean_input_tokens": line.mean_input_tokens, "mean_output_tokens": line.mean_output_tokens}
    return usual.model_copy(update={name: tokens for name, tokens in given.items() if tokens is not None})


# ------------------------------------------------------------------------------------------------- helpers

InPlace = TypeVar("InPlace", bound=Where)


def _in_places(entries: Entries[InPlace], known: Known) -> Entries[InPlace]:
    faults = []
    for i, line in enumerate(entries.lines):
        faults += _unknown(entries, i, "configuration", line.configuration, known.configurations)
        faults += _unknown(entries, i, "region", line.region, known.regions)
    faults += _twice(entries, [f"{line.configuration} in {line.pool.key}" for line in entries.lines])
    refuse(faults)
    return entries


def _unknown(entries: Entries[Line], i: int, field: str, name: str, known: Iterable[str]) -> list[Fault]:
    if name in (names := list(known)):
        return []
    return [entries.fault(i, field, f"{name!r}, expected one of {', '.join(names) or 'none'}")]


def _twice(entries: Entries[Line], names: Sequence[str]) -> list[Fault]:
    first: dict[str, int] = {}
    found = []
    for i, name in enumerate(names):
        if first.setdefault(name, i) != i:
            found.append(
                entries.fault(i, "", f"{name} is given already in line {entries.at(first[name]).line}")
            )
    return found
