"""What vLLM's own parser misses: whether the stages of an instance can run at all. Pure.

Rules of upstream vLLM (0.32): one tensor-parallel degree for all stages, one rank a stage, a stage inside
one node, as many devices for every node rank, layers that add up.
"""

from schemas.plans import Instance
from schemas.problems import Template


def undeployable(instance: Instance, template: Template) -> str | None:
    """Why vLLM cannot run this instance, naming the field and what is expected; None if it can."""
    raise NotImplementedError
