"""Instances of any shape for the tests of vLLM: where each stage lies, on which devices, for which phase."""

from collections.abc import Mapping, Sequence

from agents.engine import EngineSpec
from agents.ledger import RankKey
from schemas.catalog import Phase, Runtime
from schemas.plans import Contact, Instance, Rank, Stage
from schemas.problems import Rating, Service, Template, TemplateRank, TemplateStage
from tests.agents.making import LATENCY, POOL

Place = tuple[str, tuple[int, ...]]
"""A claim and the devices of its node."""

KEY = "k" * 40


def shaped(
    layers: Sequence[int],
    places: Sequence[Place],
    *,
    phase: Phase = "both",
    runtime: Runtime = "vllm",
    vllm_args: Mapping[str, str] | None = None,
    memory_gb: float = 10.0,
    model: str = "tiny",
    checkpoint: str = "tiny",
    revision: str | None = None,
) -> tuple[Instance, Template]:
    """An instance with `layers[i]` layers at `places[i]`, and its template."""
    args = dict(vllm_args or {})
    claims = sorted({claim for claim, _ in places})
    parts = tuple(
        TemplateStage(
            layers=count,
            ranks=(TemplateRank(node=claims.index(claim), device_ids=devices, memory_gb=memory_gb),),
        )
        for count, (claim, devices) in zip(layers, places, strict=True)
    )
    nodes = ("4xL4",) * len(claims)
    template = Template(
        id=Template.identity(model, "v", args, phase, runtime, nodes, parts, revision),
        model=model,
        variant="v",
        checkpoint=checkpoint,
        vllm_args=args,
        revision=revision,
        phase=phase,
        runtime=runtime,
        nodes=nodes,
        stages=parts,
        latency=LATENCY,
    )
    stages = tuple(
        Stage(
            index=index,
            first_layer=sum(layers[:index]),
            layers=count,
            ranks=(Rank(claim=claim, device_ids=devices, tp=len(devices), memory_gb=memory_gb),),
        )
        for index, (count, (claim, devices)) in enumerate(zip(layers, places, strict=True))
    )
    instance = Instance(
        id="i1",
        attempt=1,
        role="starting",
        template_id=template.id,
        rating=Rating(slo_class="chat", throughput=1.0, workload="w", engine="roofline-1"),
        service=Service(model=model, slo_class="chat", phase=phase),
        pool=POOL,
        stages=stages,
    )
    return instance, template


def spec_at(
    instance: Instance, template: Template, stage: int = 0, addresses: Mapping[str, str] | None = None
) -> EngineSpec:
    """The rank of `stage`, on nodes at `addresses` (claim -> address; loopback where there is none)."""
    known = {claim: (addresses or {}).get(claim, "127.0.0.1") for claim in instance.claims}
    return EngineSpec(
        instance=instance,
        template=template,
        key=RankKey(instance.id, instance.attempt, stage, 0),
        address=known[instance.stages[stage].ranks[0].claim],
        contacts={
            claim: Contact(address=address, guard_port=7000, public_key=KEY)
            for claim, address in known.items()
        },
    )


def specs(
    layers: Sequence[int],
    places: Sequence[Place],
    *,
    phase: Phase = "both",
    vllm_args: Mapping[str, str] | None = None,
) -> list[EngineSpec]:
    """The specs of all ranks, the head's first."""
    instance, template = shaped(layers, places, phase=phase, vllm_args=vllm_args)
    return [spec_at(instance, template, stage) for stage in range(len(layers))]
