"""Small made-up templates, stocks and libraries, so that tests can reckon by hand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from schemas.allocation import AllocationPolicy
from schemas.base import digest
from schemas.catalog import Architecture, Catalog, Configuration, Phase, load_catalog
from schemas.performance import load_efficiencies
from schemas.problems import (
    LatencyTable,
    Pool,
    Problem,
    Rating,
    Running,
    Service,
    ServiceDemand,
    Sliced,
    Stock,
    Template,
    TemplateRank,
    TemplateStage,
    Unfit,
)
from solver.candidates import Candidate, Rated, Refused
from solver.roofline import Roofline

EAST = Pool(cloud="c", region="east", market="on-demand")
WEST = Pool(cloud="c", region="west", market="spot")


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_catalog()


@dataclass(frozen=True)
class MadeUp:
    """A library of made-up templates (`solver.candidates.Templates`)."""

    rated: tuple[Rated, ...]
    refused: tuple[Refused, ...]

    @property
    def digest(self) -> str:
        return digest([r.model_dump(mode="json") for r in (*self.rated, *self.refused)])

    @property
    def by_service(self) -> Mapping[str, Sequence[Candidate]]:
        keys = sorted({r.service.key for r in self.rated})
        return {key: [r.candidate for r in self.rated if r.service.key == key] for key in keys}


class Toolbox:
    """Makers of small cases."""

    east, west = EAST, WEST

    def service(self, model: str = "m", phase: Phase = "both") -> Service:
        return Service(model=model, slo_class="interactive", phase=phase)

    def rated(
        self,
        nodes: Sequence[str],
        throughput: float,
        model: str = "m",
        *,
        variant: str = "bf16",
        phase: Phase = "both",
    ) -> Rated:
        """A template with one stage a node, one GPU each."""
        stages = tuple(
            TemplateStage(layers=1, ranks=(TemplateRank(node=k, device_ids=(0,), memory_gb=1.0),))
            for k in range(len(nodes))
        )
        names = tuple(nodes)
        template = Template(
            id=Template.identity(model, variant, {}, phase, "vllm", names, stages),
            model=model,
            variant=variant,
            checkpoint=f"org/{model}",
            phase=phase,
            runtime="vllm",
            nodes=names,
            stages=stages,
            latency=LatencyTable(batch=(1,), step_ms=(10.0,), prefill_ms_per_token=0.1, startup_s=60.0),
        )
        rating = Rating(slo_class="interactive", throughput=throughput, workload="w", engine="made-up")
        return Rated(template=template, rating=rating)

    def library(self, *rated: Rated, refused: tuple[Refused, ...] = ()) -> "MadeUp":
        return MadeUp(rated, refused)

    def unfit(self, configuration: str, model: str = "m", tries: int = 0) -> Unfit:
        """East has refused a model on a configuration."""
        return Unfit(model=model, pool=EAST, configuration=configuration, reason="unknown_model", tries=tries)

    def stock(
        self,
        configuration: str,
        nodes: int,
        usd: float,
        pool: Pool = EAST,
        interruptions_per_hour: float = 0.0,
    ) -> Stock:
        return Stock(
            pool=pool,
            configuration=configuration,
            nodes=nodes,
            usd_per_hour=usd,
            interruptions_per_hour=interruptions_per_hour,
        )

    def running(self, rated: Rated, count: int, pool: Pool = EAST, pinned: int = 0) -> Running:
        return Running(template=rated.template, rating=rated.rating, pool=pool, count=count, pinned=pinned)

    def problem(
        self,
        library: MadeUp,
        demands: dict[str, float],
        stocks: Sequence[Stock],
        *,
        running: Sequence[Running] = (),
        ratio: dict[str, float] | None = None,
        excluded: Sequence[str] = (),
        unfit: Sequence[Unfit] = (),
        sliced: Sequence[Sliced] = (),
        policy: AllocationPolicy | None = None,
    ) -> Problem:
        return Problem(
            id="p",
            library=library.digest,
            demands=tuple(ServiceDemand(service=self.service(m), rate=r) for m, r in demands.items()),
            stocks=tuple(stocks),
            running=tuple(running),
            startup_ratio=ratio or {},
            excluded_configurations=tuple(excluded),
            unfit=tuple(unfit),
            sliced=tuple(sliced),
            policy=policy or AllocationPolicy(),
        )


@pytest.fixture(scope="session")
def box() -> Toolbox:
    return Toolbox()


@pytest.fixture(scope="session")
def roofline(catalog: Catalog) -> Callable[..., Roofline]:
    """Roofline of a shipped model and variant; `layers` cuts the model down for exhaustive searches."""

    def make(model: str, variant: str, layers: int | None = None, phase: Phase = "both") -> Roofline:
        found = catalog.model(model)
        if layers is not None:
            shape = {**found.architecture.model_dump(), "layers": layers, "full_attention_layers": layers}
            found = found.model_copy(update={"architecture": Architecture(**shape)})
        chosen = next(v for v in found.variants if v.name == variant)
        gpus = {g.name: g for g in catalog.gpus}
        return Roofline(found, chosen, found.levels[0], gpus, load_efficiencies(), phase)

    return make


@pytest.fixture(scope="session")
def nodes(catalog: Catalog) -> Callable[..., list[Configuration]]:
    return lambda *names: [catalog.configuration(name) for name in names]
