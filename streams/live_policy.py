"""What the settings ask of every plan of the live planner, which can keep less than `coral plan`."""

from pathlib import Path
from typing import Any

from schemas.allocation import ROBUST, AllocationPolicy
from schemas.catalog import Catalog
from schemas.policy import CorePolicy
from schemas.settings import Settings
from streams.plan_files import Known
from streams.plan_policy import Asked, read_policy
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
        ValueError: it asks for what is not live, or names what the catalog does not have.
    """
    asked = _asked(settings, catalog)
    return {
        "allocation": asked.policy,
        "excluded_configurations": asked.excluded,
        "pinned": tuple(settings.control.pinned),
    }


def _asked(settings: Settings, catalog: Catalog) -> Asked:
    match settings.control.allocation:
        case "robust":
            return Asked(ROBUST)
        case "off":
            return Asked(AllocationPolicy())
        case Path() as path:
            return _in_file(path, settings, catalog)


def _in_file(path: Path, settings: Settings, catalog: Catalog) -> Asked:
    names = [node.name for node in catalog.configurations]
    asked = read_policy(path, catalog, Known(list(levels_of(settings, catalog)), ("both",), names, ()))
    for field, why in NOT_LIVE.items():
        if getattr(asked.policy, field) != AllocationPolicy.model_fields[field].default:
            raise ValueError(f"control.allocation: {path}: {field}: not live yet, since {why}")
    return asked


def variants_of(policy: CorePolicy) -> dict[str, list[str]]:
    """Model -> variants to have templates for, where not all are good enough; as plain JSON."""
    return {model: list(names) for model, names in policy.allocation.variants.items()}
