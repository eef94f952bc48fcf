"""What the settings ask of every plan of the live planner, which can keep less than `coral plan`."""

from typing import Any

from schemas.allocation import AllocationPolicy
from schemas.catalog import Catalog
from schemas.policy import CorePolicy
from schemas.settings import Settings
from streams.plan_files import Known
from streams.plan_policy import read_policy
from streams.served import levels_of

NOT_LIVE = {
    "interruption_hours": "no feed says how often nodes are taken back; spot_share limits what these carry",
    "disaggregation": "its rates are those of one demand, and the controller's moves",
}
"""Field of a policy -> why only `coral plan` takes it."""


def asked_live(settings: Settings, catalog: Catalog) -> dict[str, Any]:
    """Fields of `CorePolicy` that say what a plan is to keep to.

    Raises:
        OSError: the file of `control.allocation` cannot be read.
        ValueError: it asks for what is not live, or something names what the catalog does not have.
    """
    control = settings.control
    names = [node.name for node in catalog.configurations]
    if unknown := sorted(set(control.excluded) - set(names)):
        raise ValueError(f"control.excluded: {unknown[0]!r} is not in the catalog, expected one of {names}")
    regions = {f"{price.cloud}/{price.region}" for price in catalog.prices}
    for i, pin in enumerate(control.pinned):
        if (region := f"{pin.pool.cloud}/{pin.pool.region}") not in regions:
            known = ", ".join(sorted(regions))
            raise ValueError(
                f"control.pinned.{i}.pool: {region} is not in the catalog, expected one of {known}"
            )
    return {
        "allocation": _policy(settings, catalog, names),
        "excluded_configurations": tuple(control.excluded),
        "pinned": tuple(control.pinned),
    }


def _policy(settings: Settings, catalog: Catalog, names: list[str]) -> AllocationPolicy:
    path = settings.control.allocation
    if path is None:
        return AllocationPolicy()
    levels = list(levels_of(settings, catalog))
    policy = read_policy(path, catalog, Known(levels, ("both",), names, ()))
    for field, why in NOT_LIVE.items():
        if getattr(policy, field) != AllocationPolicy.model_fields[field].default:
            raise ValueError(f"control.allocation: {path}: {field}: not live yet, since {why}")
    return policy


def variants_of(policy: CorePolicy) -> dict[str, list[str]]:
    """Model -> variants to have templates for, where not all are good enough; as plain JSON."""
    return {model: list(names) for model, names in policy.allocation.variants.items()}
