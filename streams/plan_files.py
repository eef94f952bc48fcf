"""What `coral plan` reads: files of demand, availability, prices and running instances, YAML or JSON.

Read strictly: an unknown key, a number that is none or out of range, a model, configuration or place that the
set-up does not have, or the same thing said twice, each is told with its file and field. Their formats are
in docs/allocation.md.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from schemas.base import Count, Frozen, Name, Positive, Rate, Whole
from schemas.catalog import Market, Phase
from schemas.problems import NodeUsd, Pool
from schemas.workload import Workload
from schemas.yamlfile import load_yaml

RegionName = Annotated[str, Field(pattern=r"^[^\s/|]+/[^\s/|]+$")]
"""cloud/region."""


class PlanFileError(ValueError):
    """A file that says what cannot be: file, field, value and what was expected."""


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


# ------------------------------------------------------------------------------------------------- readers


def read_demand(path: Path, known: Known) -> tuple[DemandLine, ...]:
    """Every line with its SLO class.

    Raises:
        OSError: the file cannot be read.
        FileError, pydantic.ValidationError: it is no such file; the errors name it.
        PlanFileError: a line that names what the set-up does not have, or a demand said twice.
    """
    lines = []
    models = list(dict.fromkeys(model for model, _ in known.levels))
    for i, line in enumerate(load_yaml(DemandFile, path).demand):
        at = f"demand.{i}"
        _one_of(path, f"{at}.model", line.model, models)
        classes = [slo_class for model, slo_class in known.levels if model == line.model]
        if line.slo_class is not None:
            _one_of(path, f"{at}.slo_class", line.slo_class, classes)
        for phase in line.rates:
            _one_of(path, f"{at}.rates", phase, known.phases)
        lines.append(line.model_copy(update={"slo_class": line.slo_class or classes[0]}))
    _once(path, "demand", [f"{line.model}/{line.slo_class}" for line in lines])
    return tuple(lines)


def read_availability(path: Path, known: Known) -> tuple[AvailabilityLine, ...]:
    """Raises: as `read_demand`."""
    lines = load_yaml(AvailabilityFile, path).availability
    _places(path, "availability", lines, known)
    return lines


def read_prices(path: Path, known: Known) -> tuple[PriceLine, ...]:
    """Raises: as `read_demand`."""
    lines = load_yaml(PricesFile, path).prices
    _places(path, "prices", lines, known)
    return lines


def read_running(path: Path, known: Known) -> tuple[RunningLine, ...]:
    """Raises: as `read_demand`. Whether there is such a template is for the library to say."""
    lines = load_yaml(RunningFile, path).running
    for i, line in enumerate(lines):
        _one_of(path, f"running.{i}.region", line.region, known.regions)
        if line.pinned > line.count:
            raise PlanFileError(f"{path}: running.{i}.pinned: {line.pinned}, expected at most {line.count}")
    _once(path, "running", [f"{line.template} in {line.pool.key}" for line in lines])
    return lines


def workload_of(line: DemandLine, usual: Workload) -> Workload:
    """The lengths that a line goes by."""
    given = {"mean_input_tokens": line.mean_input_tokens, "mean_output_tokens": line.mean_output_tokens}
    return usual.model_copy(update={name: tokens for name, tokens in given.items() if tokens is not None})


# ------------------------------------------------------------------------------------------------- helpers


def _places(path: Path, section: str, lines: Sequence[Where], known: Known) -> None:
    for i, line in enumerate(lines):
        _one_of(path, f"{section}.{i}.configuration", line.configuration, known.configurations)
        _one_of(path, f"{section}.{i}.region", line.region, known.regions)
    _once(path, section, [f"{line.configuration} in {line.pool.key}" for line in lines])


def _one_of(path: Path, field: str, name: str, known: Iterable[str]) -> None:
    if name not in (names := list(known)):
        raise PlanFileError(f"{path}: {field}: {name!r}, expected one of {', '.join(names) or 'none'}")


def _once(path: Path, section: str, names: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if name in first:
            raise PlanFileError(f"{path}: {section}.{i}: {name} is given already by {section}.{first[name]}")
        first[name] = i
