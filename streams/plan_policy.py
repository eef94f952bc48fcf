"""What is asked beyond demand met at least cost, from a file."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from schemas.allocation import ROBUST, AllocationPolicy
from schemas.catalog import Catalog
from schemas.yamlfile import load_yaml
from solver.setups import Setup
from streams.plan_files import Known, PlanFileError


class PolicyFile(AllocationPolicy):
    """A policy, and what is left out of the set-up's configurations."""

    excluded_configurations: tuple[Name, ...] = ()


class Asked(NamedTuple):
    """What is asked beyond demand."""

    policy: AllocationPolicy
    excluded: tuple[str, ...] = ()
    """Configurations that no plan has."""


def policy_of(setup: Setup, path: Path | None, known: Known) -> Asked:
    """A file's; without one nothing for a paper's set-up, and robustness for any other.

    Raises:
        OSError, ValueError: the file cannot be read, or names what the set-up does not have.
    """
    if path is None:
        return Asked(AllocationPolicy() if setup.catalog.paper else ROBUST)
    file, marked = load_marked(PolicyFile, path)
    faults = []
    for field, names, expected in _named(setup, file, known):
        for unknown in sorted(set(names) - set(expected)):
            steps = field.split(".")
            text = f"{unknown!r}, expected one of {', '.join(sorted(expected))}"
            faults.append(Fault(marked.place([*steps, unknown]), field, text))
    refuse(faults)
    policy = AllocationPolicy(**{name: getattr(file, name) for name in AllocationPolicy.model_fields})
    return Asked(policy, file.excluded_configurations)


def _named(
    catalog: Catalog, there: Mapping[str, Sequence[str]], policy: AllocationPolicy, known: Known
) -> Iterator[tuple[str, Iterable[str], Collection[str]]]:
    """Field of a policy, names in it, names that it may have."""
    models = {model for model, _ in known.levels}
    yield "weights", policy.weights, models
    classes = {level.slo_class for model in catalog.models for level in model.levels}
    yield "half_rule", policy.half_rule, classes
    yield "recovery_s", policy.recovery_s, models
    yield "variants", policy.variants, models
    yield "replicas", [r.model for r in policy.replicas], models
    yield "regions_at_least", policy.regions_at_least, models
    yield "spot_share", policy.spot_share, {"*", *models}
    for model, variants in policy.variants.items():
        every = [variant.name for variant in catalog.model(model).variants]
        yield f"variants.{model}", variants, there.get(model, every)
    yield "excluded_configurations", policy.excluded_configurations, known.configurations
    levels = {f"{model}/{slo_class}" for model, slo_class in known.levels}
    yield "disaggregation", [f"{d.model}/{d.slo_class}" for d in policy.disaggregation], levels
    for i, pair in enumerate(policy.disaggregation):
        yield f"disaggregation.{i}.configurations", pair.configurations, known.configurations
