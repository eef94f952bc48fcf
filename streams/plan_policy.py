"""What is asked beyond demand met at least cost, from a file."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from schemas.allocation import ROBUST, AllocationPolicy
from schemas.yamlfile import load_yaml
from solver.setups import Setup
from streams.plan_files import Known, PlanFileError


def policy_of(setup: Setup, path: Path | None, known: Known) -> AllocationPolicy:
    """A file's; without one nothing for a paper's set-up, and robustness for any other.

    Raises:
        OSError, ValueError: the file cannot be read, or names what the set-up does not have.
    """
    if path is None:
        return AllocationPolicy() if setup.catalog.paper else ROBUST
    policy = load_yaml(AllocationPolicy, path)
    for field, names, expected in _named(setup, policy, known):
        if unknown := sorted(set(names) - set(expected)):
            raise PlanFileError(
                f"{path}: {field}: {unknown[0]!r}, expected one of {', '.join(sorted(expected))}"
            )
    return policy


def _named(
    setup: Setup, policy: AllocationPolicy, known: Known
) -> Iterator[tuple[str, Iterable[str], Collection[str]]]:
    """Field of a policy, names in it, names that it may have."""
    models = {model for model, _ in known.levels}
    yield "weights", policy.weights, models
    classes = {level.slo_class for model in setup.catalog.models for level in model.levels}
    yield "half_rule", policy.half_rule, classes
    yield "recovery_s", policy.recovery_s, models
    yield "variants", policy.variants, models
    yield "replicas", [r.model for r in policy.replicas], models
    yield "regions_at_least", policy.regions_at_least, models
    yield "spot_share", policy.spot_share, {"*", *models}
    for model, variants in policy.variants.items():
        every = [variant.name for variant in setup.catalog.model(model).variants]
        yield f"variants.{model}", variants, setup.scope.variants.get(model, every)
    levels = {f"{model}/{slo_class}" for model, slo_class in known.levels}
    yield "disaggregation", [f"{d.model}/{d.slo_class}" for d in policy.disaggregation], levels
    for i, pair in enumerate(policy.disaggregation):
        yield f"disaggregation.{i}.configurations", pair.configurations, known.configurations
