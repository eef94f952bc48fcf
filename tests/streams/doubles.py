"""What the world of doubles is made of: pools, one kind of template, a policy, a greedy solver."""

import math

from schemas.plans import Contact
from schemas.policy import CorePolicy, ServedClass
from schemas.problems import (
    Answer,
    Chosen,
    LatencyTable,
    Pool,
    Problem,
    Rating,
    ServiceDemand,
    Stock,
    Template,
    TemplateRank,
    TemplateStage,
    Unmet,
)

EAST = Pool(cloud="gcp", region="east", market="on-demand")
WEST = Pool(cloud="aws", region="west", market="spot")


def template(model: str = "m", nodes: tuple[str, ...] = ("1xL4",)) -> Template:
    """A chain of one stage a node."""
    stages = tuple(
        TemplateStage(layers=2, ranks=(TemplateRank(node=n, device_ids=(0,), memory_gb=10.0),))
        for n in range(len(nodes))
    )
    identity = Template.identity(model, "bf16", {}, "both", "vllm", nodes, stages)
    latency = LatencyTable(batch=(1,), step_ms=(10.0,), prefill_ms_per_token=0.1, startup_s=1.0)
    return Template(
        id=identity,
        model=model,
        variant="bf16",
        checkpoint=model,
        phase="both",
        runtime="vllm",
        nodes=nodes,
        stages=stages,
        latency=latency,
    )


def contact(number: int = 1) -> Contact:
    """Of one node; the number makes it another one's."""
    return Contact(address="127.0.0.1", guard_port=9_000, public_key=f"{number:040d}")


def policy(**given: object) -> CorePolicy:
    """One served model `m`, thresholds short enough for scripts."""
    served = ServedClass(model="m", slo_class="interactive", mean_input_tokens=100.0, mean_output_tokens=10.0)
    fields: dict[str, object] = {
        "served": (served,),
        "rate_windows": 1,
        "headroom": 0.0,
        "scale_down_after_ms": 60_000,
        "solve_interval_ms": 5_000,
        "adjust_interval_ms": 3_600_000,
        **given,
    }
    return CorePolicy.model_validate(fields)


def greedy(problem: Problem, nodes: tuple[str, ...] = ("1xL4",), rps: float = 1.0) -> Answer:
    """Cover each demand with copies of one template, cheapest pool first."""
    stock = {(s.pool.key, s.configuration): s.nodes for s in problem.stocks}
    chosen, unmet, cost = [], [], 0.0
    for demand in problem.demands:
        found, missing, usd = _cover(problem, demand, nodes, rps, stock)
        chosen += found
        cost += usd
        if missing > 0 and demand.rate > 0:
            short = min(1.0, missing * rps / demand.rate)
            unmet.append(
                Unmet(
                    service=demand.service, rate=short * demand.rate, share=short, binding=_binding(problem)
                )
            )
    return Answer(
        problem=problem.id,
        method="greedy",
        status="feasible",
        chosen=tuple(chosen),
        unmet=tuple(unmet),
        usd_per_hour=cost,
        penalty_usd_per_hour=0.0,
        bound_usd_per_hour=0.0,
        gap=0.0,
        seconds=0.0,
    )


def _binding(problem: Problem) -> str:
    refused = {u.reason for u in problem.unfit} | {r for s in problem.stocks for r in s.refused}
    return f"refused: {', '.join(sorted(refused))}" if refused else "stock of 1xL4"


def _cover(
    problem: Problem,
    demand: ServiceDemand,
    nodes: tuple[str, ...],
    rps: float,
    stock: dict[tuple[str, str], int],
) -> tuple[list[Chosen], int, float]:
    needed = math.ceil(demand.rate / rps - 1e-9)
    chosen, cost = [], 0.0
    rating = Rating(slo_class=demand.service.slo_class, throughput=rps, workload="w", engine="e")
    for offer in sorted(problem.stocks, key=lambda s: s.usd_per_hour):
        if offer.configuration != nodes[0]:
            continue
        key = (offer.pool.key, offer.configuration)
        taken = min(needed, stock[key] // len(nodes), _allowed(problem, demand, offer))
        if taken:
            stock[key] -= taken * len(nodes)
            needed -= taken
            cost += taken * len(nodes) * offer.usd_per_hour
            chosen.append(
                Chosen(
                    template=template(demand.service.model, nodes),
                    rating=rating,
                    pool=offer.pool,
                    count=taken,
                    usd_per_hour=offer.usd_per_hour * len(nodes),
                )
            )
    return chosen, needed, cost


def _allowed(problem: Problem, demand: ServiceDemand, offer: Stock) -> int:
    """How many instances a place that refused the model may have."""
    for unfit in problem.unfit:
        place = (unfit.model, unfit.pool, unfit.configuration)
        if place == (demand.service.model, offer.pool, offer.configuration):
            return unfit.tries + sum(
                run.count
                for run in problem.running
                if (run.template.model, run.pool) == place[:2] and offer.configuration in run.template.nodes
            )
    return 10**6
