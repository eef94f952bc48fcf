"""What is asked beyond demand met at least cost, from a file."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from schemas.allocation import ROBUST, AllocationPolicy
from schemas.base import Name
from schemas.catalog import Catalog
from schemas.faults import Fault, Place, Steps
from schemas.problems import ServiceDemand
from schemas.yamlfile import load_marked
from solver.setups import Setup
from streams.plan_files import Known, refuse

Variants = Mapping[str, Sequence[str]]
"""Model -> the variants there are templates for; a model that is missing has all of the catalog's."""


class PolicyFile(AllocationPolicy):
    """As `coral plan` takes it: also what is left out of the set-up's configurations."""

    excluded_configurations: tuple[Name, ...] = ()


class Asked(NamedTuple):
    """What is asked beyond demand."""

    policy: AllocationPolicy
    excluded: tuple[str, ...] = ()
    """Configurations that no plan has."""
    place: Callable[[Steps], Place] | None = None
    """Where each part stands in its file, if it is from one."""


def policy_of(setup: Setup, path: Path | None, known: Known) -> Asked:
    """A file's; without one nothing for a paper's set-up, and robustness for any other.

    Raises: as `read_policy`.
    """
    if path is None:
        return Asked(AllocationPolicy() if setup.catalog.paper else ROBUST)
    return read_policy(path, setup.catalog, known, setup.scope.variants)


def read_policy(path: Path, catalog: Catalog, known: Known, there: Variants = MappingProxyType({})) -> Asked:
    """What a file asks for.

    Raises:
        OSError: it cannot be read.
        FileError, pydantic.ValidationError: it is no policy, or names what is not there; the errors name the
            file, its lines and fields.
    """
    file, marked = load_marked(PolicyFile, path)
    faults = []
    for field, names, expected in _named(file, catalog, known, there):
        for unknown in sorted(set(names) - set(expected)):
            place = marked.place([*field.split("."), unknown])
            faults.append(Fault(place, field, f"{unknown!r}, expected one of {', '.join(sorted(expected))}"))
    refuse(faults)
    policy = AllocationPolicy(**{name: getattr(file, name) for name in AllocationPolicy.model_fields})
    return Asked(policy, file.excluded_configurations, marked.place)


def refuse_undemanded(asked: Asked, demands: Sequence[ServiceDemand]) -> None:
    """A policy of what nobody asks for would be without effect: rather a slip than a wish.

    Raises:
        FileError: what a file's policy names and no demand does.
    """
    if asked.place is None:
        return
    policy = asked.policy
    models, keys = ({d.service.model for d in demands}, {d.service.key for d in demands})
    pairs = [f"{pair.model}/{pair.slo_class}/both" for pair in policy.disaggregation]
    named: tuple[tuple[str, Iterable[tuple[int | str, str]], set[str]], ...] = (
        ("replicas", enumerate(r.model for r in policy.replicas), models),
        ("regions_at_least", ((model, model) for model in policy.regions_at_least), models),
        ("weights", ((model, model) for model in policy.weights), models),
        ("disaggregation", enumerate(pairs), keys),
    )
    faults = []
    for field, names, known in named:
        for step, name in names:
            if name not in known:
                text = f"{name!r} has no demand, not even 0; expected one of {', '.join(sorted(known))}"
                faults.append(Fault(asked.place((field, step)), field, text))
    refuse(faults)


# ------------------------------------------------------------------------------------------------- helpers


def _named(
    policy: PolicyFile, catalog: Catalog, known: Known, there: Variants
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
    for model in sorted(models & policy.variants.keys()):
        every = [variant.name for variant in catalog.model(model).variants]
        yield f"variants.{model}", policy.variants[model], there.get(model, every)
    yield "excluded_configurations", policy.excluded_configurations, known.configurations
    levels = {f"{model}/{slo_class}" for model, slo_class in known.levels}
    yield "disaggregation", [f"{d.model}/{d.slo_class}" for d in policy.disaggregation], levels
    for i, pair in enumerate(policy.disaggregation):
        yield f"disaggregation.{i}.configurations", pair.configurations, known.configurations
