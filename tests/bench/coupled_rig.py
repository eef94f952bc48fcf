"""Questions as real fleets ask them: nodes as they are sold, shared by instances, and policies that couple.

Stock is seeded, as in `solver.snapshots`: how popular a kind of GPU is in a region decides how many nodes of
it there are, and all are scaled alike to so much over the least that could meet the demand in fractions.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from scipy.optimize import linprog

from schemas.allocation import ROBUST, AllocationPolicy, Replicas
from schemas.catalog import PAPER_CATALOG, SHIPPED_CATALOG, load_catalog
from schemas.performance import load_efficiencies
from schemas.problems import Answer, Pool, Problem, Service, ServiceDemand, Stock
from solver.building import build_library, inputs_of
from solver.figures import Figures
from solver.library import Library, LibraryError
from solver.library_file import load_library, save_library
from solver.program import Floats
from solver.setups import Setup, SetupFile, own_setup, paper_setup, sold
from solver.snapshots import draw, level_of, prices_of, running_of, startup_ratios, tokens_of
from streams.pairing import disaggregation_of
from streams.plan_files import DemandLine
from streams.planning import regions_of, sliced_of

CACHE = Path(__file__).parents[2] / ".cache" / "bench"
Fleet = Literal["small", "sold", "apart", "large", "paper"]
"""Sold by AWS in two regions; by both clouds in four; the same with prefill and decode apart as a choice; the
same nodes with runtime `coral`, which mixes kinds; and the paper's extended set-up, as policies couple it."""
FLEETS: tuple[Fleet, ...] = get_args(Fleet)
Ask = Literal["plain", "replicas", "spread", "spot", "budget", "pinned", "all"]
ASKS: tuple[Ask, ...] = get_args(Ask)
FACTORS: Mapping[str, float] = {"ample": 5.0, "scarce": 1.6, "short": 0.35}
"""Stock over the least that meets the demand in fractions of nodes."""
SPOT_USD, SPOT_SHARE, SPOT_LOST = 0.4, 0.5, 0.06
"""Of spot pools: price over the list price, nodes over those on demand, interruptions per hour."""
SERVED = ("gpt-oss-120b", "gpt-oss-20b", "llama-3-70b", "phi-4-14b", "qwen3-235b-a22b", "qwen3-32b")
REQUESTS_PER_S = 6.0
FILES: Mapping[Fleet, SetupFile] = {
    "small": SetupFile(regions=("aws/us-east-1", "aws/us-east-2"), n_max=3),
    "sold": SetupFile(),
    "apart": SetupFile(phases=("both", "prefill", "decode")),
    "large": SetupFile(
        regions=("aws/us-east-1", "aws/us-east-2", "gcp/us-central1"),
        phases=("prefill", "decode"),
        runtime="coral",
        n_max=4,
    ),
}


class Case(NamedTuple):
    """A fleet's set-up and its library."""

    fleet: Fleet
    setup: Setup
    library: Library


def case(fleet: Fleet) -> Case:
    """Built the first time; then from the bench's cache."""
    catalog = load_catalog(PAPER_CATALOG if fleet == "paper" else SHIPPED_CATALOG)
    setup = paper_setup("extended", catalog) if fleet == "paper" else own_setup(catalog, FILES[fleet], fleet)
    figures = Figures(catalog, load_efficiencies(), None)
    CACHE.mkdir(parents=True, exist_ok=True)
    file = CACHE / ("extended.templates" if fleet == "paper" else f"coupled-{fleet}.templates")
    try:
        return Case(fleet, setup, load_library(file, figures, inputs_of(figures, setup.scope)))
    except (OSError, LibraryError):
        library = build_library(figures, setup.scope, cores=1)
        save_library(library, file)
        return Case(fleet, setup, library)


def question(
    case: Case,
    ask: Ask,
    scale: str,
    seed: int,
    bill: float | None = None,
    requests_per_s: float = REQUESTS_PER_S,
) -> Problem:
    """A moment at which nothing runs.

    Args:
        bill: what a plan without a budget costs; the budget is a part of it.
    """
    rates = _rates(case, seed, requests_per_s)
    stocks = _stocks(case, rates, scale, seed)
    policy = ROBUST if case.fleet != "paper" else AllocationPolicy()
    if ask in ("spot", "all"):
        stocks += tuple(_spot(s, seed) for s in stocks)
    return Problem(
        id=f"{case.fleet}-{ask}-{scale}-{requests_per_s:g}-{seed}",
        library=case.library.digest,
        demands=tuple(ServiceDemand(service=service, rate=rate) for service, rate in rates),
        stocks=stocks,
        startup_ratio=startup_ratios(case.setup.catalog),
        sliced=sliced_of(case.setup),
        policy=policy.model_copy(update=dict(_policy(case, ask, rates, bill))),
    )


def later(problem: Problem, answer: Answer, seed: int, *, pinned: bool = False) -> Problem:
    """The next moment: the plan runs, half of it pinned where asked; demand has moved by up to a fifth."""
    running = running_of(answer)
    if pinned:
        running = tuple(r.model_copy(update={"pinned": (r.count + 1) // 2}) for r in running)
    moved = tuple(
        d.model_copy(update={"rate": d.rate * (0.8 + 0.4 * draw(seed, "moved", d.service.key))})
        for d in problem.demands
    )
    return problem.model_copy(update={"id": f"{problem.id}-then", "running": running, "demands": moved})


# ------------------------------------------------------------------------------------------------- helpers


def _policy(
    case: Case, ask: Ask, rates: list[tuple[Service, float]], bill: float | None
) -> list[tuple[str, object]]:
    """The fields that an ask changes; a fleet apart has its pairs in any."""
    found: list[tuple[str, object]] = []
    if case.fleet == "apart":
        lines = [DemandLine(model=s.model, slo_class=s.slo_class, requests_per_s=rate) for s, rate in rates]
        found.append(("disaggregation", tuple(disaggregation_of(case.setup, lines))))
    models = sorted({service.model for service, _ in rates})
    if ask in ("replicas", "all"):
        found.append(("replicas", tuple(Replicas(model=m, at_least=2, at_most=6) for m in models)))
    if ask in ("spread", "all"):
        found.append(("regions_at_least", dict.fromkeys(models, 2)))
    if ask in ("spot", "all"):
        found += [("spot_share", {"*": 0.4}), ("interruption_hours", 0.5)]
    if ask in ("budget", "all") and bill is not None:
        found.append(("budget_usd_per_hour", 0.9 * bill))
    return found


def _rates(case: Case, seed: int, requests_per_s: float) -> list[tuple[Service, float]]:
    """Each model's requests/s, within a factor of two either way, as the fleet's phases count them."""
    phases = ("both",) if "both" in case.setup.scope.phases else case.setup.scope.phases
    found = []
    for model, slo_class in case.setup.scope.levels:
        if model in SERVED:
            requests = requests_per_s * 4 ** (draw(seed, "rate", model) - 0.5)
            workload = level_of(case.setup.catalog, model, slo_class).workload
            found += [
                (Service(model=model, slo_class=slo_class, phase=p), requests * tokens_of(workload, p))
                for p in phases
            ]
    return found


def _stocks(case: Case, rates: list[tuple[Service, float]], scale: str, seed: int) -> tuple[Stock, ...]:
    prices = prices_of(case.setup)
    here = {r: {c.name for c in sold(case.setup.catalog, (r,))} for r in regions_of(case.setup)}
    paper = case.setup.catalog.paper
    places = [p for p in prices if paper or p.configuration in here[f"{p.pool.cloud}/{p.pool.region}"]]
    nodes = {c.name: c for c in case.setup.scope.configurations}
    shape = []
    for place in places:
        node = nodes[place.configuration]
        kind = 0.2 + 0.8 * draw(seed, "kind", f"{place.pool.key} {node.gpu}")
        shape.append(kind * (0.3 + 0.7 * draw(seed, "size", place.key)) * 48 / node.gpus)
    worth = np.array(
        [[_gives(case, s, nodes[p.configuration].gpu, p.configuration) for p in places] for s, _ in rates]
    )
    share = _least_share(worth / np.array([[rate] for _, rate in rates]), np.array(shape))
    return tuple(
        Stock(
            pool=place.pool,
            configuration=place.configuration,
            nodes=math.floor(size * share * FACTORS[scale] + draw(seed, "node", place.key)),
            usd_per_hour=prices[place],
        )
        for place, size in zip(places, shape, strict=True)
    )


def _spot(stock: Stock, seed: int) -> Stock:
    pool = Pool(cloud=stock.pool.cloud, region=stock.pool.region, market="spot")
    usd = stock.usd_per_hour * SPOT_USD * (0.7 + 0.6 * draw(seed, "spot", stock.configuration))
    nodes = math.floor(stock.nodes * SPOT_SHARE)
    return stock.model_copy(
        update={"pool": pool, "nodes": nodes, "usd_per_hour": usd, "interruptions_per_hour": SPOT_LOST}
    )


def _gives(case: Case, service: Service, gpu: str, name: str) -> float:
    """The most that a node gives a service, by the best template of one kind of slice alone."""
    sizes = {c.name: c.gpus for c in case.setup.scope.configurations if c.gpu == gpu}
    paper, best = case.setup.catalog.paper, 0.0
    for (key, configuration), gives in _alone(case.library).items():
        fits = configuration == name if paper else sizes.get(configuration, 99) <= sizes[name]
        if key == service.key and fits:
            best = max(best, gives * sizes[name] / sizes[configuration])
    return best


def _least_share(
    worth: Floats,
    shape: Floats,
) -> float:
    """The least factor on stock that meets every demand in fractions of nodes."""
    services, places = worth.shape
    capacity = np.hstack([np.tile(np.eye(places), services), -shape[:, None]])
    cover = np.zeros((services, services * places + 1))
    for k in range(services):
        cover[k, k * places : (k + 1) * places] = -worth[k]
    found = linprog(
        np.append(np.zeros(services * places), 1.0),
        A_ub=np.vstack([capacity, cover]),
        b_ub=np.append(np.zeros(places), -np.ones(services)),
    )
    assert found.x is not None
    return float(found.x[-1])


_made: dict[str, dict[tuple[str, str], float]] = {}


def _alone(library: Library) -> dict[tuple[str, str], float]:
    """(service key, configuration) -> throughput of a node in the best template of such nodes alone."""
    if library.digest not in _made:
        names = [node.name for node in library.inputs.configurations]
        found: dict[tuple[str, str], float] = {}
        for shelf in library.parts.values():
            nodes = shelf.kept.combination
            if not len(shelf):
                continue
            alike = ((nodes == nodes[:, :1]) | (nodes < 0)).all(axis=1)
            each = shelf.kept.throughput[alike] / (nodes[alike] >= 0).sum(axis=1)
            for c, gives in zip(nodes[alike, 0].tolist(), each.tolist(), strict=True):
                key = shelf.part.service.key, names[c]
                found[key] = max(found.get(key, 0.0), gives)
        _made[library.digest] = found
    return _made[library.digest]
