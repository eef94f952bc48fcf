"""What vLLM's own parser misses: whether the stages of an instance can run at all. Pure.

Rules of upstream vLLM (0.32). A **node rank** is one vLLM process: the part of one stage on one node.

1. One rank a stage: vLLM has no data parallelism inside a stage.
2. One tensor-parallel degree for all stages, and as many devices for every node rank: TP x PP, the world,
   is divided evenly among them. So a stage never straddles nodes.
3. A node's stages are consecutive: activations go from node to node once.
4. Every stage holds a layer at least, the stages follow each other, and their layers are the model's.
5. NIXL hands KV caches over between instances of one stage only.
"""

from collections.abc import Iterator
from itertools import chain, groupby

from schemas.plans import Instance
from schemas.problems import Template


def undeployable(instance: Instance, template: Template) -> str | None:
    """Why vLLM cannot run this instance, naming the field and what is expected; None if it can."""
    if template.runtime != "vllm":
        return f"runtime {template.runtime} is not deployable"
    checks = chain(
        _ranks(instance), _nodes(instance), _layers(instance, template), _phase(instance, template)
    )
    return next(checks, None)


def _ranks(instance: Instance) -> Iterator[str]:
    tp = instance.stages[0].ranks[0].tp
    for stage in instance.stages:
        where, rank = f"stage {stage.index}", stage.ranks[0]
        if len(stage.ranks) > 1:
            yield f"{where}: {len(stage.ranks)} ranks, runtime vllm takes one a stage"
        if rank.tp != tp:
            yield f"{where}: tp {rank.tp}, expected {tp} as in the first stage"
        if len(set(rank.device_ids)) != rank.tp:
            yield f"{where}: device_ids {list(rank.device_ids)}, expected {rank.tp} different ones"


def _nodes(instance: Instance) -> Iterator[str]:
    """A node whose stages are interrupted by another's."""
    claims = [claim for claim, _ in groupby(instance.stages, lambda stage: stage.ranks[0].claim)]
    for claim in sorted({claim for claim in claims if claims.count(claim) > 1}):
        stages = [stage.index for stage in instance.stages if stage.ranks[0].claim == claim]
        yield f"claim {claim}: stages {stages}, expected consecutive ones on one node"


def _layers(instance: Instance, template: Template) -> Iterator[str]:
    stages = instance.stages
    if [stage.index for stage in stages] != list(range(len(stages))):
        yield f"stages {[stage.index for stage in stages]}, expected 0 to {len(stages) - 1} in this order"
    expected = 0
    for stage in stages:
        if stage.first_layer != expected:
            yield f"stage {stage.index}: first_layer {stage.first_layer}, expected {expected}"
        expected += stage.layers
    total = sum(stage.layers for stage in template.stages)
    if len(stages) > total:
        yield f"{len(stages)} stages, expected at most {total}, one for each layer"
    if expected != total:
        yield f"{expected} layers in all stages, expected the model's {total}"


def _phase(instance: Instance, template: Template) -> Iterator[str]:
    if template.phase != "both" and len(instance.stages) > 1:
        yield f"phase {template.phase}: {len(instance.stages)} stages, expected 1, the most NIXL connects"
