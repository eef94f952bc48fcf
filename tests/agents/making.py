"""Plans for the tests of the node side: one node `n1` under claim `c1`, a neighbour under `c2`."""

from schemas.catalog import Runtime
from schemas.plans import Claim, Instance, Plan, Rank, Role, Stage, Target
from schemas.problems import LatencyTable, Pool, Rating, Service, Template, TemplateRank, TemplateStage

POOL = Pool(cloud="local", region="here", market="on-demand")
LATENCY = LatencyTable(batch=(1, 4), step_ms=(2.0, 5.0), prefill_ms_per_token=0.1, startup_s=0.05)


def template(stages: int = 1, *, runtime: Runtime = "vllm", latency: LatencyTable = LATENCY) -> Template:
    """`stages` stages of two layers, each on a node of its own."""
    parts = tuple(
        TemplateStage(layers=2, ranks=(TemplateRank(node=s, device_ids=(0,), memory_gb=10.0),))
        for s in range(stages)
    )
    nodes = ("1xL4",) * stages
    return Template(
        id=Template.identity("tiny", "bf16", {}, "both", runtime, nodes, parts),
        model="tiny",
        variant="bf16",
        checkpoint="tiny",
        phase="both",
        runtime=runtime,
        nodes=nodes,
        stages=parts,
        latency=latency,
    )


def rank(claim: str = "c1", device: int = 0, memory_gb: float = 10.0, tp: int = 1) -> Rank:
    return Rank(claim=claim, device_ids=(device,), tp=tp, memory_gb=memory_gb)


def instance(
    name: str,
    *ranks: Rank,
    attempt: int = 1,
    role: Role = "serving",
    of: Template | None = None,
    drain_deadline_ms: int = 600_000,
) -> Instance:
    """An instance with one stage a rank."""
    ranks = ranks or (rank(),)
    return Instance(
        id=name,
        attempt=attempt,
        role=role,
        template_id=(of or template(len(ranks))).id,
        rating=Rating(slo_class="chat", throughput=1.0, workload="w", engine="roofline-1"),
        service=Service(model="tiny", slo_class="chat"),
        pool=POOL,
        stages=tuple(Stage(index=i, first_layer=2 * i, layers=2, ranks=(r,)) for i, r in enumerate(ranks)),
        drain_deadline_ms=drain_deadline_ms,
    )


def plan(
    sequence: int,
    *instances: Instance,
    epoch: int = 1,
    node: str = "n1",
    templates: tuple[Template, ...] = (),
) -> Plan:
    """A plan with `instances`; templates are those of `instance` unless given."""
    known = {t.id: t for t in (*templates, template(1), template(2), template(3))}
    return Plan(
        fleet="test",
        lineage=1,
        epoch=epoch,
        sequence=sequence,
        at_ms=0,
        target=Target(
            id="t1",
            reason="test",
            cause_offset=0,
            problem="p1",
            inputs="",
            method="test",
            usd_per_hour=1.0,
            bound_usd_per_hour=1.0,
            gap=0.0,
        ),
        templates=tuple(known.values()),
        claims=(
            Claim(id="c1", configuration="4xL4", pool=POOL, usd_per_hour=1.0, node=node),
            Claim(id="c2", configuration="4xL4", pool=POOL, usd_per_hour=1.0, node="n2"),
        ),
        instances=instances,
    )
